"""What is good, doubtful or wrong about the rows of a data set, each with rows that show it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from bertkit.data.rows import Place, Split

EXAMPLES = 3

Level = Literal["good", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One line of a check: how bad it is, what it is about, and some rows that show it."""

    level: Level
    group: str
    """The heading that it stands under, such as ``labels``."""
    name: str
    """What it is, for programs: it stays the same whatever the text says."""
    text: str
    places: tuple[Place, ...] = ()
    count: int = 0
    """The number of such rows, of which `places` are the first."""


def places_of(split: Split, indices: Iterable[int]) -> tuple[Place, ...]:
    """Return where the first of some rows of a split are."""
    return tuple(map(split.place, islice(indices, EXAMPLES)))


def pairs_of(pairs: Sequence[tuple[Place, Place]]) -> tuple[Place, ...]:
    """Return the first row with the one that it repeats, and another such row."""
    return tuple(dict.fromkeys([*(place for pair in pairs[:1] for place in pair), *(row for row, _ in pairs[1:2])]))


def level_of(share: float, *, warn: float, fail: float = 2.0) -> Level:
    """Return ``fail`` for a share of at least `fail`, else ``warn`` for one of at least `warn`, else ``good``.

    >>> level_of(0.0, warn=0.01), level_of(0.05, warn=0.01, fail=0.1), level_of(0.5, warn=0.01, fail=0.1)
    ('good', 'warn', 'fail')
    """
    return "fail" if share >= fail else "warn" if share >= warn else "good"
