"""Convert the logits of one model or of several to probabilities, labels and tags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertkit.metrics.tags import decode_viterbi, repair_tags


def softmax(logits: np.ndarray) -> np.ndarray:
    """Compute probabilities that sum to 1 over the last axis, in float64. Shape: (..., labels)."""
    weights = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Compute the probability of each label separately, in float64. Shape: (..., labels)."""
    return np.asarray(1 / (1 + np.exp(-logits.astype(np.float64))))


def choose_labels(probabilities: np.ndarray, thresholds: np.ndarray | None) -> np.ndarray:
    """Return a mask of each row's labels: all that reach their thresholds or, without thresholds, the most probable.

    Args:
        probabilities: Probabilities of the labels. Shape: (rows, labels).
        thresholds: Minimum probability of each label, or None. Shape: (labels,).
    """
    if thresholds is not None:
        return np.asarray(probabilities >= thresholds)
    return np.asarray(np.eye(probabilities.shape[1], dtype=bool)[probabilities.argmax(axis=1)])


def vote(probabilities: np.ndarray, thresholds: np.ndarray | None) -> np.ndarray:
    """Return a mask of a text's labels, by a vote of its windows. Shape: (labels,).

    With thresholds, a label is chosen if at least half of the windows choose it; otherwise, the label of most windows.

    Args:
        probabilities: Probabilities of the labels in each window. Shape: (windows, labels).
        thresholds: Minimum probability of each label, or None. Shape: (labels,).

    Two of these three windows choose the first label, although the second has the higher mean probability:

    >>> vote(np.array([[0.6, 0.4], [0.6, 0.4], [0.1, 0.9]]), None).tolist()
    [True, False]
    """
    # In the example, the votes are [2/3, 1/3]; the mean probabilities [0.43, 0.57] only break ties.
    votes: np.ndarray = choose_labels(probabilities, thresholds).mean(axis=0)
    if thresholds is not None:
        return np.asarray(votes >= 0.5)
    # Means are at most 1, so they are divided by twice the number of windows: less than one vote.
    tie_breaks = probabilities.mean(axis=0) / (2 * len(probabilities))
    return np.asarray(choose_labels((votes + tie_breaks)[None], None)[0])


def compute_tag_probabilities(logits: np.ndarray, names: Sequence[str], temperature: float) -> np.ndarray:
    """Compute the probability of each tag of each word, from logits divided by a temperature. Shape: (words, tags).

    A word without tokens has NaN as logits. Its tag is O with probability 1, so that Viterbi decoding can pass it.
    """
    weights = np.exp((logits - logits.max(axis=1, keepdims=True)) / temperature)
    probabilities: np.ndarray = weights / weights.sum(axis=1, keepdims=True)
    # If O is not among the tags, `bertkit.tasks.token_classification.encode` gives every word a token.
    probabilities[np.isnan(logits).any(axis=1)] = [float(name == "O") for name in names]
    return probabilities


def choose_tags(probabilities: np.ndarray, names: Sequence[str], decoding: str) -> tuple[list[str], list[float]]:
    """Choose the tag of each word of a text; return the tags and their probabilities.

    A temperature changes the probabilities but no tag, because it scales the logits of all tags and paths equally.

    Args:
        probabilities: Probabilities of the tags. Shape: (words, tags).
        names: Names of the tags.
        decoding: ``greedy`` (the most probable tag of each word), ``repair`` (greedy, then rewritten as valid IOB2) or
            ``constrained`` (the most probable valid sequence).
    """
    if decoding == "constrained":
        label_ids = decode_viterbi(probabilities, names)
    else:
        label_ids = probabilities.argmax(axis=1).tolist() if len(probabilities) else []
    tags = [names[label_id] for label_id in label_ids]
    tag_values = [float(probabilities[word, label_id]) for word, label_id in enumerate(label_ids)]
    return repair_tags(tags) if decoding == "repair" else tags, tag_values


Output = Mapping[str, Any]


def mean_logits(outputs: Sequence[Output], *_: object) -> dict[str, Any]:
    """Return the models' mean of each array of logits, such as numbers, or the starts and ends of answers.

    >>> mean_logits([{"logits": np.array([1.0])}, {"logits": np.array([2.0])}])
    {'logits': array([1.5])}
    """
    names = [name for name in outputs[0] if name.endswith("logits")]
    return {name: np.mean([output[name] for output in outputs], axis=0, dtype=np.float64) for name in names}


def mean_probabilities(outputs: Sequence[Output], *_: object) -> dict[str, Any]:
    """Return logits whose softmax is the mean of the models' probabilities. Shape: (..., labels).

    The models have the probabilities [0.5, 0.5] and [0.25, 0.75]:

    >>> combined = mean_probabilities([{"logits": np.array([0.0, 0.0])}, {"logits": np.array([0.0, np.log(3)])}])
    >>> np.exp(combined["logits"]).round(3).tolist()
    [0.375, 0.625]
    """
    logits = np.array([output["logits"] for output in outputs], dtype=np.float64)
    # Compute with logarithms, because a probability can round to 0, whose logarithm is not finite.
    logs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    return {"logits": _log_mean(logs)}


def mean_label_probabilities(outputs: Sequence[Output], *_: object) -> dict[str, Any]:
    """Return logits whose sigmoid is the mean of the models' probabilities of each label. Shape: (labels,).

    The models have the probabilities 0.5 and 0.75:

    >>> combined = mean_label_probabilities([{"logits": np.array([0.0])}, {"logits": np.array([np.log(3)])}])
    >>> (1 / (1 + np.exp(-combined["logits"]))).tolist()
    [0.625]
    """
    logits = np.array([output["logits"] for output in outputs], dtype=np.float64)
    # The logit of a probability p is log(p) - log(1 - p).
    return {"logits": _log_mean(-np.logaddexp(0, -logits)) - _log_mean(-np.logaddexp(0, logits))}


def _log_mean(logs: np.ndarray) -> np.ndarray:
    """Return the logarithm of the mean over the first axis, given the logarithms of the values."""
    return np.asarray(np.logaddexp.reduce(logs, axis=0) - np.log(len(logs)))
