"""One text per line, blank ones too, except at the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.errors import DataError
from tests.data.formats.contents import TEXT_FAULTS, check_lines, lines_of_any_content, read_content


def reading(content, **options):
    return read_content("lines", content, "a.txt", **options)


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


@pytest.mark.parametrize(("content", "line"), TEXT_FAULTS)
def test_faults_of_text_lines(content, line):
    with pytest.raises(DataError) as caught:
        reading(content)
    assert str(caught.value) == line


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufeff"))))
def test_texts_are_read_back(written):
    written.append("the last")
    assert reading("\n".join(written)) == [(row, {"text": text}) for row, text in enumerate(written, 1)]


@given(lines_of_any_content)
def test_anything_ends_in_rows_or_one_line(content):
    check_lines(reading, content)
