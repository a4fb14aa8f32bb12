"""Calibration errors, and the scores of each label."""

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
    """Return the bin of each decision, (decisions,): `BINS` of equal width over [0, 1], with their lower ends."""
    # A float32 softmax can end just above 1.
    return np.asarray(np.minimum((confidence * BINS).astype(int), BINS - 1))


@dataclass(frozen=True)
class LabelScore:
    """Precision, recall, F1 and support of one label; a ratio whose denominator is zero is nan."""

    name: str
    precision: float
    recall: float
    f1: float
    support: int


def calibration_errors(
    confidence: np.ndarray, right: np.ndarray, weights: np.ndarray | None = None
) -> dict[str, float]:
    """Compute the differences between confidence and accuracy.

    ``ece`` has 15 bins of equal width (Guo et al. 2017), ``adaptive_ece`` 15 bins of equally many decisions (Nixon et
    al. 2019). Both are above 0 even for a perfectly calibrated model. ``squared_error_debiased`` corrects that: the
    mean squared distance in bins of equally many decisions, less its expected value for a perfectly calibrated model
    (Kumar et al. 2019, section 4); it can be negative.

    Args:
        confidence: Probability of the selected label, (decisions,).
        right: Whether that label is right, 0 or 1, (decisions,).
        weights: Number of times that each decision counts, (decisions,); 1 by default.

    Two decisions share the bin of 0.95, and half of them are right; 0.75 and 0.65 have other bins. The mean of
    2 * |0.95 - 0.5|, |0.75 - 1| and |0.65 - 1| over four decisions is 0.375:

    >>> round(calibration_errors(np.array([0.95, 0.95, 0.75, 0.65]), np.array([1.0, 0.0, 1.0, 1.0]))["ece"], 3)
    0.375
    """
    weights = np.ones(len(confidence)) if weights is None else weights
    total = weights.sum()
    rank, order = np.empty(len(confidence), dtype=int), np.argsort(confidence, kind="stable")
    # The rank of a decision counts the weight before it, so bins of equally many decisions hold equal weights too.
    ordered = weights[order]
    rank[order] = np.minimum((np.cumsum(ordered) - ordered) * BINS // total, BINS - 1)
    errors = {}
    for name, bins in (("ece", find_bins(confidence)), ("adaptive_ece", rank)):
        sizes = np.bincount(bins, weights, minlength=BINS)
        is_filled = sizes > 0
        sizes = sizes[is_filled]
        means, shares = (
            np.bincount(bins, weights * values, minlength=BINS)[is_filled] / sizes for values in (confidence, right)
        )
        errors[name] = float((sizes * np.abs(means - shares)).sum() / total)
    chance = shares * (1 - shares) / np.maximum(sizes - 1, 1)
    errors["squared_error_debiased"] = float((sizes * ((means - shares) ** 2 - chance)).sum() / total)
    return errors


def describe_calibration(
    probabilities: np.ndarray, gold: np.ndarray, rows: np.ndarray, *, samples: int = 1000
) -> dict[str, dict[str, Any]]:
    """Compute calibration errors and negative log likelihood, with 95% intervals over rows.

    Chance makes the errors larger, and resampling does so again, so their intervals come from
    `half_sample_intervals`. If the interval of ``squared_error_debiased`` reaches 0, the other two intervals do too,
    because an error near 0 has another distribution, which halves do not show. Each interval includes its own value,
    though chance can have made that too large.

    The first arguments are the fields of `Decisions`. The decisions of a row are drawn together, `samples` times.
    """
    # Sorting once makes sorting each draw fast.
    order = np.argsort(probabilities.max(axis=1))
    probabilities, gold = probabilities[order], gold[order]
    names, row_ids = np.unique(rows[order], return_inverse=True)
    confidence, right = probabilities.max(axis=1), (probabilities.argmax(axis=1) == gold).astype(float)
    losses = compute_gold_losses(probabilities, gold)

    def weigh(row_indices: np.ndarray) -> np.ndarray:
        # A row that is drawn twice counts twice, (decisions,); nothing is copied.
        return np.bincount(row_indices, minlength=len(names))[row_ids].astype(float)

    def score(row_indices: np.ndarray) -> dict[str, float]:
        return calibration_errors(confidence, right, weigh(row_indices))

    def lose(row_indices: np.ndarray) -> dict[str, float]:
        return {"nll": float(np.average(losses, weights=weigh(row_indices)))}

    all_rows = np.arange(len(names))
    ends = half_sample_intervals(score, len(names), samples=samples)
    is_shown = (debiased := ends["squared_error_debiased"]) is not None and debiased[0] > 0
    errors = score(all_rows)
    for name in ("ece", "adaptive_ece"):
        if (interval := ends[name]) is not None:
            ends[name] = min(max(interval[0], 0), errors[name]) if is_shown else 0.0, max(interval[1], errors[name])
    scores = {**errors, **lose(all_rows)}
    ends |= bootstrap_intervals(lose, len(names), samples=samples)
    return {name: {"value": value, "interval": ends[name]} for name, value in scores.items()}


def label_scores(
    gold: Sequence[Collection[str]], predicted: Sequence[Collection[str]], labels: Sequence[str]
) -> list[LabelScore]:
    """Compute each label's scores, the most frequent label first; a row has a set of names on either side.

    >>> label_scores([{"a"}, {"b"}, {"a"}], [{"a"}, {"a"}, {"a"}], ["b", "a"])[0].recall
    1.0
    """
    from sklearn.metrics import precision_recall_fscore_support
    from sklearn.preprocessing import MultiLabelBinarizer

    # A class without rows: with a single column, scikit-learn would read its zeros and ones as two classes.
    binarizer = MultiLabelBinarizer(classes=[*labels, None], sparse_output=True).fit(gold)
    columns = precision_recall_fscore_support(*map(binarizer.transform, (gold, predicted)), zero_division=math.nan)
    scores = [LabelScore(*values) for values in zip(labels, *(column.tolist() for column in columns), strict=False)]
    return sorted(scores, key=lambda score: -score.support)


def confusion_table(
    gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str]
) -> list[tuple[str, dict[str, int]]]:
    """Count predicted labels per gold label, in the order of `labels`; rare labels share one line.

    >>> confusion_table(["a", "b", "a"], ["a", "a", "a"], ["a", "b"])
    [('a', {'a': 2, 'b': 0}), ('b', {'a': 1, 'b': 0})]
    """
    if not gold:
        return []
    support = Counter(gold)
    frequent = set(sorted(labels, key=lambda label: -support[label])[:20])
    names = [label for label in labels if label in frequent]
    rest = f"{len(labels) - len(names)} others"
    counts = Counter(
        (name if name in frequent else rest, guess if guess in frequent else rest)
        for name, guess in zip(gold, predicted, strict=True)
    )
    names += [rest] * (len(labels) > len(names))
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


def sample_evenly(items: Sequence[T], max_items: int) -> list[T]:
    """Return at most `max_items` items, evenly spaced, with the first and the last item.

    >>> sample_evenly(range(10), 4)
    [0, 3, 6, 9]
    """
    if len(items) <= max_items:
        return list(items)
    return [items[round(index * (len(items) - 1) / (max_items - 1))] for index in range(max_items)]
