"""A .txt file holds texts unless its first lines look like CoNLL; that is logged."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given

from bertkit.errors import DataError
from tests.data.formats.contents import TEXT_FAULTS, check_lines, lines_of_any_content, read_content
from tests.data.formats.test_conllu import UD


def reading(content):
    return read_content("txt", content, "a.txt")


@pytest.mark.parametrize(
    ("content", "file_format", "title"),
    [
        ("# newdoc\n\n" + UD, "conllu", "CoNLL-U"),
        ("-DOCSTART-\n\na\nb\n", "conll", "CoNLL columns"),
        (
            "\n-DOCSTART- -X- O\nEU I-ORG\n \nU.S.\tS-LOC \n" + "say O\n" * 500,
            "conll",
            "CoNLL columns",
        ),
        ("# id 0 domain=en\nEU _ _ B-ORG\nsays _ _ O\n", "conll", "CoNLL columns"),
        ("EU B-ORG\nsays O\nthat\n", "lines", None),
        ("EU ORG\nsays O\n", "lines", None),
        ("O\nB-ORG\n", "lines", None),
        ("one\ntwo words\n", "lines", None),
        ("1\ta\tb\n", "lines", None),
        ("# only a heading\n", "lines", None),
    ],
)
def test_what_a_txt_file_holds(caplog, content, file_format, title):
    with caplog.at_level(logging.INFO, logger="bertkit"):
        assert reading(content) == read_content(file_format, content, "a.txt")
    said = [message for message in caplog.messages if "comments" not in message]
    assert said == [f"a.txt is read as {title}; if it is text: --set data.format=lines"] * bool(title)


@pytest.mark.parametrize(
    ("content", "is_said"),
    [("text\tlabel\na b\t1\n\n", True), ("a\tb\n", False), ("a\tb\nc\n", False), ("a\nb\n", False)],
)
def test_lines_with_the_same_number_of_tabs_may_be_rows_of_a_table(caplog, content, is_said):
    with caplog.at_level(logging.INFO, logger="bertkit"):
        assert reading(content) == read_content("lines", content, "a.txt")
    said = "a.txt has the same number of tabs in each line; if they separate columns: --set data.format=tsv"
    assert caplog.messages == [said] * is_said


def test_only_the_first_fifty_lines_tell():
    tagged = "\n".join(["EU B-ORG"] * 50) + "\nthat\n"
    with pytest.raises(DataError, match="1 column, but 2 in line 1"):
        reading(tagged)
    assert reading("a\n" + tagged) == read_content("lines", "a\n" + tagged, "a.txt")


@pytest.mark.parametrize(("content", "line"), TEXT_FAULTS)
def test_faults(content, line):
    with pytest.raises(DataError) as caught:
        reading(content)
    assert str(caught.value) == line


@given(lines_of_any_content)
def test_anything_ends_in_rows_or_one_line(content):
    check_lines(reading, content)
