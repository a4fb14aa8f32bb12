"""Tokens per word, and unknown tokens, counted by hand."""

from __future__ import annotations

from bertkit.tokens.splitting import Splitting, find_words, tokens_per_word


def test_counts_are_those_by_hand():
    splitting = Splitting()
    splitting.add("an owl.", [5, 6, 7, 8], [(0, 2), (3, 5), (5, 6), (6, 7)], 1)
    splitting.add("ж a ж", [1, 9, 1], [(0, 1), (2, 3), (4, 5)], 1)
    assert (splitting.texts, splitting.words, splitting.tokens) == (2, 5, 7)
    assert splitting.fertility == 6 / 5
    assert splitting.coverage == 4 / 5
    assert splitting.unknown_rate == 2 / 7
    assert splitting.frequent_unknown() == [("ж", 2)]


def test_nothing_is_no_division_by_zero():
    empty = Splitting()
    empty.add("", [], [], None)
    assert (empty.fertility, empty.coverage, empty.unknown_rate) == (0, 0, 0)
    assert (find_words("..."), tokens_per_word("...", [(0, 3)])) == ([], [])
