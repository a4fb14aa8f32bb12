"""All splits, read to their end."""

from __future__ import annotations

import pytest

from bertkit.checks.reading import (
    count_gold,
    describe_error,
    describe_row_errors,
    find_label_problems,
    find_odd_values,
    read_all,
)
from bertkit.data.columns import ColumnSpec
from bertkit.data.rows import Split
from bertkit.errors import DataError
from bertkit.recipe import DataConfig, load_recipe
from bertkit.tasks import load_task
from tests.conftest import write_csv


def read(source, recipe="classify", **changes):
    chosen = load_recipe(recipe, {"data.source": str(source), **changes})
    return read_all(chosen, load_task(chosen))


def rows(*labels):
    return [{"text": f"text {number}", "label": label} for number, label in enumerate(labels)]


def test_bad_rows_are_left_out_and_kept_as_faults(tmp_path):
    write_csv(tmp_path / "train.csv", rows("a", "", "b", "", "a"))
    write_csv(tmp_path / "validation.csv", rows("a", "B"))
    write_csv(tmp_path / "test.csv", rows("a", "A", "b"))
    readings = read(tmp_path)
    assert {name: list(split.lines) for name, split in readings.splits.items()} == {
        "train": [2, 4, 6],
        "validation": [2],
        "test": [2, 4],
    }
    assert [fault.row for fault in readings.row_errors] == [3, 5, 3, 3]
    assert readings.labels == ("a", "b")


def test_labels_of_other_splits_are_labels_though_no_training_row_has_them(tmp_path):
    write_csv(tmp_path / "train.csv", rows("a", "b"))
    write_csv(tmp_path / "validation.csv", rows("a", "c"))
    write_csv(tmp_path / "test.csv", rows("b", "d"))
    readings = read(tmp_path)
    assert (readings.labels, readings.row_errors) == (("a", "b", "c", "d"), [])


@pytest.mark.parametrize("changes", [{}, {"labels": ["a", "b"]}])
def test_a_test_split_without_labels_is_read_without_them(tmp_path, changes):
    write_csv(tmp_path / "train.csv", rows("a", "b"))
    write_csv(tmp_path / "validation.csv", rows("a", "b"))
    write_csv(tmp_path / "test.csv", rows("", "", ""))
    readings = read(tmp_path, **changes)
    assert (len(readings.splits["test"].rows), readings.row_errors) == (3, [])
    assert [finding.text for finding in readings.findings if finding.name == "label_counts"] == ["test: no labels"]


def test_one_label_is_a_finding(tmp_path):
    write_csv(tmp_path / "train.csv", rows("a", "a"))
    write_csv(tmp_path / "validation.csv", rows("a"))
    assert [finding.name for finding in read(tmp_path).findings] == ["label_names"]


def test_a_file_is_read_once_whichever_splits_it_has(tmp_path):
    file = write_csv(tmp_path / "all.csv", rows(*"abab" * 10))
    whole = read(file).splits
    assert list(whole) == ["train", "validation"] and sum(len(split.rows) for split in whole.values()) == 40
    parts = [{**row, "part": part} for row, part in zip(rows(*"abab"), ("train", "train", "dev", "test"), strict=True)]
    splits = read(write_csv(tmp_path / "parts.csv", parts), **{"data.split_column": "part"}).splits
    assert {name: len(split.rows) for name, split in splits.items()} == {"train": 2, "validation": 1, "test": 1}


def test_faults_are_kept_where_the_rest_cannot_be_split(tmp_path):
    readings = read(write_csv(tmp_path / "all.csv", rows("a", "", "b")))
    assert [fault.row for fault in readings.row_errors] == [3]
    assert readings.findings[0].text.startswith("no row can be held out")
    assert readings.splits == {}


def test_the_demo_has_all_splits():
    assert list(read("demo", "cola", **{"data.limit": 20}).splits) == ["train", "validation", "test"]


def test_no_training_rows(tmp_path):
    write_csv(tmp_path / "test.csv", rows("a"))
    with pytest.raises(DataError, match="no train split"):
        read(tmp_path)


def fault(what, row, remedy="correct it", column="answers"):
    return DataError(what, remedy, file="a.csv", row=row, column=column)


def test_faults_with_one_remedy_are_one_finding():
    faults = [fault(f"the answer {row} is not there", row) for row in range(1, 6)]
    (finding,) = describe_row_errors(faults)
    assert finding.text == "5 rows, the first: the answer 1 is not there (column 'answers') - correct it"
    assert (finding.level, finding.count) == ("fail", 5)
    assert list(map(str, finding.places)) == ["a.csv:1", "a.csv:2", "a.csv:3"]


def test_empty_texts_have_a_name_of_their_own():
    names = [found.name for found in describe_row_errors([fault("no text", 1), fault("no words", 2)])]
    assert names == ["empty_texts", "unreadable_rows"]


def test_rows_without_faults_are_good():
    (finding,) = describe_row_errors([])
    assert (finding.level, finding.text) == ("good", "every row can be read")


def test_a_refusal_of_a_split():
    finding = describe_error(DataError("every row has the same label 'a'", "needs two"), "labels", "label_names")
    assert (finding.level, finding.text, finding.places) == ("fail", "every row has the same label 'a' - needs two", ())


CLASSES = ColumnSpec(inputs=("text",), gold="label")


def split(labels, name="train", gold="label"):
    rows = [{"text": f"film number {number}", gold: label} for number, label in enumerate(labels)]
    return Split(name, f"{name}.csv", rows, list(range(2, len(rows) + 2)))


def faults_of(train, validation=(), declared=None):
    splits = {"train": split(train), "validation": split(validation, "validation")}
    found = find_label_problems(splits, "label", declared, sorted(set(train)))
    return [(finding.name, finding.text, [str(place) for place in finding.places]) for finding in found]


def test_common_labels_pass():
    assert faults_of(["a", "b"] * 5, ["a", "b"]) == []


def test_a_label_of_few_rows_is_shown_with_them():
    assert faults_of(["a", "b"] * 5 + ["c"] * 4) == [
        ("rare_labels", "labels with fewer than 5 training rows: 'c' (4)", ["train.csv:12"])
    ]


def test_a_misspelled_label_is_shown_with_the_one_that_may_be_meant():
    ((name, text, places), _) = faults_of(["positive", "negative"] * 200 + ["postive"])
    assert (name, places) == ("misspelled_labels", ["train.csv:402"])
    assert text.endswith("Is 'positive' meant?")


def test_declared_labels_that_training_lacks():
    assert faults_of(["a", "b"] * 5, ["c", "a", "c"], ["a", "b", "c", "d"]) == [
        (
            "unseen_labels",
            "2 validation rows have the label 'c', and no training row has it",
            ["validation.csv:2", "validation.csv:4"],
        ),
        ("unseen_labels", "no row has these labels of the recipe: 'd'", []),
    ]


def test_counts():
    of_labels = count_gold({"train": split(["a", "b", "a", "a"])}, "label")
    assert [finding.text for finding in of_labels] == ["train: 2 labels: a (3, 75.0%), b (1, 25.0%)"]
    of_tags = count_gold({"train": split([["B-PER", "O"], ["O", "O"]], gold="tags")}, "tags")
    assert [finding.text for finding in of_tags] == ["train: 2 labels: O (3, 75.0%), PER (1, 25.0%)"]
    of_numbers = count_gold({"train": split([0.5, 2.0])}, "label")
    assert [finding.text for finding in of_numbers] == ["train: numbers from 0.5 to 2, mean 1.25"]
    assert count_gold({"train": split([{"text": []}])}, "label") == []


def test_swapped_columns_fail():
    rows = [{"text": "ab"[number % 2], "label": f"a film number {number}"} for number in range(40)]
    train = Split("train", "train.csv", rows, list(range(1, 41)))
    (first, *_) = find_odd_values(train, CLASSES, DataConfig(), finds_names=True)
    assert (first.level, first.name) == ("fail", "swapped_columns")
    assert find_odd_values(split(["a", "b"] * 20), CLASSES, DataConfig(), finds_names=True) == []
