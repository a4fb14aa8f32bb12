"""Several rankings into one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

Item = TypeVar("Item", bound=Hashable)

_CONSTANT = 60


def fuse_rankings(rankings: Iterable[Sequence[Item]]) -> list[tuple[Item, float]]:
    """Rank what several rankings hold by reciprocal rank fusion (Cormack, Clarke and Büttcher 2009).

    An item's score is the sum of 1 / (60 + rank) over the rankings that it is in. It needs no scores, so it
    joins rankings whose scores have nothing in common. Of equal scores, the item that was met first comes first.

    >>> [item for item, _ in fuse_rankings(["abc", "cd"])]
    ['c', 'a', 'b', 'd']
    """
    scores: dict[Item, float] = defaultdict(float)
    for ranking in rankings:
        for rank, item in enumerate(ranking, 1):
            scores[item] += 1 / (_CONSTANT + rank)
    return sorted(scores.items(), key=lambda pair: -pair[1])
