"""What helps to judge a score: calibration, and the scores of each label."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Calibration:
    """Confidence beside accuracy, in bins of equal width over [0, 1]; an empty bin's means are nan."""

    ece: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]


def calibration(confidence: np.ndarray, correct: np.ndarray, bins: int = 10) -> Calibration:
    """Compute the expected calibration error (ECE) and the bins it sums over.

    ECE is the mean over rows of |accuracy - mean confidence| of the row's bin; a bin includes its upper edge, not its
    lower one (Guo et al. 2017, equation 3). Without rows it is nan.

    Args:
        confidence: probability of each prediction, shape `(rows,)`, in [0, 1].
        correct: whether each prediction is right, shape `(rows,)`.
        bins: number of bins; at least 1.
    """
    confidence = np.asarray(confidence, dtype=np.float64)
    right = np.asarray(correct, dtype=np.float64)
    if confidence.ndim != 1 or confidence.shape != right.shape or bins < 1:
        raise ValueError(f"needs two vectors of one length, got {confidence.shape} and {right.shape}, bins={bins}")
    if not np.all((confidence >= 0) & (confidence <= 1 + 1e-6)):  # a float32 softmax can end just above 1
        raise ValueError("a confidence must lie in [0, 1]")
    edges = np.linspace(0, 1, bins + 1)
    # The bin of each row, (rows,). A confidence that equals an edge belongs to the bin below it. 0 is below the first
    # bin, and a little above 1 is beyond the last, hence the clip.
    bin_of_row = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)
    counts = np.bincount(bin_of_row, minlength=bins)
    # sums of each bin over its count, (bins,); an empty bin divides 0 by 0, which is nan
    with np.errstate(invalid="ignore"):
        mean_confidence = np.bincount(bin_of_row, confidence, bins) / counts
        accuracy = np.bincount(bin_of_row, right, bins) / counts
    filled = counts > 0
    gaps = np.abs(accuracy - mean_confidence)[filled]
    ece = float(gaps @ counts[filled] / counts.sum()) if filled.any() else float("nan")
    return Calibration(
        ece=ece,
        edges=tuple(edges.tolist()),
        counts=tuple(counts.tolist()),
        confidence=tuple(mean_confidence.tolist()),
        accuracy=tuple(accuracy.tolist()),
    )


@dataclass(frozen=True)
class LabelScore:
    """Scores of one label; a ratio whose denominator is zero is nan."""

    name: str
    precision: float
    recall: float
    f1: float
    support: int


def label_scores(
    gold: Sequence[Collection[str]], predicted: Sequence[Collection[str]], labels: Sequence[str]
) -> list[LabelScore]:
    """Compute each label's scores, the most frequent label first; a row has a set of names on either side.

    >>> label_scores([{"a"}, {"b"}, {"a"}], [{"a"}, {"a"}, {"a"}], ["b", "a"])[0].recall
    1.0
    """
    support = Counter(name for names in gold for name in names)
    guesses = Counter(name for names in predicted for name in names)
    hits = Counter(name for names, guess in zip(gold, predicted, strict=True) for name in names if name in guess)

    def ratio(count: int, total: int) -> float:
        return count / total if total else math.nan

    return [
        LabelScore(
            name,
            precision=ratio(hits[name], guesses[name]),
            recall=ratio(hits[name], support[name]),
            f1=ratio(2 * hits[name], guesses[name] + support[name]),
            support=support[name],
        )
        for name in sorted(labels, key=lambda label: -support[label])
    ]


def confusion_table(
    gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str], max_labels: int = 20
) -> list[tuple[str, dict[str, int]]]:
    """Count predicted labels per gold label, in the order of `labels`; rare labels share one line.

    >>> confusion_table(["a", "b", "a"], ["a", "a", "a"], ["a", "b"])
    [('a', {'a': 2, 'b': 0}), ('b', {'a': 1, 'b': 0})]
    """
    if not gold:
        return []
    support = Counter(gold)
    frequent = set(sorted(labels, key=lambda label: -support[label])[:max_labels])
    names = [label for label in labels if label in frequent]
    others = f"{len(labels) - len(names)} others"
    counts = Counter(
        (name if name in frequent else others, guess if guess in frequent else others)
        for name, guess in zip(gold, predicted, strict=True)
    )
    names += [others] * (len(labels) > len(names))
    return [(name, {guess: counts[name, guess] for guess in names}) for name in names]


def quantile_bins(values: Sequence[int], bins: int = 6) -> list[tuple[int, int]]:
    """Return the first and last value of bins that hold about equally many values; equal values share a bin.

    >>> quantile_bins([3, 3, 4, 7, 8, 30], bins=3)
    [(3, 3), (4, 7), (8, 30)]
    """
    # `inverted_cdf` returns values that occur, so a bin ends at a value and not between two. The set merges bins that
    # would end at the same one.
    ends = sorted(set(np.quantile(values, np.linspace(0, 1, bins + 1)[1:], method="inverted_cdf").tolist()))
    starts = [min(values), *(end + 1 for end in ends[:-1])]
    return list(zip(starts, ends, strict=True))
