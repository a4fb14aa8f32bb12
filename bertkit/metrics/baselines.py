"""Find the best baseline of a model, warn if the model does not beat it, and measure what text lengths reveal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertkit.metrics.registry import is_lower_better

Scores = Mapping[str, float | None]
"""Metric -> score, or None if it is undefined."""
Baselines = Mapping[str, Scores]
"""Name of a baseline -> its scores."""

_FOLDS = 5
_MIN_LABEL_ROWS = 20


def find_best_baseline(baselines: Baselines, metric: str) -> tuple[str, float | None]:
    """Return the name and the score of the baseline with the best finite score, or an empty name and None.

    >>> find_best_baseline({"mean": {"loss": 0.5}, "words": {"loss": 0.25}}, "loss")
    ('words', 0.25)
    """
    sign = -1 if is_lower_better(metric) else 1
    all_scores = {name: scores.get(metric) for name, scores in baselines.items()}
    finite_scores = {name: score for name, score in all_scores.items() if score is not None and math.isfinite(score)}
    return max(finite_scores.items(), key=lambda item: sign * item[1], default=("", None))


def find_best_baseline_scores(baselines: Baselines) -> dict[str, float | None]:
    """Return the best baseline score of each metric that any baseline has, or None if no score is finite."""
    metrics = dict.fromkeys(metric for scores in baselines.values() for metric in scores)
    return {metric: find_best_baseline(baselines, metric)[1] for metric in metrics}


def tabulate(baselines: Baselines) -> list[dict[str, Any]]:
    """Return one table row per baseline, with "n/a" for undefined scores; an empty list for a single baseline.

    A single baseline needs no table, because its score is printed next to the model's score.
    """
    metrics = find_best_baseline_scores(baselines)
    if len(baselines) < 2:
        return []
    return [
        {
            "baseline": name,
            **{metric: "n/a" if scores.get(metric, "") is None else scores.get(metric, "") for metric in metrics},
        }
        for name, scores in baselines.items()
    ]


def find_baseline_warning(scores: Scores, baselines: Baselines, metric: str) -> str | None:
    """Return a warning if a model's score does not beat the best baseline, or None if it does or one is undefined.

    >>> find_baseline_warning({"f1": 0.5}, {"most frequent label": {"f1": 0.5}}, "f1")
    'The f1 of 0.5000 is no better than the 0.5000 of a baseline (most frequent label).'
    """
    score = scores.get(metric)
    name, baseline_score = find_best_baseline(baselines, metric)
    if score is None or baseline_score is None or not math.isfinite(score):
        return None
    sign = -1 if is_lower_better(metric) else 1
    # Equal scores can differ in the last digit, if they were summed in different orders.
    if sign * score > sign * baseline_score and not math.isclose(score, baseline_score, rel_tol=1e-9):
        return None
    score_text, baseline_text = (f"{value:,.{4 if abs(score) < 100 else 1}f}" for value in (score, baseline_score))
    return f"The {metric} of {score_text} is no better than the {baseline_text} of a baseline ({name})."


def score_by_length(lengths: Sequence[tuple[int, int]], labels: Sequence[int]) -> float | None:
    """Return the accuracy of a decision tree that reads only the two lengths of each pair.

    The accuracy is cross-validated over 5 folds: the fraction of pairs whose held-out prediction is correct. Pairs with
    the same two lengths, in either order, are in one fold, so the tree cannot look up their labels.

    Args:
        lengths: Lengths of both texts of each pair. Shape: (pairs, 2).
        labels: 0 or 1 for each pair. Shape: (pairs,).

    Returns:
        The accuracy from 0 to 1, or None for fewer than 5 different pairs of lengths, or fewer than 20 pairs of either
        label.
    """
    from sklearn.model_selection import GroupKFold, cross_val_predict
    from sklearn.tree import DecisionTreeClassifier

    first, second = np.array(lengths).T
    pair_groups = np.unique(np.sort(lengths, axis=1), axis=0, return_inverse=True)[1]
    if pair_groups.max() + 1 < _FOLDS or min(np.bincount(labels, minlength=2)) < _MIN_LABEL_ROWS:
        return None
    features = np.column_stack([first, second, first + second, first - second])
    tree = DecisionTreeClassifier(min_samples_leaf=max(5, len(labels) // 25), random_state=0)
    predictions = cross_val_predict(tree, features, labels, groups=pair_groups, cv=GroupKFold(_FOLDS))
    return float((predictions == np.array(labels)).mean())
