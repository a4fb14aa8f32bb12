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
ScoreRows = Callable[[np.ndarray], dict[str, float]]
"""Computes each metric from the rows at some indices."""

_ROUNDING = 1e-9  # resampled scores that differ by less, relative to their size, are the same
_TAILS = ((1 - 0.95) / 2, 1 - (1 - 0.95) / 2)  # the ends of a 95% interval
_GROUPS = 200  # groups of the jackknife; more change its estimate by little
_MIN_DIVISOR = 0.1  # The formula for levels has a pole if rows are very skewed.


RowScores = Mapping[str, np.ndarray]
"""Predictions next to gold values: arrays whose first axis is units, which are rows or queries."""
Score = Callable[[RowScores], dict[str, float]]
"""Computes each metric from such arrays."""
Counts = Callable[[RowScores], tuple[int, int] | None]
"""Returns (hits, total), or None if a score is not their ratio."""

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
    """Counts that determine the score, or None by default: no number of right items determines it.

    With counts, the interval is Wilson's, which needs few rows; otherwise, it is a bootstrap.
    """
    to_score: Callable[[float], float] = float
    """Increasing function from a ratio to the score: 1 becomes the highest score."""
    lower_is_better: bool = False
    is_score: bool = True
    """False for a number such as the best threshold, which has no interval and which no comparison tests."""
    undefined: str | Callable[[RowScores], str] = NOT_FINITE
    """Reason why `compute` returns NaN."""
    needs: str = ""
    """Array that only some of the family's rows have, and without which the metric cannot be computed."""

    def explain(self, row_scores: RowScores) -> str:
        """Return why the score of these predictions is undefined."""
        return self.undefined if isinstance(self.undefined, str) else self.undefined(row_scores)


def ratio_metric(counts: Counts, to_score: Callable[[float], float] = float, **declared: Any) -> Metric:
    """Declare a metric that is a ratio of counts: 0 over nothing, and undefined if there are no counts."""

    def compute(row_scores: RowScores) -> float:
        counted = counts(row_scores)
        return math.nan if counted is None else to_score(counted[0] / max(counted[1], 1))

    return Metric(compute, counts, to_score, **declared)


def raise_not_computed(row_scores: RowScores) -> float:
    """Raise an error: the score belongs to a library or to the family's own `score`."""
    raise NotImplementedError("no function of this record computes the score")


def find_undefined_reasons(
    metrics: Collection[str], scores: Mapping[str, float], row_scores: RowScores
) -> dict[str, str]:
    """Return the reason of each score that is not a finite number, by its name."""
    undefined = [name for name, score in scores.items() if not math.isfinite(score)]
    return {name: find_metric(metrics, name).explain(row_scores) for name in undefined}


UNDECLARED_METRIC = Metric(raise_not_computed)
"""Record of a score that no table declares, such as a metric of the `evaluate` package."""


def find_metric(metrics: Collection[str], name: str) -> Metric:
    """Return the record of a metric, or `UNDECLARED_METRIC` if a family lists names only, or does not have it."""
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
        row_scores: Predictions next to gold values, which the scores are computed from.
        score: Computes the scores of resampled predictions.
        samples: Number of resamples.
    """
    intervals, units = Intervals(), count_units(row_scores)
    records = {name: find_metric(metrics, name) for name in scores}
    counts = {name: metric.counts(row_scores) for name, metric in records.items()}
    resampled: dict[str, Interval] = {}
    # All metrics are computed from the same resamples, which are drawn only if one of them needs them.
    if any(metric.is_score and counts[name] is None for name, metric in records.items()):
        resampled = bootstrap_intervals(lambda rows: score(select_units(row_scores, rows)), units, samples=samples)
    for name, metric in records.items():
        if (counted := counts[name]) is not None:
            low, high = wilson_interval(*counted)
            intervals.bounds[name], intervals.methods[name] = (metric.to_score(low), metric.to_score(high)), "Wilson"
            continue
        ends = intervals.bounds[name] = resampled.get(name) if metric.is_score else None
        if ends:
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
    """Return a sentence that lists the metrics by the method of their intervals, and metrics without an interval.

    >>> describe_methods({"accuracy": "Wilson", "f1": "bootstrap", "recall": "Wilson"}, {"r2": "one row"})
    'Wilson for accuracy, recall; bootstrap for f1; none for r2 (one row)'
    """
    listed: dict[tuple[str, str], list[str]] = {}
    for name, method in methods.items():
        listed.setdefault((method, ""), []).append(name)
    for name, reason in (reasons or {}).items():
        listed.setdefault(("none", f" ({reason})"), []).append(name)
    return "; ".join(f"{method} for {', '.join(names)}{note}" for (method, note), names in listed.items())


def bootstrap_intervals(score: ScoreRows, rows: int, *, samples: int = 1000, seed: int = 0) -> dict[str, Interval]:
    """Compute each metric's BCa interval over resampled rows (Efron 1987), expanded for few rows.

    Rows are drawn with replacement while the trained model stays fixed: the interval covers the score on other rows of
    the same distribution, not the score of another training seed.

    A resample in which a metric is not a finite number (such as a correlation of constants) does not count for that
    metric. A metric that is never finite, or the same from one end to the other, has no interval, and neither has one
    row: None. No number of resamples shows the error of such a score.

    Args:
        score: Takes row indices, int64 of shape `(rows,)` with repeats, and returns metric -> value.
        rows: Number of rows, at least 1.
        samples: Number of resamples, at least 1.
        seed: Seed of the random draws; the same seed gives the same intervals.

    Three of four answers are right. The first two resamples draw the rows [3, 2, 2, 1] and [1, 0, 0, 0], with
    accuracies of 0.75 and 1. Four rows leave everything open:

    >>> right = np.array([1.0, 1.0, 1.0, 0.0])
    >>> bootstrap_intervals(lambda rows: {"accuracy": float(right[rows].mean())}, rows=4, samples=1000)
    {'accuracy': (0.0, 1.0)}
    """
    if rows < 1 or samples < 1:
        raise ValueError(f"needs at least one row and one resample, got {rows} and {samples}")
    scores = score(np.arange(rows))
    if rows == 1:
        return dict.fromkeys(scores)
    rng = np.random.default_rng(seed)
    # 1. Resample. Each resample is a vector of row indexes, (rows,), and scores all metrics: their intervals are over
    # the same rows.
    resampled = _score_all(score, (rng.integers(0, rows, size=rows) for _ in range(samples)))
    # 2. Measure the skewness of the score by the jackknife: without one of the four rows of the example, accuracy is
    # 2/3, 2/3, 2/3 or 1, and the single large deviation bends the interval. Leave out one of at most 200 groups of rows
    # at a time.
    left_out = np.array_split(rng.permutation(rows), min(rows, _GROUPS))
    jackknife = _score_all(score, (np.delete(np.arange(rows), group) for group in left_out))
    return {
        metric: _bca_interval(value, resampled[metric], jackknife[metric], _expand_levels(rows))
        for metric, value in scores.items()
    }


def half_sample_intervals(score: ScoreRows, rows: int, *, samples: int = 1000) -> dict[str, Interval]:
    """Compute each metric's 95% interval from random halves of the rows (Wu 1990, the jackknife histogram).

    The score of half the rows, drawn without replacement, differs from the score of all rows as much as the latter
    differs from the true score: the finite population halves the variance that half the rows would double. Bias that
    shrinks as rows grow, such as the bias of a distance, which is never negative, shows in the halves and moves the
    interval the other way. Rows drawn with replacement would add their repeats to it.

    The arguments are the same as for `bootstrap_intervals`. Returns no interval (None) if all halves score the same.
    """
    rng, scores = np.random.default_rng(0), score(np.arange(rows))
    halves = _score_all(score, (rng.permutation(rows)[: rows // 2] for _ in range(samples)))
    # The halves deviate from the score as the score deviates from the true one, so the interval is mirrored: a high
    # quantile of the halves gives the low end.
    ends: dict[str, Interval] = {}
    for name, value in scores.items():
        low, high = np.quantile(halves[name], [0.975, 0.025], method="weibull")
        ends[name] = (2 * value - float(low), 2 * value - float(high)) if low - high > _ROUNDING * abs(low) else None
    return ends


def _score_all(score: ScoreRows, draws: Iterable[np.ndarray]) -> dict[str, np.ndarray]:
    """Score the rows of each draw; return each metric's values that are finite."""
    scored = [score(rows) for rows in draws]
    values = {metric: np.array([scores[metric] for scores in scored], dtype=np.float64) for metric in scored[0]}
    return {metric: metric_values[np.isfinite(metric_values)] for metric, metric_values in values.items()}


def _expand_levels(rows: int) -> np.ndarray:
    """Return wider levels, by the ratio of Student's quantiles to the quantiles of the normal distribution.

    With few rows the spread is uncertain, and a resample varies less than a sample does: its variance has the factor
    (rows - 1) / rows (Hesterberg 2015, "What Teachers Should Know About the Bootstrap", section 4.3).
    """
    from scipy import special

    expanded = special.ndtr(special.stdtrit(rows - 1, _TAILS) * math.sqrt(rows / (rows - 1)))
    # With two rows, the upper level rounds to 1, whose quantile is infinite.
    return np.asarray(np.clip(expanded, sys.float_info.epsilon, 1 - sys.float_info.epsilon))


def _bca_interval(score: float, resampled: np.ndarray, jackknife: np.ndarray, tails: np.ndarray) -> Interval:
    """Return the percentiles of resampled scores at levels corrected for bias and skewness (Efron 1987, section 2)."""
    from scipy import special

    if not math.isfinite(score) or not resampled.size:
        return None
    # If the score were the median of its resamples, half of these would be below it, and the bias 0.
    below = np.mean(resampled < score) + np.mean(resampled == score) / 2
    bias = special.ndtri(np.clip(below, 1 / len(resampled), 1 - 1 / len(resampled)))
    # The acceleration measures how skewed the score is over rows.
    deviations = jackknife.mean() - jackknife if jackknife.size else np.zeros(1)
    acceleration = (deviations**3).sum() / max(6 * (deviations**2).sum() ** 1.5, sys.float_info.min)
    shifted = bias + special.ndtri(tails)
    levels = special.ndtr(bias + shifted / np.maximum(1 - acceleration * shifted, _MIN_DIVISOR))
    # "weibull" leaves the right fraction beyond each end on average, for any number of resamples.
    low, high = np.quantile(resampled, levels, method="weibull")
    return (float(low), float(high)) if high - low > _ROUNDING * max(abs(low), abs(high)) else None


def wilson_interval(successes: int, total: int) -> tuple[float, float]:
    """Compute the 95% score interval of a fraction, which stays within [0, 1] and is valid for few rows (Wilson 1927).

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
    share = successes / total
    # The interval holds the fractions whose distance from the observed one is at most z of their standard errors. Its
    # ends are the roots of a quadratic equation.
    spread = 1 + z * z / total
    middle = (share + z * z / (2 * total)) / spread
    half = z / spread * (share * (1 - share) / total + z * z / (4 * total * total)) ** 0.5
    # At the edges an end is the fraction itself, without the rounding of the formula.
    return middle - half if successes else 0.0, middle + half if successes < total else 1.0


def combine_intervals(terms: Sequence[tuple[float, float, Interval]]) -> Interval:
    """Compute the 95% interval of a sum of weighted scores of independent rows, from the interval of each score.

    For the difference of two fractions it is Newcombe's (1998, method 10); in general Zou and Donner's (2008,
    "Construction of confidence limits about effect measures"), which keeps the skewness of the single intervals.

    Args:
        terms: Weight, score and interval of each score.

    Returns:
        None if a score has no interval.

    >>> low, high = combine_intervals([(1, 0.8, wilson_interval(56, 70)), (-1, 0.6, wilson_interval(48, 80))])
    >>> round(low, 4), round(high, 4)
    (0.0524, 0.3339)
    """
    total = below = above = 0.0
    for weight, score, interval in terms:
        if interval is None:
            return None
        low, high = sorted(weight * end for end in interval)
        total += weight * score
        below += (weight * score - low) ** 2
        above += (high - weight * score) ** 2
    return total - math.sqrt(below), total + math.sqrt(above)


def f1_from_jaccard(share: float) -> float:
    """Return F1, given the fraction of gold or predicted items that are both.

    >>> f1_from_jaccard(0.5) == 2 * 1 / (2 * 1 + 1)
    True
    """
    return 2 * share / (1 + share)


def to_percent(share: float) -> float:
    """Return a fraction in percent."""
    return 100 * share


def count_units(row_scores: RowScores) -> int:
    """Return the number of units: rows or queries."""
    return len(next(iter(row_scores.values())))


def select_units(row_scores: RowScores, indices: np.ndarray) -> dict[str, np.ndarray]:
    """Return the arrays at some units."""
    return {name: values[indices] for name, values in row_scores.items()}
