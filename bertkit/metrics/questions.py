"""Scores of answers to typed questions: arrays (rows, questions), where a row may have fewer questions than another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertkit.metrics import Numbers
from bertkit.metrics.basic import Undefined, per_label

NO_ANSWER = -1


def expected_level(probabilities: Sequence[float]) -> float:
    """Return the mean level, counted from 0.

    >>> expected_level([0.25, 0.25, 0.5])
    1.25
    """
    return float(np.dot(probabilities, range(len(probabilities))))


def ranked_probability_score(probabilities: Sequence[float], gold: int) -> float:
    """Compute the ranked probability score of levels (Epstein 1969): 0 is best, 1 is worst.

    >>> ranked_probability_score([0.0, 0.0, 1.0], 0), ranked_probability_score([0.0, 1.0, 0.0], 0)
    (1.0, 0.5)
    """
    differences = np.cumsum(probabilities) - (np.arange(len(probabilities)) >= gold)
    return float(np.square(differences).sum() / max(len(probabilities) - 1, 1))


def compute_scores(compared: Mapping[str, Numbers], names: Sequence[str]) -> dict[str, float]:
    """Compute metrics by name, over the questions that have an answer."""
    is_answered = compared["gold"] != NO_ANSWER
    return {name: _METRICS[name]({key: values[is_answered] for key, values in compared.items()}) for name in names}


def _levels(compared: Mapping[str, Numbers], name: str) -> float:
    is_level = ~np.isnan(compared[name])
    return float(compared[name][is_level].mean()) if is_level.any() else Undefined("no question has a score")


_METRICS: Mapping[str, Any] = {
    "accuracy": lambda of: float((of["gold"] == of["predicted"]).mean()),
    "f1_macro": lambda of: float(per_label(of["gold"], of["predicted"])["f1"].mean()),
    "mean_absolute_error": lambda of: _levels(of, "error"),
    "ranked_probability_score": lambda of: _levels(of, "ranked"),
}
METRICS = tuple(_METRICS)
