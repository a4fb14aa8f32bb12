"""Pairs of a text and its brat annotation, alone and in folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertkit.data.files import find_files, read_records
from bertkit.data.sources import single_file
from bertkit.data.spans import read_spans
from bertkit.errors import DataError
from bertkit.recipe import Data

TEXT = "😀 Zoe\u0301 went\nto New\nYork.\r\nThen home."
ANN = """T1\tPER 2 6\tZoe\u0301
R1\tLives Arg1:T1 Arg2:T2
T2\tLOC 15 23\tNew York
#1\tAnnotatorNotes T1\tsure
"""


def write_pair(name, text=TEXT, annotation=ANN):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(f"{name}.txt").write_bytes(text.encode())
    if annotation is not None:
        Path(f"{name}.ann").write_bytes(annotation.encode())


def spans_of(row):
    return row["spans"] and [(*span,) for span in read_spans(row["spans"], row["text"])]


def test_a_folder_of_pairs_and_one_pair(here):
    write_pair("b/two", "nothing", "")
    write_pair("b/one")
    write_pair("b/three", "not annotated", None)
    assert single_file(Data(source="b")) == Path("b")
    rows = [row for _, row in read_records("b", Data())]
    assert [(row["id"], row["text"]) for row in rows] == [("one", TEXT), ("three", "not annotated"), ("two", "nothing")]
    assert [spans_of(row) for row in rows] == [[(2, 6, "PER"), (15, 23, "LOC")], None, []]
    assert list(read_records("b/one.ann", Data())) == [(1, rows[0])]


def test_folders_named_after_splits(here):
    for name in ("train", "dev"):
        write_pair(f"corpus/{name}/a")
    assert single_file(Data(source="corpus")) is None
    assert find_files(Path("corpus"), Data()) == {"train": [Path("corpus/train")], "validation": [Path("corpus/dev")]}


@pytest.mark.parametrize(
    ("annotation", "line"),
    [
        ("T1\tLOC 15 18;19 23\tNew York\n", r"an entity of several parts: .* \(b/a.ann:1\) - make it one span"),
        ("#1\tx\nT1 LOC 1 2 a\n", r"not an entity: .* \(b/a.ann:2\) - write it as brat does"),
    ],
)
def test_faults(here, annotation, line):
    write_pair("b/a", annotation=annotation)
    with pytest.raises(DataError, match=line):
        list(read_records("b", Data()))


def test_an_annotation_without_its_text(here):
    Path("a.ann").write_text(ANN)
    with pytest.raises(DataError, match=r"an .ann file without its text \(a.ann\) - put a.txt beside it"):
        list(read_records("a.ann", Data()))
