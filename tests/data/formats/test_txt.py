"""A .txt file holds texts unless its first lines look like CoNLL; that is logged."""

from __future__ import annotations

import io
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.data.formats import conll, conllu, lines, txt
from bertkit.errors import BertkitError, DataError
from bertkit.recipe.records import Data
from tests.data.formats.test_conllu import UD

UTF16 = "the file looks like utf-16-le: --set data.encoding=utf-16-le"


def read_as(file_format, content):
    raw = content.encode() if isinstance(content, str) else content
    return list(file_format.read(io.BytesIO(raw), Data(), "a.txt"))


def reading(content):
    return read_as(txt, content)


@pytest.mark.parametrize(
    ("content", "file_format", "title"),
    [
        ("# newdoc\n\n" + UD, conllu, "CoNLL-U"),
        ("-DOCSTART-\n\na\nb\n", conll, "CoNLL columns"),
        (
            "\n-DOCSTART- -X- O\nEU I-ORG\n \nU.S.\tS-LOC \n" + "say O\n" * 500,
            conll,
            "CoNLL columns",
        ),
        ("EU B-ORG\nsays O\nthat\n", lines, None),
        ("EU ORG\nsays O\n", lines, None),
        ("O\nB-ORG\n", lines, None),
        ("one\ntwo words\n", lines, None),
        ("1\ta\tb\n", lines, None),
        ("# only a heading\n", lines, None),
    ],
)
def test_what_a_txt_file_holds(caplog, content, file_format, title):
    with caplog.at_level(logging.INFO, logger="bertkit"):
        assert reading(content) == read_as(file_format, content)
    assert caplog.messages == [f"a.txt is read as {title}; if it is text, --set data.format=lines"] * bool(title)


def test_only_the_first_fifty_lines_tell():
    tagged = "\n".join(["EU B-ORG"] * 50) + "\nthat\n"
    with pytest.raises(DataError, match="1 column here, 2 in line 1"):
        reading(tagged)
    assert reading("a\n" + tagged) == read_as(lines, "a\n" + tagged)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("", "the file is empty (a.txt) - add rows"),
        ("\n \n", "the file is empty (a.txt) - add rows"),
        ("a\nb\0\n", "a NUL character (a.txt:2) - remove it"),
        ("a text\n".encode("utf-16-le"), f"a NUL character (a.txt:1) - {UTF16}"),
        ("a\n" * 300 + "\0", "a NUL character (a.txt:301) - remove it"),
    ],
)
def test_faults(content, line):
    with pytest.raises(DataError) as caught:
        reading(content)
    assert str(caught.value) == line


@given(st.binary() | st.text().map(str.encode) | st.text("a1 \t\n#-O.").map(str.encode))
def test_anything_ends_in_rows_or_one_line(content):
    try:
        records = reading(content)
    except BertkitError as error:
        assert "\n" not in str(error)
    else:
        assert all(list(row) == list(records[0][1]) for _, row in records)
        assert sorted({line for line, _ in records}) == [line for line, _ in records]
