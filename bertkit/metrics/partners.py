"""Ranks of the text that belongs to another among those of all rows: of vectors, of shared words, and by chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bertkit.metrics import Numbers

_MOST_ROWS = 10_000  # that are candidates of one another; more would take quadratic time
_BLOCK = 512  # anchors whose scores are in memory at a time

Score = Callable[[Any, Any], Any]
"""Scores of some anchors with some positives, given their row numbers: (anchors, positives)."""


def partner_ranks(rows: Sequence[Mapping[str, Any]], score: Score) -> Numbers:
    """Rank each row's positive among the different positives of the rows, 1 for the best: (rows,).

    What is a positive of the same anchor in another row is no candidate. Of more than 10,000 rows, each run of so many
    is ranked by itself.
    """
    ranks = [_rank_run(rows[start : start + _MOST_ROWS], start, score) for start in range(0, len(rows), _MOST_ROWS)]
    return np.concatenate(ranks)


def _rank_run(rows: Sequence[Mapping[str, Any]], start: int, score: Score) -> Numbers:
    # a text that is the positive of several rows is one candidate: that of the first
    first: dict[str, int] = {}
    own = np.array([first.setdefault(row["positive"], number) for number, row in enumerate(rows)])
    candidates = np.array(sorted(first.values()))
    column = np.searchsorted(candidates, own)  # of each row's own positive
    of_anchor: dict[str, set[int]] = {}
    for row, place in zip(rows, column.tolist(), strict=True):
        of_anchor.setdefault(row["anchor"], set()).add(place)
    ranks = []
    for begin in range(0, len(rows), _BLOCK):
        numbers = np.arange(begin, min(begin + _BLOCK, len(rows)))
        scores = np.asarray(score(start + numbers, start + candidates))
        right = scores[np.arange(len(numbers)), column[numbers]]
        better = scores > right[:, None]
        for line, number in enumerate(numbers.tolist()):
            better[line, list(of_anchor[rows[number]["anchor"]])] = False
        ranks.append(1 + better.sum(axis=1))
    return np.concatenate(ranks)


def chance_ranks(count: int) -> Numbers:
    """Draw the ranks that guessing would reach among so many candidates, the same ones every time: (count,)."""
    return np.random.default_rng(0).integers(1, min(count, _MOST_ROWS) + 1, size=count)


def word_ranks(rows: Sequence[Mapping[str, Any]]) -> tuple[Numbers, list[list[float]]]:
    """Rank positives by the words that they share with the anchor, rare ones weighing more (TF-IDF).

    Returns:
        the ranks (rows,), and the scores of each row's positive and negatives.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    counts = TfidfVectorizer(token_pattern=r"\w+", sublinear_tf=True)
    others = [[row["positive"], *row.get("negative", ())] for row in rows]
    try:
        counts.fit([row["anchor"] for row in rows] + [text for texts in others for text in texts])
    except ValueError:  # there is no word
        return np.full(len(rows), len(rows)), [[0.0] * len(texts) for texts in others]
    anchors = counts.transform([row["anchor"] for row in rows]).tocsr()
    read = counts.transform([text for texts in others for text in texts]).tocsr()
    starts = np.cumsum([0, *map(len, others)])
    positives = read[starts[:-1]]
    ranks = partner_ranks(rows, lambda one, other: (anchors[one] @ positives[other].T).toarray())
    lines = np.repeat(np.arange(len(rows)), np.diff(starts))
    shared = np.asarray(anchors[lines].multiply(read).sum(axis=1)).ravel()
    return ranks, [of_row.tolist() for of_row in np.split(shared, starts[1:-1])]
