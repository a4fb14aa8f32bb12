"""Sentences: where they end, where they do not, and that no character is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.tokens.sentences import split_sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["It rains.", "It pours!", "Does it?", "Yes..."],
        ['"Go away!" she said.', "He went."],
        ['He said "no."', "Then he left."],
        ["He left (at last).", "She stayed."],
        ["Mr. and Mrs. Bell met Dr. J. R. Smith, e.g. on Monday.", "Nobody came."],
        ["The U.S. Army paid 3.50 dollars.", "It was No. 5, vol. 2, p. 7."],
        ["We left at 5 p.m.", "It was late."],
        ["It was I.", "Nobody else."],
        ["1. Introduction", "2. The end of 1990.", "5 people left."],
        ["Wait... what?", "Oh."],
        ["It ended in 1990.", "Then came 1991."],
        ["今天下雨。", "你来吗？", "「不来！」", "好"],
        ["¿Vienes?", "¡No!", "«Ya.»", "Él se fue."],
    ],
    ids=lambda sentences: sentences[0],
)
def test_sentences_are_found_in_running_text(sentences):
    gap = "" if sentences[0].endswith("。") else " "
    lines = [" ".join(sentences)] if gap else ["".join(sentences)]
    if sentences[0].startswith("1."):
        lines = [sentences[0], " ".join(sentences[1:])]
    assert split_sentences("\n".join(lines)) == sentences


def test_a_line_is_a_boundary_and_blank_ones_are_nothing():
    assert split_sentences("a heading\n\n  a line  \r\nwithout an end") == ["a heading", "a line", "without an end"]
    assert split_sentences("") == split_sentences(" \n\t\n") == []


def test_text_in_small_letters_has_sentences_too():
    assert split_sentences("the cat sat . the dog ran .") == ["the cat sat .", "the dog ran ."]
    assert split_sentences("The cat sat. the dog ran.") == ["The cat sat. the dog ran."]


def test_a_long_line_of_marks_costs_little():
    assert "".join(split_sentences("." * 100_000)) == "." * 100_000
    assert len(split_sentences("A. " * 10_000 + "Bcd. " * 10_000)) == 10_000


@given(st.text(alphabet=st.sampled_from("aB1.!?… \n\t\"')(」。！\u2028\x0b\x1c\u00a0é")) | st.text())
def test_no_character_is_lost_but_white_space(text):
    found = split_sentences(text)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(sentence == sentence.strip() != "" for sentence in found)
