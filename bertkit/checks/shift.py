"""Splits that differ: a classifier of words that tells the rows of one from those of another."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from bertkit.checks import Finding, level_of
from bertkit.checks.predictable import measure_words
from bertkit.checks.texts import read_texts
from bertkit.data.columns import Columns
from bertkit.data.rows import Split
from bertkit.metrics.linear import Features, find_words

_MOST_ROWS, _LEAST = 2000, 30  # of a split
_WARN = 0.8  # of the area under the curve


def find_shift(splits: Mapping[str, Split], columns: Columns) -> list[Finding]:
    """Tell how well the words of training rows differ from those of each other split.

    The area under the ROC curve is 0.5 by chance, with the variance of the Mann-Whitney statistic (Hanley and McNeil
    1982), and 1 where each row tells its split.
    """
    return [
        _compare_words(splits["train"], split, columns)
        for name, split in splits.items()
        if name != "train" and min(len(split.rows), len(splits["train"].rows)) >= _LEAST
    ]


def _compare_words(train: Split, another: Split, columns: Columns) -> Finding:
    from sklearn.metrics import roc_auc_score

    both = [_describe_rows(split, columns) for split in (train, another)]
    is_other = [0] * len(both[0]) + [1] * len(both[1])
    _, scores = measure_words([*both[0], *both[1]], is_other)
    sizes = len(both[0]), len(both[1])
    area = float(roc_auc_score(is_other, scores))
    spread = 1.96 * math.sqrt((sizes[0] + sizes[1] + 1) / (12 * sizes[0] * sizes[1]))
    text = f"{another.name}: its words tell it from train with an AUC of {area:.2f}"
    text += f" (by chance {0.5 - spread:.2f} to {0.5 + spread:.2f})"
    return Finding(level_of(area, warn=max(_WARN, 0.5 + 2 * spread)), "splits", "shift", text)


def _describe_rows(split: Split, columns: Columns) -> list[Features]:
    """Return the words of rows that are drawn, one row for each text of those that share one."""
    generator = np.random.default_rng(42)
    seen: set[str] = set()
    drawn: list[Features] = []
    for row in generator.permutation(len(split.rows)).tolist():
        texts = read_texts(split.rows[row], columns)
        longest = max(texts.values(), key=len, default="")
        if longest not in seen:
            seen.add(longest)
            drawn.append({word: 1.0 for text in texts.values() for word in find_words(text)})
        if len(drawn) == _MOST_ROWS:
            break
    return drawn
