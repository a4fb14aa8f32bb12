"""Files that say what is relevant to which query."""

from __future__ import annotations

import json

import pytest

from bertkit.errors import DataError
from bertkit.vectors.search.relevance import read_relevance


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_query_may_have_several_rows_and_a_row_several_ids(tmp_path):
    rows = [
        {"query": "cats", "relevant": ["a"], "grade": 2},
        {"query": "dogs", "relevant": ["b", "7"], "grade": 1},
        {"query": "cats", "relevant": ["b"], "grade": 0},
        {"query": "cats", "relevant": ["a"], "grade": 2},
    ]
    expected = {"cats": {"a": 2, "b": 0}, "dogs": {"b": 1, "7": 1}}
    assert read_relevance(write(tmp_path / "r.jsonl", rows)) == expected


def test_without_grades_all_ids_are_relevant(tmp_path):
    (tmp_path / "r.csv").write_text("query,relevant,note\ncats,1,\ncats,2,\n")
    assert read_relevance(tmp_path / "r.csv") == {"cats": {"1": 1, "2": 1}}


GOOD = {"query": "cats", "relevant": "a", "grade": 1}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"question": "x", "relevant": 1}], r"no column 'query'; the file has 'question', 'relevant' \(.*r.jsonl:1"),
        ([{"query": "x", "id": 1}], "no column 'relevant'"),
        ([GOOD, {**GOOD, "query": " "}], "empty cell .*2, column 'query'"),
        ([GOOD, {**GOOD, "relevant": None}], "empty cell .*2, column 'relevant'"),
        ([{**GOOD, "query": 3}], "3 is no text"),
        ([{**GOOD, "relevant": [["a"]]}], "no id, and no list of ids"),
        ([{**GOOD, "grade": "high"}], "'high' is no grade"),
        ([GOOD, {**GOOD, "relevant": "b", "grade": -1}], "-1 is no grade .*2, column 'grade'"),
        ([GOOD, {**GOOD, "grade": 3}], "'a' has the grades 1 and 3 for one query"),
    ],
)
def test_wrong_rows_are_named(rows, message, tmp_path):
    with pytest.raises(DataError, match=message):
        read_relevance(write(tmp_path / "r.jsonl", rows))
