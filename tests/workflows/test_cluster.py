"""Clusters of a file, found, kept and used again, from the command line to its files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from tests.conftest import write_csv

TEXTS = ["a good film", "a great film", "", "the poor song", "the dull song", "a fine film", "the weak song"]


@pytest.fixture
def file(tmp_path):
    """Texts on two subjects, and their vectors."""
    write_csv(tmp_path / "a.csv", [{"uid": f"r{number}", "text": text} for number, text in enumerate(TEXTS)])
    vectors = [
        [1 + number / 10, 0.1, 0] if "film" in text else [0, 0.1, 1 + number / 9] for number, text in enumerate(TEXTS)
    ]
    np.save(tmp_path / "a.npy", np.array(vectors, dtype=np.float32))
    return tmp_path / "a.csv"


def read(name):
    with Path(name).open() as stream:
        return list(csv.DictReader(stream))


def test_clusters_are_named_kept_and_used_again(run, file):
    vectors = ["--vectors", file.with_suffix(".npy")]
    ended = run("cluster", file, *vectors, "--clusters", 2, "--save", "topics", "--output", "a.csv", "--json")
    assert ended.code == 0, ended.err
    result = json.loads(ended.out)
    assert [(topic["rows"], topic["words"][0]) for topic in result["topics"]] == [(3, "film"), (3, "song")]
    assert result["noise"] == 1
    assert "rows without text, in no cluster: 1" in ended.err
    rows = read("a.csv")
    assert [row["cluster"] for row in rows] == ["0", "0", "-1", "1", "1", "0", "1"]
    assert rows[0] == {"id": "0", "uid": "r0", "text": TEXTS[0], "cluster": "0", "topic": "film, fine, good, great"}
    points = pyarrow.parquet.read_table("topics/map.parquet").to_pylist()
    assert [point["cluster"] for point in points] == [0, 0, 1, 1, 0, 1]
    assert "2 clusters of 6 texts" in Path("topics/map.html").read_text()
    again = run("cluster", file, *vectors, "--assign", "topics", "--output", "b.csv")
    assert again.out.splitlines()[:2] == [
        "2 clusters of 7 rows by kmeans",
        "  0  3 rows (42.9%)  film, fine, good, great",
    ]
    assert read("b.csv") == rows


def test_a_model_computes_the_vectors_and_is_found_again(run, file, tiny_model):
    first = run("cluster", file, "--model", tiny_model, "--clusters", 2, "--save", "topics", "--output", "a.csv")
    assert first.code == 0, first.err
    assert run("cluster", file, "--assign", "topics", "--output", "b.csv").code == 0
    assert read("a.csv") == read("b.csv")
    ended = run("cluster", file, "--assign", "topics", "--model", "demo")
    assert (ended.code, "made with another model" in ended.last) == (4, True)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--clusters", 7], 2, "--clusters 7, but 6 rows have text"),
        (["--clusters", 2, "--method", "hdbscan"], 2, "--clusters with --method hdbscan"),
        (["--assign", "topics", "--clusters", 2], 2, "--clusters with --assign"),
        (["--assign", "topics"], 4, "no clusters in this folder"),
        (["--clusters", 2, "--output", "INPUT"], 2, "--output is the file to cluster"),
        (["--clusters", 2, "--output", "a.txt"], 2, "unknown ending '.txt'"),
        (["--clusters", 2, "--save", "."], 2, "the folder exists already"),
        (["--column", "uids"], 3, "no column 'uids'"),
        (["--model", "demo"], 2, "--model and --vectors"),
    ],
)
def test_mistakes_end_in_one_line(options, code, message, run, file):
    words = [file if word == "INPUT" else word for word in options]
    ended = run("cluster", file, "--vectors", file.with_suffix(".npy"), *words)
    assert ended.code == code
    assert message in ended.last
    assert file.read_text().count("\n") == len(TEXTS) + 1


def test_a_column_of_the_output_is_not_overwritten(run, tmp_path):
    write_csv(tmp_path / "a.csv", [{"text": "a", "topic": "b"}])
    ended = run("cluster", tmp_path / "a.csv", "--model", "demo")
    assert (ended.code, "column 'topic'" in ended.last) == (3, True)
