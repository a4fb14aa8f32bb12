"""From logits to probabilities, and from probabilities to the labels that a row gets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bertkit.metrics import Numbers, tag_schemes


def softmax(logits: Numbers) -> Numbers:
    """Compute probabilities that sum to 1 over the last axis, in double precision."""
    weights = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def sigmoid(logits: Numbers) -> Numbers:
    """Compute the probability of each label by itself, in double precision."""
    return np.asarray(1 / (1 + np.exp(-logits.astype(np.float64))))


def choose(probabilities: Numbers, thresholds: Numbers | None) -> Numbers:
    """Tell which labels each row gets, (rows, labels): the most probable one, or all that reach their thresholds."""
    if thresholds is not None:
        return np.asarray(probabilities >= thresholds)
    return np.asarray(np.eye(probabilities.shape[1], dtype=bool)[probabilities.argmax(axis=1)])


def vote(probabilities: Numbers, thresholds: Numbers | None) -> Numbers:
    """Tell which labels a row gets from its windows, (windows, labels): the one of most, or all of at least half.

    Two of these three windows choose the first label, though the mean of all prefers the second:

    >>> vote(np.array([[0.6, 0.4], [0.6, 0.4], [0.1, 0.9]]), None).tolist()
    [True, False]
    """
    votes: Numbers = choose(probabilities, thresholds).mean(axis=0)
    if thresholds is not None:
        return np.asarray(votes >= 0.5)
    # between equally many windows the mean decides: it is below 1, so it never outweighs a window
    tie = probabilities.mean(axis=0) / (2 * len(probabilities))
    return np.asarray(choose((votes + tie)[None], None)[0])


def tag_probabilities(logits: Numbers, names: Sequence[str], temperature: float) -> Numbers:
    """Compute the probability of each tag for each word, (words, tags), from logits divided by a temperature.

    A word without tokens, whose logits are NaN, is O with probability 1, so that it is a step on the path of Viterbi.
    """
    weights = np.exp((logits - logits.max(axis=1, keepdims=True)) / temperature)
    probabilities: Numbers = weights / weights.sum(axis=1, keepdims=True)
    probabilities[np.isnan(logits).any(axis=1)] = [float(name == "O") for name in names]
    return probabilities


def choose_tags(probabilities: Numbers, names: Sequence[str], decoding: str) -> tuple[list[str], list[float]]:
    """Choose the tag of each word of a text, and return the tags with the probabilities of those that were chosen.

    A temperature changes none of them: it divides the logits of all tags alike, also along the path of Viterbi.

    Args:
        probabilities: of shape (words, tags).
        names: of the tags.
        decoding: ``greedy``, ``repair`` (of tags that break IOB2) or ``constrained`` (the most probable valid path).
    """
    if decoding == "constrained":
        chosen = tag_schemes.most_probable_valid(probabilities, names)
    else:
        chosen = probabilities.argmax(axis=1).tolist() if len(probabilities) else []
    tags = [names[number] for number in chosen]
    likely = [float(probabilities[word, number]) for word, number in enumerate(chosen)]
    return tag_schemes.repair(tags) if decoding == "repair" else tags, likely
