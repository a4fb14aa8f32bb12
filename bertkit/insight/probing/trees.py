"""Items from columns of Universal Dependencies: arcs, their relations, and features of words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bertkit.insight.probing.items import ProbeItems, one_per_word
from bertkit.insight.syntax import read_column, read_heads
from bertkit.recipe import Row

ARC, NO_ARC = "arc", "no arc"


def _read_features(value: object, count: int) -> list[dict[str, str]]:
    """Read features as CoNLL-U writes them, ``Number=Sing|Person=3``; ``_`` stands for none."""
    pairs = [str(text or "_").split("|") for text in read_column(value, count, "feats")]
    return [dict(pair.split("=", 1) for pair in of_word if "=" in pair) for of_word in pairs]


READ: Mapping[str, Callable[[Any, int], list[Any]]] = {
    "head": read_heads,
    "deprel": lambda value, count: list(map(str, read_column(value, count, "deprel"))),
    "feats": _read_features,
}
"""Column -> what reads its value in a row with so many words."""


def relations(rows: Sequence[Row], seed: int) -> ProbeItems:
    """Return each word with its head; the label is their relation, without its subtype."""
    pairs = [
        (number, word, head - 1, row["deprel"][word].partition(":")[0])
        for number, row in enumerate(rows)
        for word, head in enumerate(row["head"])
        if head
    ]
    return _pairs(rows, pairs)


def arcs(rows: Sequence[Row], seed: int) -> ProbeItems:
    """Return words with their heads, and as many pairs of words without an arc, at the same distances.

    The other pair of an arc is from the same row, and its second word stands as far from its first, on the same side:
    so neither distance nor direction tells an arc. An arc without such a pair is left out.
    """
    rng = np.random.default_rng(seed)
    pairs = []
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
                pairs.append((number, word, head - 1, ARC))
                pairs.append((number, other, other + distance, NO_ARC))
    return _pairs(rows, pairs)


def feature(name: str, rows: Sequence[Row], seed: int) -> ProbeItems:
    """Return the words that have a feature, with its value."""
    words = [
        (number, word, features[name])
        for number, row in enumerate(rows)
        for word, features in enumerate(row["feats"])
        if name in features
    ]
    return one_per_word([row["words"] for row in rows], [word[:2] for word in words], [value for *_, value in words])


def _pairs(rows: Sequence[Row], pairs: Sequence[tuple[int, int, int, str]]) -> ProbeItems:
    """Return pairs of a row, a word, another word and a label as items of an edge probe."""
    places = [((number, word), (number, other)) for number, word, other, _ in pairs]
    return one_per_word([row["words"] for row in rows], places, [label for *_, label in pairs], "edge")
