"""Documents to passages, as files."""

from __future__ import annotations

import json
import logging

import pytest

from bertkit.errors import DataError, UsageError
from bertkit.vectors.embedder import Embedder
from bertkit.vectors.search.rows import TextRows
from bertkit.workflows.search import split_passages

DOCUMENTS = [
    {"id": "a", "title": "Films", "text": "The film was good. A book is so dull.\n\nThis song was lovely and fine."},
    {"id": "7", "title": "", "text": "A song."},
]
SETTINGS = {"tokens": 13, "overlap": 0}


@pytest.fixture
def documents(here):
    (here / "documents.jsonl").write_text("".join(json.dumps(row) + "\n" for row in DOCUMENTS))
    return "documents.jsonl"


def split(file, tiny_model, **settings):
    rows = TextRows.open(file, passages={**SETTINGS, **settings})
    return split_passages(rows, Embedder(str(tiny_model)))


def test_a_passage_says_where_it_is_in_its_document(documents, tiny_model, caplog):
    caplog.set_level(logging.INFO, "bertkit")
    records = list(split(documents, tiny_model))
    texts = {row["id"]: row["text"] for row in DOCUMENTS}
    for record in records:
        assert record["text"] == texts[record["document"]][record["start"] : record["end"]]
        assert record["file"] == documents
    assert [record["id"] for record in records] == ["a#1", "a#2", "7#1"]
    assert records[0] | {"text": ""} == {
        "id": "a#1",
        "text": "",
        "document": "a",
        "file": documents,
        "start": 0,
        "end": 37,
        "title": "Films",
    }
    assert caplog.messages == ["passages: 3, of texts: 2; 100% of the text reaches the model"]


def test_a_text_file_is_one_document(here, tiny_model):
    (here / "book.txt").write_bytes(b"A film.\r\nA good book.\r\n\r\nThe song was dull and so very weak.\r\n")
    records = list(split("book.txt", tiny_model))
    text = (here / "book.txt").read_text()  # with the line ends of Python
    assert [record["id"] for record in records] == ["book.txt#1", "book.txt#2"]
    assert [text[record["start"] : record["end"]] for record in records] == [record["text"] for record in records]
    assert records[0]["text"] == "A film.\nA good book."


def test_impossible_settings_and_columns_are_refused(documents, tiny_model, here):
    with pytest.raises(UsageError, match="reads at most 64"):
        split(documents, tiny_model, tokens=65)
    (here / "clash.csv").write_text("text,start\nA film.,3\n")
    with pytest.raises(DataError, match=r"results have a column of the same name .*clash.csv, column 'start'"):
        list(split("clash.csv", tiny_model))
    (here / "empty.txt").write_text("\n \n")
    with pytest.raises(DataError):
        list(split("empty.txt", tiny_model))
