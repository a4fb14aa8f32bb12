"""What a seed draws: the training items of a probe, those that choose its strength, and the labels of its control.

Rows are drawn whole. Of six words in the rows 0 0 1 1 1 2, a probe may learn from words 0, 1 and 5, those of rows 0 and
2, while words 2, 3 and 4 of row 1 choose its strength.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertkit.insight.probing.items import Control, ProbeItems
from bertkit.metrics import Numbers

_SHARE = 0.9  # of the training rows, that a probe learns from; the others choose its strength
_MOST_TUNING = 5000  # items


@dataclass(frozen=True)
class Draw:
    """The training items of one seed, by their numbers."""

    fitting: Numbers
    """In random order of their rows, whose items stay together."""
    tuning: Numbers
    """Items of other rows, which choose the strength."""


def draw_items(items: ProbeItems, most: int, seed: int) -> Draw:
    """Draw whole rows to learn from, and at most so many of their items; the other rows choose the strength."""
    rng = np.random.default_rng(seed)
    owners, first = np.unique(items.owners, return_index=True)
    ends = np.append(first[1:], len(items))
    order = rng.permutation(len(owners))
    count = min(max(1, round(_SHARE * len(owners))), len(owners) - 1)
    fitting, tuning = (
        np.concatenate([np.arange(first[row], ends[row]) for row in rows]) for rows in (order[:count], order[count:])
    )
    kept = np.sort(rng.permutation(len(fitting))[:most])
    return Draw(fitting[kept], tuning[:_MOST_TUNING])


def draw_test_items(items: ProbeItems, most: int) -> Numbers:
    """Return the items to score: those of random rows, as many whole ones as have at most so many items."""
    if len(items) <= most:
        return np.arange(len(items))
    owners, counts = np.unique(items.owners, return_counts=True)
    order = np.random.default_rng(0).permutation(len(owners))
    chosen = order[: max(1, int(np.searchsorted(np.cumsum(counts[order]), most, side="right")))]
    return np.flatnonzero(np.isin(items.owners, owners[chosen]))


def draw_control(
    labels: Numbers, groups: Sequence[str], scored: Numbers, scored_groups: Sequence[str], control: Control, seed: int
) -> tuple[Numbers, Numbers]:
    """Return the labels of the control task, of training items and of those to score.

    ``types`` gives each group, a word type, one label at random, with the probabilities that labels have in training; a
    probe can only know it by heart (Hewitt and Liang 2019). A text is seen once, so there is nothing of it to know by
    heart. ``shuffled`` therefore deals out the training labels anew within each group, or all of them where there are
    no groups, and keeps those to score: it tells what a probe scores that has learned the groups, and nothing else.
    """
    rng = np.random.default_rng([seed, 1])
    if control == "types":
        types = sorted({*groups, *scored_groups})
        drawn = dict(zip(types, rng.choice(labels, size=len(types)).tolist(), strict=True))
        return np.array([drawn[group] for group in groups]), np.array([drawn[group] for group in scored_groups])
    members = np.array(groups) if len(groups) else np.zeros(len(labels), dtype=np.int64)
    shuffled = labels.copy()
    for group in np.unique(members):
        own = np.flatnonzero(members == group)
        shuffled[own] = labels[rng.permutation(own)]
    return shuffled, scored


def most_frequent(labels: Numbers, groups: Sequence[str], test_groups: Sequence[str]) -> tuple[int, Numbers]:
    """Return the most frequent training label, and for each item to score that of its group."""
    majority = int(Counter(labels.tolist()).most_common(1)[0][0])
    counts: dict[str, Counter[int]] = {}
    for label, group in zip(labels.tolist(), groups, strict=False):
        counts.setdefault(group, Counter())[label] += 1
    best = {group: of_group.most_common(1)[0][0] for group, of_group in counts.items()}
    return majority, np.array([best.get(group, majority) for group in test_groups], dtype=np.int64)
