"""Outputs of several models for one feature, combined to outputs that are decoded as those of one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertkit.metrics import Numbers

Output = Mapping[str, Any]


def mean_logits(outputs: Sequence[Output], *_: object) -> dict[str, Any]:
    """Return the mean of each output of logits: of the values of a regression, of the starts and ends of answers.

    >>> mean_logits([{"logits": np.array([1.0])}, {"logits": np.array([2.0])}])
    {'logits': array([1.5])}
    """
    names = [name for name in outputs[0] if name.endswith("logits")]
    return {name: np.mean([output[name] for output in outputs], axis=0, dtype=np.float64) for name in names}


def mean_probabilities(outputs: Sequence[Output], *_: object) -> dict[str, Any]:
    """Return logits, (..., labels), whose softmax is the mean of the models' probabilities.

    >>> halves = mean_probabilities([{"logits": np.array([0.0, 0.0])}, {"logits": np.array([0.0, np.log(3)])}])
    >>> np.exp(halves["logits"]).round(3).tolist()
    [0.375, 0.625]
    """
    logits = np.array([output["logits"] for output in outputs], dtype=np.float64)
    logs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    return {"logits": _log_mean(logs)}


def mean_of_each_label(outputs: Sequence[Output], *_: object) -> dict[str, Any]:
    """Return logits, (labels,), whose sigmoid is the mean of the models' probabilities of each label.

    >>> both = mean_of_each_label([{"logits": np.array([0.0])}, {"logits": np.array([np.log(3)])}])
    >>> (1 / (1 + np.exp(-both["logits"]))).tolist()
    [0.625]
    """
    logits = np.array([output["logits"] for output in outputs], dtype=np.float64)
    return {"logits": _log_mean(-np.logaddexp(0, -logits)) - _log_mean(-np.logaddexp(0, logits))}


def _log_mean(logs: Numbers) -> Numbers:
    """Return the logarithm of a mean over the first axis, from the logarithms of its terms."""
    return np.asarray(np.logaddexp.reduce(logs, axis=0) - np.log(len(logs)))
