"""Items from columns of Universal Dependencies: arcs, their relations, and features of words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bertkit.errors import DataError
from bertkit.insight.probing.items import ProbeItems
from bertkit.recipe import Row
from bertkit.tokens.words import read_list

ARC, NO_ARC = "arc", "no arc"

_NO_HEAD = frozenset({"_", "None", "", None})  # as CoNLL-U and the hub write it


def read_heads(value: Any, count: int) -> list[int]:
    """Read the head of each word: the number of a word from 1, or 0 for the root and for words without a head.

    Multiword tokens, such as ``don't`` before ``do`` and ``n't``, have no head, and heads do not count them. Here they
    are counted, so that a head is a position in the row.

    Raises:
        DataError: not one number per word, or heads that go in a circle.
    """
    raw = _read_column(value, count, "head")
    counted = [position for position, head in enumerate(raw, 1) if head not in _NO_HEAD]
    try:
        given = [int(raw[position - 1]) for position in counted]
    except (TypeError, ValueError):
        given = [-1]
    if not all(0 <= head <= len(counted) for head in given):
        what = f"{str(raw)[:60]} are not the heads of {count} words"
        raise DataError(what, "number words from 1; the root has head 0", column="head")
    heads = [0] * count
    for position, head in zip(counted, given, strict=True):
        heads[position - 1] = counted[head - 1] if head else 0
    depth_of(heads)
    return heads


def _read_column(value: Any, count: int, column: str) -> list[Any]:
    values = read_list(value, column)
    if len(values) != count:
        raise DataError(f"{count} words but {len(values)} values", "write one value per word", column=column)
    return values


def _read_relations(value: Any, count: int) -> list[str]:
    return [str(relation) for relation in _read_column(value, count, "deprel")]


def _read_features(value: Any, count: int) -> list[dict[str, str]]:
    """Read features as CoNLL-U writes them, ``Number=Sing|Person=3``; ``_`` stands for none."""
    pairs = [str(text or "_").split("|") for text in _read_column(value, count, "feats")]
    return [dict(pair.split("=", 1) for pair in of_word if "=" in pair) for of_word in pairs]


READ: Mapping[str, Callable[[Any, int], list[Any]]] = {
    "head": read_heads,
    "deprel": _read_relations,
    "feats": _read_features,
}
"""Column -> what reads its value in a row with so many words."""


def depth_of(heads: Sequence[int]) -> int:
    """Return how many words are on the longest way from a root to a word.

    Raises:
        DataError: heads go in a circle.

    >>> depth_of([2, 0, 2, 3])
    3
    """
    depths = [0] * (len(heads) + 1)
    for word in range(1, len(heads) + 1):
        way = []
        while word and not depths[word]:
            way.append(word)
            if len(way) > len(heads):
                raise DataError("heads that go in a circle", "correct the row", column="head")
            word = heads[word - 1]
        for above in reversed(way):
            depths[above] = depths[heads[above - 1]] + 1
    return max(depths)


def relations(rows: Sequence[Row], seed: int) -> ProbeItems:
    """Return each word with its head; the label is their relation, without its subtype."""
    found = [
        (number, word, head - 1, row["deprel"][word].partition(":")[0])
        for number, row in enumerate(rows)
        for word, head in enumerate(row["head"])
        if head
    ]
    return _pairs(rows, found)


def arcs(rows: Sequence[Row], seed: int) -> ProbeItems:
    """Return words with their heads, and as many pairs of words without an arc, at the same distances.

    The other pair of an arc is from the same row, and its second word stands as far from its first, on the same side:
    so neither distance nor direction tells an arc. An arc without such a pair is left out.
    """
    rng = np.random.default_rng(seed)
    found = []
    for number, row in enumerate(rows):
        heads = row["head"]
        for word, head in enumerate(heads):
            distance = head - 1 - word
            others = [
                other
                for other in range(max(0, -distance), min(len(heads), len(heads) - distance))
                if heads[other] - 1 != other + distance
            ]
            if head and others:
                other = int(rng.choice(others))
                found.append((number, word, head - 1, ARC))
                found.append((number, other, other + distance, NO_ARC))
    return _pairs(rows, found)


def feature(name: str, rows: Sequence[Row], seed: int) -> ProbeItems:
    """Return the words that have a feature, with its value."""
    found = [
        (number, word, features[name])
        for number, row in enumerate(rows)
        for word, features in enumerate(row["feats"])
        if name in features
    ]
    return ProbeItems(
        rows=_words_of(rows),
        unit="word",
        owners=np.array([number for number, _, _ in found], dtype=np.int64),
        addresses=np.array([(number, word) for number, word, _ in found], dtype=np.int64).reshape(-1, 1, 2),
        labels=[value for _, _, value in found],
        groups=[rows[number]["words"][word].lower() for number, word, _ in found],
    )


def _pairs(rows: Sequence[Row], found: Sequence[tuple[int, int, int, str]]) -> ProbeItems:
    """Return pairs of a row, a word, another word and a label as items of an edge probe."""
    addresses = [((number, word), (number, other)) for number, word, other, _ in found]
    return ProbeItems(
        rows=_words_of(rows),
        unit="word",
        owners=np.array([number for number, *_ in found], dtype=np.int64),
        addresses=np.array(addresses, dtype=np.int64).reshape(-1, 2, 2),
        labels=[label for *_, label in found],
        groups=[rows[number]["words"][word].lower() for number, word, *_ in found],
        combination="edge",
    )


def _words_of(rows: Sequence[Row]) -> list[Row]:
    return [{"tokens": row["words"]} for row in rows]
