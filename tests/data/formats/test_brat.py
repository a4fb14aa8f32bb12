"""Pairs of a text and its brat annotation, alone and in folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertkit.data.files import find_files, read_records
from bertkit.data.sources import find_single_file
from bertkit.data.spans import read_spans
from bertkit.errors import DataError
from bertkit.recipe import DataConfig

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
    assert find_single_file(DataConfig(source="b")) == Path("b")
    rows = [row for _, row in read_records("b", DataConfig())]
    assert [(row["id"], row["text"]) for row in rows] == [("one", TEXT), ("three", "not annotated"), ("two", "nothing")]
    assert [spans_of(row) for row in rows] == [[(2, 6, "PER"), (15, 23, "LOC")], None, []]
    assert list(read_records("b/one.ann", DataConfig())) == [(1, rows[0])]


def test_folders_named_after_splits(here):
    for name in ("train", "dev"):
        write_pair(f"corpus/{name}/a")
    assert find_single_file(DataConfig(source="corpus")) is None
    assert find_files(Path("corpus"), DataConfig()) == {
        "train": [Path("corpus/train")],
        "validation": [Path("corpus/dev")],
    }


@pytest.mark.parametrize(
    ("annotation", "line"),
    [
        ("T1\tLOC 15 18 23\tNew York\n", r"not an entity of brat: .* \(b/a.ann:1\) - write T1, a tab"),
        ("#1\tx\nT1 LOC 1 2 a\n", r"not an entity of brat: .* \(b/a.ann:2\) - write T1, a tab"),
    ],
)
def test_faults(here, annotation, line):
    write_pair("b/a", annotation=annotation)
    with pytest.raises(DataError, match=line):
        list(read_records("b", DataConfig()))


def test_an_annotation_without_its_text(here):
    Path("a.ann").write_text(ANN)
    with pytest.raises(DataError, match=r"an .ann file without its text \(a.ann\) - add a.txt"):
        list(read_records("a.ann", DataConfig()))


def test_an_entity_over_a_line_end_is_one_span_and_one_with_a_gap_is_refused_in_its_row(here):
    write_pair("b/a", annotation="T1\tLOC 15 18;19 23\tNew York\n")
    write_pair("b/c", annotation="T1\tLOC 15 18;29 33\tNew home\n")
    write_pair("b/d")
    rows = [row for _, row in read_records("b", DataConfig())]
    assert [spans_of(rows[0]), len(spans_of(rows[2]))] == [[(15, 23, "LOC")], 2]
    with pytest.raises(DataError, match=r"the span 'New home' \(LOC\) has 2 parts .* - make it one span"):
        spans_of(rows[1])


def test_annotations_that_are_not_entities_are_counted(here, caplog):
    write_pair("b/a", annotation=ANN + "A1\tNegated T1\nA2\tNegated T2\nM1\tSure T1\nE1\tGo:T1\nA3\n")
    with caplog.at_level("INFO", "bertkit"):
        list(read_records("b", DataConfig()))
    (message,) = caplog.messages
    assert message.startswith("warning: annotations of b that are not read: ")
    for part in ("attribute Negated (2)", "attribute Sure (1)", "event (1)", "note (1)", "relation (1)"):
        assert part in message


def test_offsets_of_brat_count_a_line_end_of_two_characters_as_one(here):
    text = "Anna sang.\r\nShe left Oslo.\r\nThen home."
    write_pair("b/a", text, "T1\tLOC 20 24\tOslo\nT2\tPER 0 4\tAnna\n")
    (row,) = (row for _, row in read_records("b", DataConfig()))
    assert [text[start:end] for start, end, _ in spans_of(row)] == ["Anna", "Oslo"]
