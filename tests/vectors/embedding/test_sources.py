"""Rows to embed: their ids, their columns, and their parts."""

from __future__ import annotations

import pytest

from bertkit.errors import DataError
from bertkit.recipe import Data
from bertkit.vectors.embedding import sources
from bertkit.vectors.embedding.sources import TextSource, read_row_parts
from bertkit.vectors.embedding.units import UNITS
from tests.conftest import write_jsonl


def read(file, unit="text", **data):
    parts = list(read_row_parts(TextSource(file, data=Data(**data)), UNITS[unit]))
    return [pair for part in parts for pair in zip(part.ids, part.items, strict=True)]


def test_a_row_has_its_own_id_or_its_number(tmp_path):
    rows = write_jsonl(tmp_path / "a.jsonl", [{"id": "x", "text": "one"}, {"id": None, "text": "two"}])
    assert read(rows) == [("x", "one"), (1, "two")]
    named = write_jsonl(tmp_path / "b.jsonl", [{"key": 5, "body": "one"}])
    assert read(named, columns={"text": "body", "id": "key"}) == [(5, "one")]


def test_rows_come_in_parts_of_so_many_rows_or_characters(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_ROWS", 3)
    file = write_jsonl(tmp_path / "a.jsonl", [{"text": "word"}] * 4 + [{"text": "x" * 200_000}] * 2)
    for unit, sizes in (("text", [3, 3]), ("token", [3, 2, 1])):
        parts = list(read_row_parts(TextSource(file), UNITS[unit]))
        assert [len(part.ids) for part in parts] == sizes
        assert [part.number for part in parts] == list(range(len(sizes)))
    assert len({part.digest() for part in parts}) == len(parts)


@pytest.mark.parametrize(
    ("unit", "row", "item"),
    [
        ("word", {"tokens": ["a", "b"]}, ["a", "b"]),
        ("word", {"text": "Mr. O'Hara"}, ["Mr", ".", "O'Hara"]),
        ("target", {"tokens": ["a", "b"], "target": 1}, (["a", "b"], 1)),
        ("target", {"text": "see the film", "target": "4:7"}, (["see", "the", "film"], 1)),
    ],
)
def test_words_are_given_or_found_in_the_text(tmp_path, unit, row, item):
    assert read(write_jsonl(tmp_path / "a.jsonl", [row]), unit) == [(0, item)]


def test_a_named_column_of_texts_wins_over_words(tmp_path):
    file = write_jsonl(tmp_path / "a.jsonl", [{"tokens": ["a", "b"], "body": "c d"}])
    assert read(file, "word", columns={"text": "body"}) == [(0, ["c", "d"])]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": " "}, r"no text \(.*a.jsonl:1, column 'text'\) - fill it in"),
        ({"text": 5}, r"'5' is not text \(.*a.jsonl:1, column 'text'\)"),
        ({"text": None}, r"'None' is not text"),
    ],
)
def test_a_row_without_text_is_named(tmp_path, row, message):
    file = write_jsonl(tmp_path / "a.jsonl", [row])
    with pytest.raises(DataError, match=message):
        read(file)


def test_a_missing_column_is_answered_by_its_option(tmp_path):
    file = write_jsonl(tmp_path / "a.jsonl", [{"Text": "one", "stars": 5}])
    with pytest.raises(DataError, match=r"there are 'Text', 'stars' \(.*a.jsonl\) - --column Text$"):
        read(file)


def test_rows_without_text_may_be_dropped_and_a_limit_set(tmp_path):
    file = write_jsonl(tmp_path / "a.jsonl", [{"text": "one"}, {"text": ""}, {"text": "two"}, {"text": "three"}])
    assert read(file, empty_text="drop", limit=3) == [(0, "one"), (2, "two")]
