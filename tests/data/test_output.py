"""Predictions are written whole or not at all, in the format of the file's ending."""

from __future__ import annotations

import csv
import json

import pytest

from bertkit.data.output import write_records, writer_for
from bertkit.errors import ResourceError, UsageError

RECORDS = [
    {"id": 1, "prediction": "good", "probabilities": {"bad": 0.25, "good": 0.75}},
    {"id": 2, "prediction": "bad", "probabilities": {"bad": 0.5, "good": 0.5}},
]
FLAT = [
    {"id": 1, "prediction": "good", "probability_bad": 0.25, "probability_good": 0.75},
    {"id": 2, "prediction": "bad", "probability_bad": 0.5, "probability_good": 0.5},
]


def test_jsonl_keeps_nested_values(tmp_path):
    file = tmp_path / "a.jsonl"
    assert write_records(iter(RECORDS), file) == 2
    assert [json.loads(line) for line in file.read_text().splitlines()] == RECORDS


@pytest.mark.parametrize(("ending", "delimiter"), [(".csv", ","), (".tsv", "\t")])
def test_csv_and_tsv_are_flat(tmp_path, ending, delimiter):
    file = tmp_path / f"a{ending}"
    assert write_records(iter(RECORDS), file) == 2
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(stream, delimiter=delimiter))
    assert rows == [{name: str(value) for name, value in row.items()} for row in FLAT]


def test_parquet_is_flat(tmp_path):
    from pyarrow import parquet

    assert write_records(iter(RECORDS), tmp_path / "a.parquet") == 2
    assert parquet.read_table(tmp_path / "a.parquet").to_pylist() == FLAT


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".parquet"])
def test_a_fault_among_the_records_leaves_the_old_file(tmp_path, ending):
    def broken():
        yield RECORDS[0]
        raise KeyboardInterrupt

    file = tmp_path / f"a{ending}"
    file.write_text("before")
    with pytest.raises(KeyboardInterrupt):
        write_records(broken(), file)
    assert file.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_what_cannot_be_written(tmp_path):
    with pytest.raises(UsageError, match=r"unknown ending '\.xlsx' - one of \.jsonl, \.csv, \.tsv, \.parquet"):
        writer_for(tmp_path / "a.xlsx")
    with pytest.raises(ResourceError, match="cannot be written"):
        write_records(iter(RECORDS), tmp_path / "nowhere" / "a.csv")
