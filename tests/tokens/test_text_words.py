"""Words of a text: where it is split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.tokens.text_words import split_text


@given(
    st.text(st.sampled_from("a1 .-'/東ไทน้ำ\u0301\u200d👩") | st.characters(exclude_categories=["Cs"])), st.booleans()
)
def test_a_split_text_loses_no_visible_character(text, at_punctuation):
    spans = split_text(text, at_punctuation=at_punctuation)
    covered = [index for start, end in spans for index in range(start, end)]
    assert covered == sorted(set(covered))
    assert all(start < end for start, end in spans)
    assert {index for index, char in enumerate(text) if not char.isspace()} == set(covered)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Rock-'n'-roll, e.g. AT&T's.", ["Rock", "-", "'", "n", "'", "-", "roll", ",", "e.g.", "AT&T's", "."]),
        ("$3.50 or 1,000/2?", ["$", "3.50", "or", "1,000/2", "?"]),
        ("me@x.org it’s", ["me@x.org", "it’s"]),
        ("e\u0301te\u0301 का", ["e\u0301te\u0301", "का"]),
        ("so\u00adft \u200b", ["so\u00adft", "\u200b"]),
        ("\u202eעברית\u202c!", ["\u202eעברית\u202c", "!"]),
        (" \u00a0\n", []),
    ],
)
def test_where_a_text_is_split(text, words):
    assert [text[start:end] for start, end in split_text(text)] == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("東京へ行く", ["東", "京", "へ", "行", "く"]),
        ("ภาษาน้ำ", ["ภ", "า", "ษ", "า", "น้ำ"]),
        ("iPhone東京-x", ["iPhone", "東", "京", "-", "x"]),
        ("မြန်မာ ខ្មែរ ລາວ", ["မြ", "န်", "မာ", "ខ្", "មែ", "រ", "ລ", "າ", "ວ"]),
        ("서울에서", ["서울에서"]),
    ],
)
def test_scripts_without_spaces_are_split_into_grapheme_clusters(text, words):
    assert [text[start:end] for start, end in split_text(text)] == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fever/chills-non", ["fever", "/", "chills", "-", "non"]),
        ("10mg B12 x2y", ["10", "mg", "B", "12", "x", "2", "y"]),
        ("3.5 1,000 don't U.N. e.g. it’s", ["3.5", "1,000", "don't", "U.N.", "e.g.", "it’s"]),
        ("no.Denies a_b AT&T", ["no", ".", "Denies", "a", "_", "b", "AT", "&", "T"]),
    ],
)
def test_marks_inside_words_are_words_if_a_recipe_asks_for_it(text, words):
    assert [text[start:end] for start, end in split_text(text, at_punctuation=True)] == words
