"""One text per line, blank ones too, except at the end."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.data.formats import lines
from bertkit.errors import BertkitError, DataError
from bertkit.recipe.records import Data

UTF16 = "the file looks like utf-16-le: --set data.encoding=utf-16-le"


def reading(content, **options):
    raw = content.encode() if isinstance(content, str) else content
    return list(lines.read(io.BytesIO(raw), Data(**options), "a.txt"))


def test_one_text_per_line():
    assert reading("\ufeffone text\r\n\n  two, \"texts\"\t\n \nx") == [
        (1, {"text": "one text"}),
        (2, {"text": ""}),
        (3, {"text": '  two, "texts"\t'}),
        (4, {"text": " "}),
        (5, {"text": "x"}),
    ]  # fmt: skip
    assert reading("a\n\nb\n\n") == reading("a\n\nb\n \n\n") == reading("a\n\nb")
    assert reading("a\n", columns={"text": "sentence"}) == [(1, {"sentence": "a"})]
    assert reading("a\n", columns={"text": ["one", "two"]}) == [(1, {"text": "a"})]


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
def test_faults_of_text_lines(content, line):
    with pytest.raises(DataError) as caught:
        reading(content)
    assert str(caught.value) == line


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufeff"))))
def test_texts_are_read_back(written):
    written.append("the last")
    assert reading("\n".join(written)) == [(row, {"text": text}) for row, text in enumerate(written, 1)]


@given(st.binary() | st.text().map(str.encode) | st.text("a1 \t\n#-O.").map(str.encode))
def test_anything_ends_in_rows_or_one_line(content):
    try:
        records = reading(content)
    except BertkitError as error:
        assert "\n" not in str(error)
    else:
        assert all(list(row) == list(records[0][1]) for _, row in records)
        assert sorted({line for line, _ in records}) == [line for line, _ in records]
