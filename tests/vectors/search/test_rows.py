"""Rows of files that become rows of an index, and all that can be wrong with them."""

from __future__ import annotations

import re

import pytest

from bertkit.errors import DataError, UsageError
from bertkit.recipe import load_recipe
from bertkit.vectors.search.index import Index, Manifest
from bertkit.vectors.search.rows import TextRows, read_queries
from tests.vectors.search.test_index import chunks_of, make_vectors


def write(folder, text, name="rows.csv"):
    (folder / name).write_text(text)
    return name


def test_rows_keep_their_columns_and_get_ids(here):
    rows = TextRows.open(write(here, "sentence,label\none,1\ntwo,0\n"), "sentence")
    assert [row.record for row in rows] == [
        {"id": 0, "text": "one", "label": "1"},
        {"id": 1, "text": "two", "label": "0"},
    ]
    rows = TextRows.open(write(here, "id,text\nb,one\na,\nc,three\n"), skip_empty=True)
    assert [(row.line, row.record["id"]) for row in rows] == [(2, "b"), (4, "c")]
    assert rows.check()[0] == 2


@pytest.mark.parametrize(
    "text, message",
    [
        ("id,text\na,one\nb,\n", r"no text \(rows.csv:3, column 'text'\) - fill it in, or --skip-empty"),
        ("id,text\na,one\n,two\n", r"no id \(rows.csv:3, column 'id'\)"),
        ("id,text\na,one\nb,two\na,three\n", r"line 2 has the id 'a' too \(rows.csv:4, column 'id'\)"),
        ("id,sentence\na,one\n", r"no column 'text' \(rows.csv\) - there are: id, sentence; name it with --column"),
        ("id,text,score\na,one,1\n", r"results have a column of the same name \(rows.csv, column 'score'\) - rename"),
        ("id,text\n", r"no rows \(rows.csv\)"),
    ],
)
def test_faults_have_their_place(text, message, here):
    with pytest.raises(DataError) as refused:
        TextRows.open(write(here, text)).check()
    assert re.search(message, str(refused.value))


def test_a_file_is_read_as_the_settings_say(here):
    data = load_recipe("classify", {"data.delimiter": ";", "data.encoding": "latin-1", "data.limit": 2}).data
    (here / "rows.csv").write_bytes("id;text\na;d\xe9j\xe0\nb;two\nc;three\n".encode("latin-1"))
    rows = TextRows.open(here / "rows.csv", data=data)
    assert [row.record for row in rows] == [{"id": "a", "text": "déjà"}, {"id": "b", "text": "two"}]
    assert [text for _, text in read_queries(here / "rows.csv", data=data)] == ["déjà", "two"]
    plain = TextRows.open(here / "rows.csv", data=load_recipe("classify").data)
    assert rows.fingerprint() != plain.fingerprint() == TextRows.open(here / "rows.csv").fingerprint()


def test_ids_of_the_index_are_refused(here):
    index = Index.create(here / "index", Manifest(16), chunks_of(make_vectors(5)))
    rows = TextRows.open(write(here, "id,text\n9,one\n3,two\n4,three\n"))
    with pytest.raises(DataError, match=r"id '3' \(and 1 more ids\)") as refused:
        rows.check(index)
    assert refused.value.row == 3


def test_standard_input_cannot_be_read_twice():
    with pytest.raises(UsageError, match="standard input only once"):
        TextRows.open("-")


def test_queries_have_their_ids_and_may_have_any_column(here):
    assert list(read_queries(write(here, "text,score\none,3\n"))) == [({"query": "one"}, "one")]
    assert list(read_queries(write(here, "id,q\n7,one\n"), "q")) == [({"query": "one", "query_id": "7"}, "one")]
