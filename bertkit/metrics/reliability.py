"""Compute calibration errors, the scores of each label, and bins of values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from bertkit.metrics.calibration import compute_gold_losses
from bertkit.metrics.intervals import bootstrap_intervals, half_sample_intervals

T = TypeVar("T")
BINS = 15  # bins of the calibration errors


def find_bins(confidence: np.ndarray) -> np.ndarray:
    """Return the bin of each decision: 15 of equal width over [0, 1], with their lower ends. Shape: (decisions,)."""
    # A float32 softmax can be just above 1.
    return np.asarray(np.minimum((confidence * BINS).astype(int), BINS - 1))


@dataclass(frozen=True)
class LabelScore:
    """Precision, recall, F1 and number of gold rows of one label; a ratio whose denominator is 0 is NaN."""

    name: str
    precision: float
    recall: float
    f1: float
    support: int


def calibration_errors(
    confidence: np.ndarray, is_correct: np.ndarray, weights: np.ndarray | None = None
) -> dict[str, float]:
    """Compute three differences between the confidence and the accuracy of the predicted labels, in 15 bins.

    * ``ece``: expected calibration error in bins of equal width (Guo et al. 2017, section 2).
    * ``adaptive_ece``: the same in bins of equally many decisions (Nixon et al. 2019, here for predicted labels only).
    * ``squared_error_debiased``: mean squared difference in the latter bins, minus its expected value for a perfectly
      calibrated model (the debiased estimator of Kumar et al. 2019). It can be negative, whereas the other two errors
      are above 0 even for a perfectly calibrated model.

    Args:
        confidence: Probability of the predicted label. Shape: (decisions,).
        is_correct: Whether the predicted label is correct, 0 or 1. Shape: (decisions,).
        weights: Number of times that each decision counts; 1 by default. Shape: (decisions,).

    The two decisions with 0.95 share a bin, and one of them is correct; 0.75 and 0.65 have separate bins. The sum of
    2 * |0.95 - 0.5|, |0.75 - 1| and |0.65 - 1|, divided by four decisions, is 0.375:

    >>> round(calibration_errors(np.array([0.95, 0.95, 0.75, 0.65]), np.array([1.0, 0.0, 1.0, 1.0]))["ece"], 3)
    0.375
    """
    weights = np.ones(len(confidence)) if weights is None else weights
    total = weights.sum()
    rank_bins, order = np.empty(len(confidence), dtype=int), np.argsort(confidence, kind="stable")
    # The bin of a decision depends on the total weight of the preceding decisions, so bins have equal weights.
    sorted_weights = weights[order]
    rank_bins[order] = np.minimum((np.cumsum(sorted_weights) - sorted_weights) * BINS // total, BINS - 1)
    errors = {}
    for name, bins in (("ece", find_bins(confidence)), ("adaptive_ece", rank_bins)):
        sizes = np.bincount(bins, weights, minlength=BINS)
        is_filled = sizes > 0
        sizes = sizes[is_filled]
        sums = (np.bincount(bins, weights * values, minlength=BINS) for values in (confidence, is_correct))
        means, accuracies = (bin_sums[is_filled] / sizes for bin_sums in sums)
        errors[name] = float((sizes * np.abs(means - accuracies)).sum() / total)
    variances = accuracies * (1 - accuracies) / np.maximum(sizes - 1, 1)
    errors["squared_error_debiased"] = float((sizes * ((means - accuracies) ** 2 - variances)).sum() / total)
    return errors


def describe_calibration(
    probabilities: np.ndarray, gold: np.ndarray, rows: np.ndarray, *, samples: int = 1000
) -> dict[str, dict[str, Any]]:
    """Compute calibration errors and the mean negative log likelihood, ``nll``, with 95% intervals over rows.

    Random deviations increase the errors, and resampling adds further deviations, so the intervals of the errors come
    from `half_sample_intervals`; ``nll`` has a bootstrap interval. The intervals of ``ece`` and ``adaptive_ece`` start
    at 0 unless the interval of ``squared_error_debiased`` is above 0, because halves do not show the distribution of
    errors near 0. They always include the error itself, although it can be too large by chance.

    Args:
        probabilities: Probabilities of the labels. Shape: (decisions, labels).
        gold: Index of each gold label. Shape: (decisions,).
        rows: Row of each decision; all decisions of a row are drawn together. Shape: (decisions,).
        samples: Number of resamples.

    Returns:
        Name -> ``value`` and ``interval``, or None as the interval if its ends are equal.
    """
    # Sort once, which makes sorting in each resample fast.
    order = np.argsort(probabilities.max(axis=1))
    probabilities, gold = probabilities[order], gold[order]
    names, row_ids = np.unique(rows[order], return_inverse=True)
    confidence, is_correct = probabilities.max(axis=1), (probabilities.argmax(axis=1) == gold).astype(float)
    losses = compute_gold_losses(probabilities, gold)

    def count_draws(row_indices: np.ndarray) -> np.ndarray:
        # Weights of the decisions: a row that is drawn twice counts twice. Shape: (decisions,).
        return np.bincount(row_indices, minlength=len(names))[row_ids].astype(float)

    def compute_errors(row_indices: np.ndarray) -> dict[str, float]:
        return calibration_errors(confidence, is_correct, count_draws(row_indices))

    def compute_nll(row_indices: np.ndarray) -> dict[str, float]:
        return {"nll": float(np.average(losses, weights=count_draws(row_indices)))}

    all_rows = np.arange(len(names))
    bounds = half_sample_intervals(compute_errors, len(names), samples=samples)
    is_significant = (debiased := bounds["squared_error_debiased"]) is not None and debiased[0] > 0
    errors = compute_errors(all_rows)
    for name in ("ece", "adaptive_ece"):
        if (interval := bounds[name]) is not None:
            low = min(max(interval[0], 0), errors[name]) if is_significant else 0.0
            bounds[name] = low, max(interval[1], errors[name])
    bounds |= bootstrap_intervals(compute_nll, len(names), samples=samples)
    scores = {**errors, **compute_nll(all_rows)}
    return {name: {"value": value, "interval": bounds[name]} for name, value in scores.items()}


def label_scores(
    gold: Sequence[Collection[str]], predicted: Sequence[Collection[str]], labels: Sequence[str]
) -> list[LabelScore]:
    """Compute the scores of each label, the most frequent label first; a row has a set of gold and predicted labels.

    >>> label_scores([{"a"}, {"b"}, {"a"}], [{"a"}, {"a"}, {"a"}], ["b", "a"])[0].recall
    1.0
    """
    from sklearn.metrics import precision_recall_fscore_support
    from sklearn.preprocessing import MultiLabelBinarizer

    # Add a class without rows, because scikit-learn would read a single column of zeros and ones as two classes.
    binarizer = MultiLabelBinarizer(classes=[*labels, None], sparse_output=True).fit(gold)
    columns = precision_recall_fscore_support(*map(binarizer.transform, (gold, predicted)), zero_division=math.nan)
    scores = [LabelScore(*values) for values in zip(labels, *(column.tolist() for column in columns), strict=False)]
    return sorted(scores, key=lambda score: -score.support)


def confusion_table(
    gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str]
) -> list[tuple[str, dict[str, int]]]:
    """Return (gold label, predicted label -> count) in the order of `labels`; all but 20 labels are counted together.

    >>> confusion_table(["a", "b", "a"], ["a", "a", "a"], ["a", "b"])
    [('a', {'a': 2, 'b': 0}), ('b', {'a': 1, 'b': 0})]
    """
    if not gold:
        return []
    support = Counter(gold)
    frequent_labels = set(sorted(labels, key=lambda label: -support[label])[:20])
    names = [label for label in labels if label in frequent_labels]
    rest = f"{len(labels) - len(names)} others"
    columns = ([name if name in frequent_labels else rest for name in values] for values in (gold, predicted))
    counts = Counter(zip(*columns, strict=True))
    names += [rest] * (len(labels) > len(names))
    return [(name, {column: counts[name, column] for column in names}) for name in names]


def quantile_bins(values: Sequence[int], bins: int = 6) -> list[tuple[int, int]]:
    """Return the first and the last value of at most `bins` bins of about equal size; equal values share a bin.

    >>> quantile_bins([3, 3, 4, 7, 8, 30], bins=3)
    [(3, 3), (4, 7), (8, 30)]
    """
    # `inverted_cdf` returns values that occur, so no bin ends between two values. The set merges bins with equal ends.
    ends = sorted(set(np.quantile(values, np.linspace(0, 1, bins + 1)[1:], method="inverted_cdf").tolist()))
    starts = [min(values), *(end + 1 for end in ends[:-1])]
    return list(zip(starts, ends, strict=True))


def sample_evenly(items: Sequence[T], max_items: int) -> list[T]:
    """Return at most `max_items` items, evenly spaced, with the first and the last item.

    >>> sample_evenly(range(10), 4)
    [0, 3, 6, 9]
    """
    if len(items) <= max_items:
        return list(items)
    return [items[round(index * (len(items) - 1) / (max_items - 1))] for index in range(max_items)]
