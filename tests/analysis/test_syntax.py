"""Syntactic heads as files have them, with multiword tokens, and the depth of trees."""

from __future__ import annotations

import pytest

from bertkit.analysis.syntax import compute_depth, parse_row, read_heads
from bertkit.errors import DataError


@pytest.mark.parametrize(("heads", "depth"), [([0], 1), ([2, 3, 0, 6, 6, 3], 3), ([0, 1, 2, 3], 4), ([0, 0], 1)])
def test_depths(heads, depth):
    assert compute_depth(heads) == depth


def test_heads_are_positions_where_multiword_tokens_have_none():
    """I don't do n't go: the heads count I, do, n't and go."""
    assert read_heads(["4", "None", "4", "4", "0"], 5) == [5, 0, 5, 5, 0]
    assert read_heads(["_", "_"], 2) == [0, 0]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (["0"], "2 words but 1 values"),
        (["0", "x"], "are not the heads of 2 words"),
        (["0", "3"], "are not the heads of 2 words"),
        (["2", "1"], "the heads form a cycle"),
        (["0", "2"], "the heads form a cycle"),
        (3, "is not a list"),
    ],
)
def test_wrong_heads_are_refused(value, message):
    with pytest.raises(DataError, match=message):
        read_heads(value, 2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"body": "a"}, "no column 'text'"),
        ({"text": 3}, "not a text"),
        ({"tokens": ["a"], "head": ["1", "2"], "deprel": ["x"]}, "1 words but 2 values"),
        ({"tokens": ["a"], "head": ["one"], "deprel": ["x"]}, "are not the heads of 1 words"),
        ({"tokens": ["a"], "head": ["0"], "deprel": []}, "1 words but 0 values"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_rows_that_do_not_fit_are_refused(values, message):
    with pytest.raises(DataError, match=message):
        parse_row((7, values), "text", "f")
