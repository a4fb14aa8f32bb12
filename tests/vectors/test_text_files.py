"""Files of texts: their rows, ids, columns and parts, and the vectors of their rows."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bertkit.errors import DataError, UsageError
from bertkit.recipe import DataConfig
from bertkit.vectors import text_files
from bertkit.vectors.text_files import TextFile, TextRow, TextSource, VectorSource, read_row_parts, read_text_rows
from bertkit.vectors.units import UNITS
from tests.conftest import write_csv, write_jsonl

VECTORS = np.arange(12, dtype=np.float32).reshape(4, 3)


def read(file, unit="text", **data):
    parts = list(read_row_parts(TextSource(file, data=DataConfig(**data)), UNITS[unit]))
    return [pair for part in parts for pair in zip(part.ids, part.items, strict=True)]


def test_a_row_has_its_own_id_or_its_number(tmp_path):
    rows = write_jsonl(tmp_path / "a.jsonl", [{"id": "x", "text": "one"}, {"id": None, "text": "two"}])
    assert read(rows) == [("x", "one"), (1, "two")]
    named = write_jsonl(tmp_path / "b.jsonl", [{"key": 5, "body": "one"}])
    assert read(named, columns={"text": "body", "id": "key"}) == [(5, "one")]


def test_rows_come_in_parts_of_so_many_rows_or_characters(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "_ROWS", 3)
    file = write_jsonl(tmp_path / "a.jsonl", [{"text": "word"}] * 4 + [{"text": "x" * 200_000}] * 2)
    for unit, sizes in (("text", [3, 3]), ("token", [3, 2, 1])):
        parts = list(read_row_parts(TextSource(file), UNITS[unit]))
        assert [len(part.ids) for part in parts] == sizes
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
    with pytest.raises(DataError, match=r"there are 'Text', 'stars' \(.*a.jsonl\) - add --column Text$"):
        read(file)


def test_rows_without_text_may_be_dropped_and_a_limit_set(tmp_path):
    file = write_jsonl(tmp_path / "a.jsonl", [{"text": "one"}, {"text": ""}, {"text": "two"}, {"text": "three"}])
    assert read(file, empty_text="drop", limit=3) == [(0, "one"), (2, "two")]


def test_a_row_without_a_value_has_an_empty_text():
    records = [(2, {"id": 7, "review": " Good. "}), (3, {"id": 8, "review": None})]
    rows = list(read_text_rows(records, "review", "d.csv"))
    assert rows == [TextRow(2, records[0][1], " Good. "), TextRow(3, records[1][1], "")]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"reviews": "a"}, "no column 'review'.*--column"),
        ({"review": 1.5}, "not a text: '1.5'.*d.csv:2"),
    ],
)
def test_a_row_without_the_column_or_with_something_else_there_is_refused(record, message):
    with pytest.raises(DataError, match=message):
        list(read_text_rows([(2, record)], "review", "d.csv"))


def test_texts_are_read_twice_and_a_file_that_changes_is_noticed(tmp_path):
    file = write_csv(tmp_path / "a.csv", [{"body": " one "}, {"body": ""}])
    texts = TextFile(file, "body")
    assert [(row.line, row.text) for row in texts] == [row[:1] + row[2:] for row in texts] == [(2, "one"), (3, "")]
    write_csv(file, [{"body": "one"}, {"body": "two"}])
    with pytest.raises(DataError, match="changed while it was read"):
        list(texts)


@pytest.mark.parametrize(
    ("row", "message"), [({"txt": "a"}, "no column 'text'.*did you mean txt"), ({"text": 3}, "not a text: '3'.*:1")]
)
def test_a_column_without_texts_is_refused(row, message, tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=message):
        list(TextFile(file))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (VectorSource(), "no vectors"),
        (VectorSource("demo", ("a.npy",)), "--model and --vectors"),
        (VectorSource(None, ("a.npy",), "query"), "a prompt without --model"),
    ],
)
def test_vectors_come_from_one_place(source, message):
    with pytest.raises(UsageError, match=message):
        _ = source.embedder


def test_standard_input_is_refused():
    with pytest.raises(UsageError, match="standard input only once"):
        TextFile.open("-")


def test_vectors_of_several_files_are_chosen_by_row(tmp_path):
    files = (tmp_path / "a.npy", tmp_path / "b.npy")
    for number, file in enumerate(files):
        np.save(file, VECTORS + 100 * number)
    chosen = VectorSource(files=files).read([], np.array([3, 4]), [4, 4])
    np.testing.assert_array_equal(chosen, [VECTORS[3], VECTORS[0] + 100])
