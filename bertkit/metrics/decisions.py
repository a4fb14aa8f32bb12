"""From logits to probabilities, and from probabilities to the labels that a row gets."""

from __future__ import annotations

from typing import Any

import numpy as np

Numbers = np.ndarray[Any, Any]


def softmax(logits: Numbers) -> Numbers:
    """Compute probabilities that sum to 1 over the last axis, in double precision."""
    weights = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    probabilities: Numbers = weights / weights.sum(axis=-1, keepdims=True)
    return probabilities


def sigmoid(logits: Numbers) -> Numbers:
    """Compute the probability of each label by itself, in double precision."""
    probabilities: Numbers = 1 / (1 + np.exp(-logits.astype(np.float64)))
    return probabilities


def choose(probabilities: Numbers, thresholds: Numbers | None) -> Numbers:
    """Tell which labels each row gets, (rows, labels): the most probable one, or all that reach their thresholds."""
    chosen: Numbers
    if thresholds is not None:
        chosen = probabilities >= thresholds
        return chosen
    chosen = np.eye(probabilities.shape[1], dtype=bool)[probabilities.argmax(axis=1)]
    return chosen


def vote(probabilities: Numbers, thresholds: Numbers | None) -> Numbers:
    """Tell which labels a row gets from its windows, (windows, labels): the one of most, or all of at least half."""
    votes: Numbers = choose(probabilities, thresholds).mean(axis=0)
    if thresholds is not None:
        most: Numbers = votes >= 0.5
        return most
    # between equally many windows the mean decides: it is below 1, so it never outweighs a window
    tie = probabilities.mean(axis=0) / (2 * len(probabilities))
    chosen: Numbers = choose((votes + tie)[None], None)[0]
    return chosen
