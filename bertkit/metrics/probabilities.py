"""Probabilities and labels from the logits of one model or of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertkit.metrics.tags import decode_viterbi, repair_tags


def softmax(logits: np.ndarray) -> np.ndarray:
    """Compute probabilities that sum to 1 over the last axis, in double precision."""
    weights = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Compute the probability of each label separately, in double precision."""
    return np.asarray(1 / (1 + np.exp(-logits.astype(np.float64))))


def choose_labels(probabilities: np.ndarray, thresholds: np.ndarray | None) -> np.ndarray:
    """Return a mask of each row's labels, (rows, labels): the most probable one, or all that reach their thresholds."""
    if thresholds is not None:
        return np.asarray(probabilities >= thresholds)
    return np.asarray(np.eye(probabilities.shape[1], dtype=bool)[probabilities.argmax(axis=1)])


def vote(probabilities: np.ndarray, thresholds: np.ndarray | None) -> np.ndarray:
    """Return a mask of a row's labels, given its windows, (windows, labels): the majority, or all of at least half.

    Two of these three windows choose the first label, though the mean of all prefers the second:

    >>> vote(np.array([[0.6, 0.4], [0.6, 0.4], [0.1, 0.9]]), None).tolist()
    [True, False]
    """
    # In the example, the votes are [2/3, 1/3], and the means of the probabilities [0.43, 0.57] break ties only.
    votes: np.ndarray = choose_labels(probabilities, thresholds).mean(axis=0)
    if thresholds is not None:
        return np.asarray(votes >= 0.5)
    # If labels have equally many windows, the mean decides: it is below 1, so it never outweighs a window.
    tie = probabilities.mean(axis=0) / (2 * len(probabilities))
    return np.asarray(choose_labels((votes + tie)[None], None)[0])


def compute_tag_probabilities(logits: np.ndarray, names: Sequence[str], temperature: float) -> np.ndarray:
    """Compute the probability of each tag for each word, (words, tags), from logits divided by a temperature.

    A word without tokens, whose logits are NaN, is O with probability 1, so that it is a step on the path of Viterbi.
    """
    weights = np.exp((logits - logits.max(axis=1, keepdims=True)) / temperature)
    probabilities: np.ndarray = weights / weights.sum(axis=1, keepdims=True)
    # Without O among the tags, every word has a token; `bertkit.tasks.token_classification.encode` sees to it.
    probabilities[np.isnan(logits).any(axis=1)] = [float(name == "O") for name in names]
    return probabilities


def choose_tags(probabilities: np.ndarray, names: Sequence[str], decoding: str) -> tuple[list[str], list[float]]:
    """Choose the tag of each word of a text, and return the tags with the probabilities of those that were chosen.

    A temperature changes none of them: it divides the logits of all tags alike, also along the path of Viterbi.

    Args:
        probabilities: Probabilities of the tags, (words, tags).
        names: Names of the tags.
        decoding: ``greedy``, ``repair`` (for tags that break IOB2) or ``constrained`` (the most probable valid path).
    """
    if decoding == "constrained":
        label_ids = decode_viterbi(probabilities, names)
    else:
        label_ids = probabilities.argmax(axis=1).tolist() if len(probabilities) else []
    tags = [names[label_id] for label_id in label_ids]
    likely = [float(probabilities[word, label_id]) for word, label_id in enumerate(label_ids)]
    return repair_tags(tags) if decoding == "repair" else tags, likely


Output = Mapping[str, Any]


def mean_logits(outputs: Sequence[Output], *_: object) -> dict[str, Any]:
    """Return the mean of each output of logits, such as regression values or the starts and ends of answers.

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
    # Stay in logarithms: a softmax of far logits would round to 0, whose logarithm is not finite.
    logs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    return {"logits": _log_mean(logs)}


def mean_label_probabilities(outputs: Sequence[Output], *_: object) -> dict[str, Any]:
    """Return logits, (labels,), whose sigmoid is the mean of the models' probabilities of each label.

    >>> both = mean_label_probabilities([{"logits": np.array([0.0])}, {"logits": np.array([np.log(3)])}])
    >>> (1 / (1 + np.exp(-both["logits"]))).tolist()
    [0.625]
    """
    logits = np.array([output["logits"] for output in outputs], dtype=np.float64)
    return {"logits": _log_mean(-np.logaddexp(0, -logits)) - _log_mean(-np.logaddexp(0, logits))}


def _log_mean(logs: np.ndarray) -> np.ndarray:
    """Return the logarithm of a mean over the first axis, from the logarithms of its terms."""
    return np.asarray(np.logaddexp.reduce(logs, axis=0) - np.log(len(logs)))
