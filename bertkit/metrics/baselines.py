"""Baselines of a model: the strongest one, whether it is beaten, and accuracy by text lengths only."""

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

_FOLDS, _LEAST = 5, 20


def find_best_baseline(baselines: Baselines, metric: str) -> tuple[str, float | None]:
    """Return the name and the score of the baseline that is best at a metric, or an empty name and None.

    >>> find_best_baseline({"mean": {"loss": 0.5}, "words": {"loss": 0.25}}, "loss")
    ('words', 0.25)
    """
    sign = -1 if is_lower_better(metric) else 1
    all_scores = {name: scores.get(metric) for name, scores in baselines.items()}
    finite = {name: score for name, score in all_scores.items() if score is not None and math.isfinite(score)}
    return max(finite.items(), key=lambda item: sign * item[1], default=("", None))


def find_best_baseline_scores(baselines: Baselines) -> dict[str, float | None]:
    """Return the score of the strongest baseline for each metric that any of them has."""
    metrics = dict.fromkeys(metric for scores in baselines.values() for metric in scores)
    return {metric: find_best_baseline(baselines, metric)[1] for metric in metrics}


def tabulate(baselines: Baselines) -> list[dict[str, Any]]:
    """Return the rows of a table of baselines; empty for a single baseline, whose score is shown with the model's."""
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
    """Return a warning that names the strongest baseline if a score does not beat it, or None.

    >>> find_baseline_warning({"f1": 0.5}, {"most frequent label": {"f1": 0.5}}, "f1")
    'The f1 of 0.5000 is no better than the 0.5000 of a baseline (most frequent label).'
    """
    score = scores.get(metric)
    name, best = find_best_baseline(baselines, metric)
    if score is None or best is None or not math.isfinite(score):
        return None
    sign = -1 if is_lower_better(metric) else 1
    # Equal counts can result in sums that differ in the last digit.
    if sign * score > sign * best and not math.isclose(score, best, rel_tol=1e-9):
        return None
    digits = 4 if abs(score) < 100 else 1
    return f"The {metric} of {score:,.{digits}f} is no better than the {best:,.{digits}f} of a baseline ({name})."


def measure_length_accuracy(lengths: Sequence[tuple[int, int]], labels: Sequence[int]) -> float | None:
    """Compute the accuracy of a decision tree that knows only both lengths of a pair, by 5-fold cross-validation.

    Pairs with the same two lengths, in either order, share a fold, so no pair is predicted from its equals.
    Five folds need five different pairs of lengths and enough pairs per label; otherwise, the function returns None.
    """
    from sklearn.model_selection import GroupKFold, cross_val_predict
    from sklearn.tree import DecisionTreeClassifier

    first, second = np.array(lengths).T
    pair_groups = np.unique(np.sort(lengths, axis=1), axis=0, return_inverse=True)[1]
    if pair_groups.max() + 1 < _FOLDS or min(np.bincount(labels, minlength=2)) < _LEAST:
        return None
    features = np.column_stack([first, second, first + second, first - second])
    tree = DecisionTreeClassifier(min_samples_leaf=max(5, len(labels) // 25), random_state=0)
    predicted = cross_val_predict(tree, features, labels, groups=pair_groups, cv=GroupKFold(_FOLDS))
    return float((predicted == np.array(labels)).mean())
