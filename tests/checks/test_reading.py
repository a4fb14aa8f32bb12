"""All splits, read to their end."""

from __future__ import annotations

import pytest

from bertkit.checks.reading import read_all
from bertkit.errors import DataError
from bertkit.recipe import load_recipe
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
    assert [fault.row for fault in readings.faults] == [3, 5, 3, 3]
    assert readings.labels == ("a", "b")


def test_labels_of_other_splits_are_labels_though_no_training_row_has_them(tmp_path):
    write_csv(tmp_path / "train.csv", rows("a", "b"))
    write_csv(tmp_path / "validation.csv", rows("a", "c"))
    write_csv(tmp_path / "test.csv", rows("b", "d"))
    readings = read(tmp_path)
    assert (readings.labels, readings.faults) == (("a", "b", "c", "d"), [])


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
    assert [fault.row for fault in readings.faults] == [3]
    assert readings.findings[0].text.startswith("no row can be held out")
    assert readings.splits == {}


def test_the_demo_has_all_splits():
    assert list(read("demo", "cola", **{"data.limit": 20}).splits) == ["train", "validation", "test"]


def test_no_training_rows(tmp_path):
    write_csv(tmp_path / "test.csv", rows("a"))
    with pytest.raises(DataError, match="no train split"):
        read(tmp_path)
