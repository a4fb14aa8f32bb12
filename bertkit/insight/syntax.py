"""Syntactic heads of words, as CoNLL-U and the data sets of Universal Dependencies write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bertkit.errors import DataError
from bertkit.tokens.words import read_list

_NO_HEAD = frozenset({"_", "None", "", None})


def read_heads(value: object, count: int) -> list[int]:
    """Read the head of each word: the number of a word from 1, or 0 for the root and for words without a head.

    Multiword tokens, such as ``don't`` before ``do`` and ``n't``, have no head, and heads do not count them. Here they
    are counted, so that a head is a position in the row.

    Raises:
        DataError: not one number per word, or heads that go in a circle.
    """
    raw = read_column(value, count, "head")
    counted = [position for position, head in enumerate(raw, 1) if head not in _NO_HEAD]
    try:
        numbers = [int(raw[position - 1]) for position in counted]
    except (TypeError, ValueError):
        numbers = [-1]
    if not all(0 <= head <= len(counted) for head in numbers):
        what = f"{str(raw)[:60]} are not the heads of {count} words"
        raise DataError(what, "number words from 1; the root has head 0", column="head")
    heads = [0] * count
    for position, head in zip(counted, numbers, strict=True):
        heads[position - 1] = counted[head - 1] if head else 0
    depth_of(heads)
    return heads


def depth_of(heads: Sequence[int]) -> int:
    """Return how many words are on the longest way from a root to a word.

    Raises:
        DataError: heads go in a circle.

    >>> depth_of([2, 0, 2, 3])
    3
    """
    depths = [0] * (len(heads) + 1)
    for word in range(1, len(heads) + 1):
        # Up from the word to the first one whose depth is known; then all on that way are known, so each is walked
        # once.
        way = []
        while word and not depths[word]:
            way.append(word)
            if len(way) > len(heads):
                raise DataError("heads that go in a circle", "correct the row", column="head")
            word = heads[word - 1]
        for above in reversed(way):
            depths[above] = depths[heads[above - 1]] + 1
    return max(depths)


def read_column(value: object, count: int, column: str) -> list[Any]:
    """Read a column with one value per word.

    Raises:
        DataError: there are more or fewer.
    """
    values = read_list(value, column)
    if len(values) != count:
        raise DataError(f"{count} words but {len(values)} values", "write one value per word", column=column)
    return values
