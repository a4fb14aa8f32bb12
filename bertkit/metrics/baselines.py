"""Baselines beside a model: which one is the strongest, whether it is beaten, and what lengths alone tell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertkit.metrics.registry import is_lower_better

Scores = Mapping[str, float | None]
"""Metric -> score; None where it is undefined."""
Baselines = Mapping[str, Scores]
"""Name of a baseline -> its scores."""

_FOLDS, _LEAST = 5, 20


def strongest(baselines: Baselines, metric: str) -> tuple[str, float | None]:
    """Return the name and the score of the baseline that is best at a metric; no number where none has one.

    >>> strongest({"mean": {"loss": 0.5}, "words": {"loss": 0.25}}, "loss")
    ('words', 0.25)
    """
    sign = -1 if is_lower_better(metric) else 1
    known = {name: scores.get(metric) for name, scores in baselines.items()}
    finite = {name: score for name, score in known.items() if score is not None and math.isfinite(score)}
    return max(finite.items(), key=lambda item: sign * item[1], default=("", None))


def strongest_scores(baselines: Baselines) -> dict[str, float | None]:
    """Return the score of the strongest baseline for each metric that any of them has."""
    metrics = dict.fromkeys(metric for scores in baselines.values() for metric in scores)
    return {metric: strongest(baselines, metric)[1] for metric in metrics}


def tabulate(baselines: Baselines) -> list[dict[str, Any]]:
    """Return the rows of a table of several baselines; none of a single one, which stands beside each score."""
    metrics = strongest_scores(baselines)
    if len(baselines) < 2:
        return []
    return [
        {
            "baseline": name,
            **{metric: "n/a" if scores.get(metric, "") is None else scores.get(metric, "") for metric in metrics},
        }
        for name, scores in baselines.items()
    ]


def find_unbeaten(scores: Scores, baselines: Baselines, metric: str) -> str | None:
    """Say which baseline a score does not beat; None where it beats them all, or there is nothing to compare.

    >>> find_unbeaten({"f1": 0.5}, {"most frequent label": {"f1": 0.5}}, "f1")
    'The f1 of 0.5000 is no better than the 0.5000 of a baseline (most frequent label).'
    """
    score = scores.get(metric)
    name, least = strongest(baselines, metric)
    if score is None or least is None or not math.isfinite(score):
        return None
    sign = -1 if is_lower_better(metric) else 1
    # equal counts may end in sums that differ in the last digit
    if sign * score > sign * least and not math.isclose(score, least, rel_tol=1e-9):
        return None
    digits = 4 if abs(score) < 100 else 1
    return f"The {metric} of {score:,.{digits}f} is no better than the {least:,.{digits}f} of a baseline ({name})."


def predict_by_length(lengths: Sequence[tuple[int, int]], labels: Sequence[int]) -> float | None:
    """Compute how many labels of pairs a decision tree finds that knows the two lengths, by 5-fold cross-validation.

    Pairs with the same two lengths, in whichever order, are in one fold, so that none is predicted from its like. None
    where a label, or another length, is too rare for five folds.
    """
    from sklearn.model_selection import GroupKFold, cross_val_predict
    from sklearn.tree import DecisionTreeClassifier

    first, second = np.array(lengths).T
    alike = np.unique(np.sort(lengths, axis=1), axis=0, return_inverse=True)[1]
    if alike.max() + 1 < _FOLDS or min(np.bincount(labels, minlength=2)) < _LEAST:
        return None
    features = np.column_stack([first, second, first + second, first - second])
    tree = DecisionTreeClassifier(min_samples_leaf=max(5, len(labels) // 25), random_state=0)
    predicted = cross_val_predict(tree, features, labels, groups=alike, cv=GroupKFold(_FOLDS))
    return float((predicted == np.array(labels)).mean())
