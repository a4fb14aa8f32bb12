"""Hard negatives: texts of others that vectors hold for nearly as similar to an anchor as its positive is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bertkit.progress import log
from bertkit.storage.columns import Numbers
from bertkit.tokens.feature_cache import add_values
from bertkit.tokens.features import Features

# whose positives are candidates of one another; more would take quadratic time
_MOST_ROWS = 50_000
_BLOCK = 512  # anchors whose scores are in memory at a time


def mine_negatives(vectors: Numbers, texts: Sequence[Sequence[int]], count: int, margin: float) -> list[list[int]]:
    """Find the rows whose positives are the hardest negatives of each row.

    A candidate that is nearly as similar as the positive, or more, may well be right. So its score has to be lower by a
    share of the positive's (Moreira et al. 2024, section 3.2).

    Args:
        vectors: of the anchor and the positive of each row, of length 1: (rows, 2, dimension).
        texts: numbers of each row's texts, those of anchor and positive first.
        count: negatives per row, at most.
        margin: that share.

    Returns:
        for each row the numbers of at most `count` rows, the hardest first.
    """
    negatives = []
    for start in range(0, len(texts), _MOST_ROWS):
        run = slice(start, start + _MOST_ROWS)
        negatives += [[start + row for row in rows] for rows in _mine_run(vectors[run], texts[run], count, margin)]
    return negatives


def add_negatives(features: Features, mined: Sequence[Sequence[int]]) -> None:
    """Add the positives of other rows to the texts of each feature."""
    log.info(f"mined {sum(map(len, mined)):,} hard negatives; {sum(not rows for rows in mined):,} rows have none")
    for name in [name for name in ("token_type_ids", "texts", "input_ids") if name in features[0]]:
        positives = [feature[name][1] for feature in features]
        longer = [
            [*feature[name], *(positives[row] for row in rows)] for feature, rows in zip(features, mined, strict=True)
        ]
        add_values(features, name, longer)


def _mine_run(vectors: Numbers, texts: Sequence[Sequence[int]], count: int, margin: float) -> list[list[int]]:
    # a text that is the positive of several rows is one candidate: that of the first
    first: dict[int, int] = {}
    own = np.array([first.setdefault(numbers[1], row) for row, numbers in enumerate(texts)])
    candidates = np.array(sorted(first.values()))
    column, column_of = np.searchsorted(candidates, own), {texts[row][1]: at for at, row in enumerate(candidates)}
    excluded: dict[int, set[int]] = {}  # of an anchor: its positives, and itself
    for numbers in texts:
        known = excluded.setdefault(numbers[0], set())
        known.update(column_of[number] for number in numbers if number in column_of)
    mined: list[list[int]] = []
    for begin in range(0, len(texts), _BLOCK):
        rows = np.arange(begin, min(begin + _BLOCK, len(texts)))
        scores = vectors[rows, 0] @ vectors[candidates, 1].T
        right = scores[np.arange(len(rows)), column[rows]]
        scores[scores > (right - margin * np.abs(right))[:, None]] = -np.inf
        for line, row in enumerate(rows.tolist()):
            scores[line, list(excluded[texts[row][0]])] = -np.inf
        best = np.argsort(-scores, axis=1, kind="stable")[:, :count]
        mined += [
            [int(candidates[at]) for at in line if np.isfinite(scores[number, at])] for number, line in enumerate(best)
        ]
    return mined
