"""Labels that are rare, misspelt, or in one split alone."""

from __future__ import annotations

from bertkit.checks.labels import count_gold, find_label_faults, find_odd_values
from bertkit.data.columns import Columns
from bertkit.data.rows import Split
from bertkit.recipe import Data

CLASSES = Columns(given=("text",), gold="label")


def split(labels, name="train", gold="label"):
    rows = [{"text": f"film number {number}", gold: label} for number, label in enumerate(labels)]
    return Split(name, f"{name}.csv", rows, list(range(2, len(rows) + 2)))


def faults_of(train, validation=(), declared=None):
    splits = {"train": split(train), "validation": split(validation, "validation")}
    found = find_label_faults(splits, "label", declared, sorted(set(train)))
    return [(finding.name, finding.text, [str(place) for place in finding.places]) for finding in found]


def test_common_labels_pass():
    assert faults_of(["a", "b"] * 5, ["a", "b"]) == []


def test_a_label_of_few_rows_is_shown_with_them():
    assert faults_of(["a", "b"] * 5 + ["c"] * 4) == [
        ("rare_labels", "labels with fewer than 5 training rows: 'c' (4)", ["train.csv:12"])
    ]


def test_a_misspelt_label_is_shown_with_the_one_that_may_be_meant():
    ((name, text, places), _) = faults_of(["positive", "negative"] * 200 + ["postive"])
    assert (name, places) == ("misspelt_labels", ["train.csv:402"])
    assert text.endswith("Is 'positive' meant?")


def test_declared_labels_that_training_lacks():
    assert faults_of(["a", "b"] * 5, ["c", "a", "c"], ["a", "b", "c", "d"]) == [
        (
            "unseen_labels",
            "the label 'c' is in 2 validation rows and in no training row",
            ["validation.csv:2", "validation.csv:4"],
        ),
        ("unseen_labels", "no row has these labels of the recipe: 'd'", []),
    ]


def test_counts():
    of_labels = count_gold({"train": split(["a", "b", "a", "a"])}, "label")
    assert [finding.text for finding in of_labels] == ["train: 2 labels: a 3 (75.0%), b 1 (25.0%)"]
    of_tags = count_gold({"train": split([["B-PER", "O"], ["O", "O"]], gold="tags")}, "tags")
    assert [finding.text for finding in of_tags] == ["train: 2 labels: O 3 (75.0%), PER 1 (25.0%)"]
    of_numbers = count_gold({"train": split([0.5, 2.0])}, "label")
    assert [finding.text for finding in of_numbers] == ["train: numbers from 0.5 to 2, mean 1.25"]
    assert count_gold({"train": split([{"text": []}])}, "label") == []


def test_swapped_columns_fail():
    rows = [{"text": "ab"[number % 2], "label": f"a film number {number}"} for number in range(40)]
    train = Split("train", "train.csv", rows, list(range(1, 41)))
    (first, *_) = find_odd_values(train, CLASSES, Data(), finds_names=True)
    assert (first.level, first.name) == ("fail", "swapped_columns")
    assert find_odd_values(split(["a", "b"] * 20), CLASSES, Data(), finds_names=True) == []
