"""Declared metrics, and the intervals of their scores: by formula for ratios, from resampled rows for all others."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np

Interval = tuple[float, float] | None
"""Lower and upper end of a 95% interval, or None if a score has no interval."""
ScoreRows = Callable[[np.ndarray], dict[str, float]]
"""Computes each metric from the rows at some indices."""

# Resampled scores that differ by less, relative to their size, are equal.
_ROUNDING = 1e-9
# Levels of the ends of a 95% interval.
_TAILS = ((1 - 0.95) / 2, 1 - (1 - 0.95) / 2)
# More groups barely change the estimate of the jackknife.
_GROUPS = 200
# The formula for levels has a pole if rows are very skewed.
_MIN_DIVISOR = 0.1


RowScores = Mapping[str, np.ndarray]
"""Arrays that metrics read, such as gold and predicted values. The first axis is units: rows or queries."""
Score = Callable[[RowScores], dict[str, float]]
"""Computes metric -> score from the arrays of some units."""
Counts = Callable[[RowScores], tuple[int, int] | None]
"""Returns (successes, total) if their ratio determines the score, otherwise None."""

NOT_FINITE = "it is not a finite number"


@dataclass(frozen=True)
class Metric:
    """One metric of a task family: how it is computed, and what kind of number it is.

    A family declares its metrics in one table, name -> `Metric`. Everything else follows from the record: the
    interval, the direction, the tests between two models, and the reason that is shown for a missing score.
    """

    compute: Callable[[RowScores], float]
    """Computes the score, or NaN if it is undefined; called once on all rows and a thousand times on resampled ones."""
    counts: Counts = lambda row_scores: None
    """Returns the counts whose ratio determines the score, or None (the default) if no ratio does.

    With counts, the score has a Wilson interval, which is valid for few rows; otherwise, it has a bootstrap interval.
    """
    to_score: Callable[[float], float] = float
    """Increasing function that converts the ratio to the score, for example to percent; 1 becomes the highest score."""
    lower_is_better: bool = False
    is_score: bool = True
    """False for a number such as the best threshold, which has no interval and is not compared between models."""
    undefined: str | Callable[[RowScores], str] = NOT_FINITE
    """Reason why `compute` returns NaN."""
    needs: str = ""
    """Name of an array that the metric requires and that not all rows of the family have; empty for no such array."""

    def explain(self, row_scores: RowScores) -> str:
        """Return why the score of these predictions is undefined."""
        return self.undefined if isinstance(self.undefined, str) else self.undefined(row_scores)


def ratio_metric(counts: Counts, to_score: Callable[[float], float] = float, **fields: Any) -> Metric:
    """Declare a metric that is a ratio of counts: 0 if the total is 0, and NaN if `counts` returns None."""

    def compute(row_scores: RowScores) -> float:
        ratio = counts(row_scores)
        return math.nan if ratio is None else to_score(ratio[0] / max(ratio[1], 1))

    return Metric(compute, counts, to_score, **fields)


def raise_not_computed(row_scores: RowScores) -> float:
    """Raise NotImplementedError, because a library or the family's own `score` computes this metric."""
    raise NotImplementedError("no function of this record computes the score")


def find_undefined_reasons(
    metrics: Collection[str], scores: Mapping[str, float], row_scores: RowScores
) -> dict[str, str]:
    """Return metric -> reason why its score is undefined, for all scores that are not finite numbers."""
    undefined = [name for name, score in scores.items() if not math.isfinite(score)]
    return {name: find_metric(metrics, name).explain(row_scores) for name in undefined}


UNDECLARED_METRIC = Metric(raise_not_computed)
"""Record of a score that no table declares, such as a metric of the `evaluate` package."""


def find_metric(metrics: Collection[str], name: str) -> Metric:
    """Return the record of a metric, or `UNDECLARED_METRIC` if the family's table lacks it or lists names only."""
    return metrics.get(name, UNDECLARED_METRIC) if isinstance(metrics, Mapping) else UNDECLARED_METRIC


@dataclass(frozen=True)
class Intervals:
    """The 95% interval of each metric, or None for a metric without an interval."""

    bounds: dict[str, Interval] = field(default_factory=dict)
    methods: dict[str, str] = field(default_factory=dict)
    """Metric -> ``Wilson`` or ``bootstrap``."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Metric -> reason for a missing interval."""


def find_intervals(
    metrics: Collection[str], scores: Mapping[str, float], row_scores: RowScores, score: Score, *, samples: int = 1000
) -> Intervals:
    """Compute the interval of each score: Wilson's if it is a ratio of counts, else one from resampled rows.

    Args:
        metrics: Table of the family, name -> `Metric`, or names only.
        scores: Scores of all rows.
        row_scores: Arrays that the scores are computed from.
        score: Computes the scores of resampled units.
        samples: Number of resamples.
    """
    intervals, units = Intervals(), count_examples(row_scores)
    records = {name: find_metric(metrics, name) for name in scores}
    counts = {name: metric.counts(row_scores) for name, metric in records.items()}
    resampled: dict[str, Interval] = {}
    # All metrics are computed from the same resamples, which are drawn only if one of them needs them.
    if any(metric.is_score and counts[name] is None for name, metric in records.items()):
        resampled = bootstrap_intervals(lambda rows: score(select_units(row_scores, rows)), units, samples=samples)
    for name, metric in records.items():
        if (ratio := counts[name]) is not None:
            low, high = wilson_interval(*ratio)
            intervals.bounds[name], intervals.methods[name] = (metric.to_score(low), metric.to_score(high)), "Wilson"
            continue
        interval = intervals.bounds[name] = resampled.get(name) if metric.is_score else None
        if interval:
            intervals.methods[name] = "bootstrap"
        elif not metric.is_score:
            intervals.reasons[name] = "it is not a score"
        elif name not in resampled:
            intervals.reasons[name] = "metrics of libraries are not resampled"
        elif units == 1:
            intervals.reasons[name] = "one row cannot be resampled"
        else:
            is_defined = math.isfinite(scores[name])
            intervals.reasons[name] = "resamples score the same" if is_defined else "undefined in every resample"
    return intervals


def describe_methods(methods: Mapping[str, str], reasons: Mapping[str, str] | None = None) -> str:
    """List the metrics by the method of their intervals, then the metrics without an interval, as one text.

    >>> describe_methods({"accuracy": "Wilson", "f1": "bootstrap", "recall": "Wilson"}, {"r2": "one row"})
    'Wilson for accuracy, recall; bootstrap for f1; none for r2 (one row)'
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for name, method in methods.items():
        groups.setdefault((method, ""), []).append(name)
    for name, reason in (reasons or {}).items():
        groups.setdefault(("none", f" ({reason})"), []).append(name)
    return "; ".join(f"{method} for {', '.join(names)}{note}" for (method, note), names in groups.items())


def bootstrap_intervals(score: ScoreRows, rows: int, *, samples: int = 1000, seed: int = 0) -> dict[str, Interval]:
    """Compute each metric's 95% BCa interval over resampled rows (Efron 1987), expanded for few rows.

    Rows are drawn with replacement while the trained model stays fixed: the interval covers the score on other rows of
    the same distribution, not the score of another training seed. Resamples in which a metric is not a finite number
    (such as a correlation of constants) are dropped for this metric.

    Args:
        score: Takes row indices, int64 of shape `(rows,)` with repeats, and returns metric -> value.
        rows: Number of rows, at least 1.
        samples: Number of resamples, at least 1.
        seed: Seed of the random draws; the same seed gives the same intervals.

    Returns:
        Metric -> interval, or None for a single row, for a metric that is undefined on all rows or in each resample,
        and for equal ends, because such resamples do not show the error of the score.

    Raises:
        ValueError: If `rows` or `samples` is below 1.

    Three of four answers are correct. The first two resamples draw the rows [3, 2, 2, 1] and [1, 0, 0, 0], with
    accuracies of 0.75 and 1. Four rows are too few to exclude any accuracy:

    >>> is_correct = np.array([1.0, 1.0, 1.0, 0.0])
    >>> bootstrap_intervals(lambda rows: {"accuracy": float(is_correct[rows].mean())}, rows=4, samples=1000)
    {'accuracy': (0.0, 1.0)}
    """
    if rows < 1 or samples < 1:
        raise ValueError(f"needs at least one row and one resample, got {rows} and {samples}")
    scores = score(np.arange(rows))
    if rows == 1:
        return dict.fromkeys(scores)
    rng = np.random.default_rng(seed)
    # 1. Resample. All metrics are scored on the same row indices. Shape: (rows,).
    resampled = _score_all(score, (rng.integers(0, rows, size=rows) for _ in range(samples)))
    # 2. Measure the skewness of the score by the jackknife, which leaves out one of at most 200 groups at a time.
    # Without one of the four rows of the example, accuracy is 2/3, 2/3, 2/3 or 1: the one large deviation is skewness.
    groups = np.array_split(rng.permutation(rows), min(rows, _GROUPS))
    jackknife = _score_all(score, (np.delete(np.arange(rows), group) for group in groups))
    return {
        metric: _bca_interval(value, resampled[metric], jackknife[metric], _expand_levels(rows))
        for metric, value in scores.items()
    }


def half_sample_intervals(score: ScoreRows, rows: int, *, samples: int = 1000) -> dict[str, Interval]:
    """Compute each metric's 95% interval from random halves of the rows (jackknife histogram, Wu 1990).

    The score of a half, drawn without replacement, deviates from the score of all rows as much as this deviates from
    the true score: half the rows double the variance, and the correction for a finite population halves it again.

    The method corrects a bias that shrinks with more rows, such as the bias of a distance, which is never negative: the
    halves have more of it, so the mirrored interval moves in the other direction. Draws with replacement would add the
    bias of repeated rows.

    The arguments are the same as for `bootstrap_intervals`.

    Returns:
        Metric -> interval, or None if both ends are equal.
    """
    rng, scores = np.random.default_rng(0), score(np.arange(rows))
    halves = _score_all(score, (rng.permutation(rows)[: rows // 2] for _ in range(samples)))
    # Mirror the quantiles at the score: a high quantile of the halves gives the low end.
    bounds: dict[str, Interval] = {}
    for name, value in scores.items():
        high, low = np.quantile(halves[name], [0.975, 0.025], method="weibull")
        bounds[name] = (2 * value - float(high), 2 * value - float(low)) if high - low > _ROUNDING * abs(high) else None
    return bounds


def _score_all(score: ScoreRows, draws: Iterable[np.ndarray]) -> dict[str, np.ndarray]:
    """Score the rows of each draw; return each metric's finite values. Shape: (at most draws,)."""
    draw_scores = [score(rows) for rows in draws]
    values = {name: np.array([scores[name] for scores in draw_scores], dtype=np.float64) for name in draw_scores[0]}
    return {name: metric_values[np.isfinite(metric_values)] for name, metric_values in values.items()}


def _expand_levels(rows: int) -> np.ndarray:
    """Return the levels of both ends, expanded for few rows. Shape: (2,).

    Student's quantiles replace normal ones, because few rows determine the spread poorly. The root corrects the
    variance of resamples, which is (rows - 1) / rows times the variance of samples (Hesterberg 2015, "What Teachers
    Should Know About the Bootstrap", section 4.3).
    """
    from scipy import special

    expanded = special.ndtr(special.stdtrit(rows - 1, _TAILS) * math.sqrt(rows / (rows - 1)))
    # With two rows, the upper level rounds to 1, whose quantile is infinite.
    return np.asarray(np.clip(expanded, sys.float_info.epsilon, 1 - sys.float_info.epsilon))


def _bca_interval(score: float, resampled: np.ndarray, jackknife: np.ndarray, tails: np.ndarray) -> Interval:
    """Return the percentiles of resampled scores at levels corrected for bias and skewness (Efron 1987, section 2).

    Args:
        score: Score of all rows.
        resampled: Score of each resample. Shape: (resamples,).
        jackknife: Score without each group of rows. Shape: (groups,).
        tails: Levels of the ends before the correction. Shape: (2,).
    """
    from scipy import special

    if not math.isfinite(score) or not resampled.size:
        return None
    # If the score is the median of its resamples, half of the resamples are below the score, and the bias is 0.
    fraction_below = np.mean(resampled < score) + np.mean(resampled == score) / 2
    bias = special.ndtri(np.clip(fraction_below, 1 / len(resampled), 1 - 1 / len(resampled)))
    # The acceleration measures how skewed the score is over rows.
    deviations = jackknife.mean() - jackknife if jackknife.size else np.zeros(1)
    acceleration = (deviations**3).sum() / max(6 * (deviations**2).sum() ** 1.5, sys.float_info.min)
    shifted = bias + special.ndtri(tails)
    levels = special.ndtr(bias + shifted / np.maximum(1 - acceleration * shifted, _MIN_DIVISOR))
    # "weibull" quantiles leave the nominal fraction outside of each end on average, for any number of resamples.
    low, high = np.quantile(resampled, levels, method="weibull")
    return (float(low), float(high)) if high - low > _ROUNDING * max(abs(low), abs(high)) else None


def wilson_interval(successes: int, total: int) -> tuple[float, float]:
    """Compute the 95% score interval of a fraction, which stays within [0, 1] and is valid for few rows (Wilson 1927).

    Raises:
        ValueError: If `successes` is not between 0 and `total`.

    >>> low, high = wilson_interval(0, 10)
    >>> round(low, 4), round(high, 4)
    (0.0, 0.2775)
    >>> wilson_interval(0, 0)
    (0.0, 1.0)
    """
    if not 0 <= successes <= total:
        raise ValueError(f"needs 0 <= successes <= total, got {successes} of {total}")
    z = NormalDist().inv_cdf(_TAILS[1])
    if total == 0:
        return 0.0, 1.0
    fraction = successes / total
    # The interval contains each fraction p whose distance from the observed fraction is at most z standard errors,
    # z * sqrt(p * (1 - p) / total). Its ends are the roots of a quadratic equation.
    divisor = 1 + z * z / total
    center = (fraction + z * z / (2 * total)) / divisor
    half_width = z / divisor * (fraction * (1 - fraction) / total + z * z / (4 * total * total)) ** 0.5
    # For a fraction of 0 or 1, one end is the fraction; the formula would round it.
    return center - half_width if successes else 0.0, center + half_width if successes < total else 1.0


def combine_intervals(terms: Sequence[tuple[float, float, Interval]]) -> Interval:
    """Compute the 95% interval of a sum of weighted scores of independent rows, from the interval of each score.

    The method is Zou and Donner's (2008, "Construction of confidence limits about effect measures"), which preserves
    the skewness of the single intervals. For the difference of two fractions, it is Newcombe's (1998, method 10).

    Args:
        terms: (weight, score, interval) of each score.

    Returns:
        The interval, or None if a score has no interval.

    >>> low, high = combine_intervals([(1, 0.8, wilson_interval(56, 70)), (-1, 0.6, wilson_interval(48, 80))])
    >>> round(low, 4), round(high, 4)
    (0.0524, 0.3339)
    """
    total = squares_below = squares_above = 0.0
    for weight, score, interval in terms:
        if interval is None:
            return None
        low, high = sorted(weight * end for end in interval)
        total += weight * score
        squares_below += (weight * score - low) ** 2
        squares_above += (high - weight * score) ** 2
    return total - math.sqrt(squares_below), total + math.sqrt(squares_above)


def f1_from_jaccard(jaccard: float) -> float:
    """Return F1, given the Jaccard index: correct items, divided by all items that are gold or predicted.

    >>> f1_from_jaccard(0.5) == 2 * 1 / (2 * 1 + 1)
    True
    """
    return 2 * jaccard / (1 + jaccard)


def to_percent(fraction: float) -> float:
    """Return a fraction in percent."""
    return 100 * fraction


def count_examples(row_scores: RowScores) -> int:
    """Return the number of units (rows or queries), which is the length of each array."""
    return len(next(iter(row_scores.values())))


def select_units(row_scores: RowScores, indices: np.ndarray) -> dict[str, np.ndarray]:
    """Return the arrays of the units at some indices."""
    return {name: values[indices] for name, values in row_scores.items()}
