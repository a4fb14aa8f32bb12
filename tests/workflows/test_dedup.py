"""Rows that repeat others are left out, from the command line to its files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from tests.conftest import write_csv, write_jsonl

LONG = "the old film about a song that was so very fine and so very dull that this and that is superb, and so on and on"
TEXTS = ["A cat.", LONG, "a  cat.", LONG.replace("old", "odd"), "dogs", "the dogs", ""]
VECTORS = [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0.1, 1], [0, 0, 1]]


@pytest.fixture
def file(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [{"text": text, "tags": [number]} for number, text in enumerate(TEXTS)])
    np.save(tmp_path / "a.npy", np.array(VECTORS, dtype=np.float32))
    return tmp_path / "a.jsonl"


def read(name):
    return [json.loads(line) for line in Path(name).read_text().splitlines()]


def test_rows_that_stay_are_written_as_they_were(run, file):
    vectors = ["--vectors", file.with_suffix(".npy"), "--threshold", 0.99, "--near-threshold", 0.8]
    ended = run("dedup", file, *vectors, "--output", "clean.jsonl", "--report", "report.jsonl")
    assert ended.code == 0, ended.err
    assert ended.out.splitlines() == [
        "7 rows: 3 duplicates, 4 remaining",
        "  exact: 1",
        "  near: 1",
        "  in meaning: 1 (cosine 0.99 or more)",
        "clean.jsonl: written",
        "report.jsonl: written",
    ]
    assert read("clean.jsonl") == [row for number, row in enumerate(read(file)) if number in (0, 1, 4, 6)]
    assert [(row["group"], row["row"], row["reason"]) for row in read("report.jsonl")] == [
        (1, 1, ""),
        (1, 3, "exact"),
        (2, 2, ""),
        (2, 4, "near"),
        (3, 5, ""),
        (3, 6, "meaning"),
    ]
    dry = run("dedup", file, *vectors, "--dry-run", "--output", "none.jsonl", "--json")
    assert json.loads(dry.out)["duplicates"] == {"exact": 1, "near": 1, "meaning": 1}
    assert not Path("none.jsonl").exists()


def test_a_parquet_file_keeps_its_types(run, tmp_path):
    table = pyarrow.table({"text": ["a", "b", "A"], "tags": [[1], [2], [3]], "n": pyarrow.array([1, 2, 3], "int8")})
    parquet.write_table(table.replace_schema_metadata({"x": "y"}), tmp_path / "a.parquet")
    assert run("dedup", tmp_path / "a.parquet", "--output", "b.parquet").code == 0
    clean = parquet.read_table("b.parquet")
    assert clean.to_pylist() == table.slice(0, 2).to_pylist()
    assert clean.schema.equals(table.schema)
    assert clean.schema.metadata[b"x"] == b"y"


def test_a_csv_file_stays_as_it_was(run):
    Path("a.csv").write_bytes("text;n\r\ngrün;1,5\r\nGrün;2\r\n".encode("utf-8-sig"))
    assert run("dedup", "a.csv", "--output", "b.csv").code == 0
    assert Path("b.csv").read_bytes() == "text;n\r\ngrün;1,5\r\n".encode("utf-8-sig")


def test_rows_that_leak_are_named(run, file):
    test = write_csv(Path("test.csv"), [{"text": "new"}, {"text": "A CAT."}, {"text": "New"}])
    ended = run("dedup", test, "--against", file, "--report", "leaks.jsonl")
    assert ended.out.splitlines()[:4] == [
        "3 rows: 2 duplicates, 1 remaining",
        "  exact: 2",
        f"  duplicates of rows of {file}: 1",
        f"  duplicates of rows of {test}: 1",
    ]
    assert [(row["file"], row["row"], row["kept"]) for row in read("leaks.jsonl")][:2] == [
        (str(file), 1, True),
        ("test.csv", 3, False),
    ]


def test_without_a_threshold_the_similarity_of_rows_is_printed(run, file):
    ended = run("dedup", file, "--vectors", file.with_suffix(".npy"), "--near-threshold", 1, "--json")
    assert ended.code == 0, ended.err
    result = json.loads(ended.out)
    assert (result["threshold"], result["duplicates"]["meaning"]) == (None, 0)
    first = {"threshold": 0.95, "share": 0.8, "text": "dogs", "text_pair": "the dogs"}
    assert result["curve"][0] == first


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--threshold", 1.5], 2, "--threshold 1.5 - give a number from -1 to 1"),
        (["--threshold", "nan"], 2, "--threshold nan"),
        (["--near-threshold", -1], 2, "--near-threshold -1"),
        (["--output", "b.jsonl"], 2, "--threshold is missing, the minimum cosine of duplicates"),
        (["--threshold", 0.9, "--output", "INPUT"], 2, "--output is the file to clean"),
        (["--threshold", 0.9, "--output", "a.jsonl", "--report", "a.jsonl"], 2, "two outputs have the same name"),
        (["--threshold", 0.9, "--keep", "best:size"], 3, "no column 'size' for --keep"),
        (["--threshold", 0.9, "--against", "INPUT"], 2, "1 files of vectors for 2 files of rows"),
    ],
)
def test_mistakes_end_in_one_line(options, code, message, run, file):
    words = [file if word == "INPUT" else word for word in options]
    before = file.read_bytes()
    ended = run("dedup", file, "--vectors", file.with_suffix(".npy"), *words)
    assert ended.code == code
    assert message in ended.last
    assert file.read_bytes() == before


def test_a_threshold_needs_vectors(run, file):
    ended = run("dedup", file, "--threshold", 0.9)
    assert (ended.code, "without vectors" in ended.last) == (2, True)
