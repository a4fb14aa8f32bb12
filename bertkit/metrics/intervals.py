"""Intervals of scores: by formula for shares of rows, from resampled rows for all others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

Interval = tuple[float, float] | None

_ROUNDING = 1e-9  # resampled scores that differ by less, relative to their size, are the same


class Share(float):
    """A score that a share of rows determines, so that its interval has a formula, which is valid for few rows too."""

    hits: int
    total: int
    to_score: Callable[[float], float]

    def __new__(cls, score: float, hits: int, total: int, to_score: Callable[[float], float] = float) -> Share:
        """Return a score with its share, `hits` of `total`; `to_score` increases, and turns a share into a score."""
        self = super().__new__(cls, score)
        self.hits, self.total, self.to_score = hits, total, to_score
        return self

    def __getnewargs__(self) -> tuple[float, int, int, Callable[[float], float]]:  # type: ignore[override]
        """Return what a copy is made from."""
        return float(self), self.hits, self.total, self.to_score

    def interval(self) -> tuple[float, float]:
        """Compute the 95 % interval of the score from that of its share."""
        low, high = wilson_interval(self.hits, self.total)
        return self.to_score(low), self.to_score(high)


class Chosen(float):
    """The best score over choices made on the same rows, or the choice: resampling would add to its optimism."""


@dataclass(frozen=True)
class Intervals:
    """The 95 % interval of each metric, None where there is none."""

    ends: dict[str, Interval] = field(default_factory=dict)
    methods: dict[str, str] = field(default_factory=dict)
    """Metric -> ``Wilson`` or ``bootstrap``."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Metric -> why there is no interval."""


def find_intervals(
    scores: Mapping[str, float], score: Callable[[np.ndarray], dict[str, float]], rows: int, *, samples: int = 1000
) -> Intervals:
    """Compute the interval of each score: that of Wilson for a `Share`, else from resampled rows.

    `score`, `rows` and `samples` are those of `bootstrap_intervals`.
    """
    found = Intervals()
    without_formula = [name for name, value in scores.items() if not isinstance(value, (Share, Chosen))]
    resampled = bootstrap_intervals(score, rows, samples=samples) if without_formula else {}
    for name, value in scores.items():
        found.ends[name] = value.interval() if isinstance(value, Share) else None
        if name in without_formula:
            found.ends[name] = resampled[name]
        if found.ends[name]:
            found.methods[name] = "Wilson" if isinstance(value, Share) else "bootstrap"
        elif isinstance(value, Chosen):
            found.reasons[name] = "chosen on these rows"
        elif rows == 1:
            found.reasons[name] = "one row cannot be resampled"
        else:
            found.reasons[name] = "resamples score the same" if math.isfinite(value) else "undefined in every resample"
    return found


def describe_methods(methods: Mapping[str, str], reasons: Mapping[str, str] | None = None) -> str:
    """Say which metrics' intervals come from which method, and which metrics have none.

    >>> describe_methods({"accuracy": "Wilson", "f1": "bootstrap", "recall": "Wilson"}, {"r2": "one row"})
    'Wilson for accuracy, recall; bootstrap for f1; none for r2 (one row)'
    """
    names: dict[str, list[str]] = {}
    for name, method in methods.items():
        names.setdefault(f"{method} for ", []).append(name)
    for name, reason in (reasons or {}).items():
        names.setdefault(f"none for | ({reason})", []).append(name)
    return "; ".join(
        head.replace("|", ", ".join(of)) if "|" in head else head + ", ".join(of) for head, of in names.items()
    )


def bootstrap_intervals(
    score: Callable[[np.ndarray], dict[str, float]],
    rows: int,
    *,
    samples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval]:
    """Compute each metric's expanded percentile interval over resampled rows.

    Rows are drawn with replacement while the trained model stays fixed: the interval covers what other rows of the
    same distribution would have scored, not what another training seed would have (Efron & Tibshirani 1993,
    chapter 13). A resample varies less than a sample does, by the factor (rows - 1) / rows of a variance, and of few
    rows the spread itself is uncertain; so the percentiles lie further out, as Student's quantiles do (Hesterberg 2015,
    "What Teachers Should Know About the Bootstrap", section 4.3).

    A resample in which a metric is not a finite number (such as a correlation of constants) does not count for that
    metric. A metric that is never finite, or the same from one end to the other, has no interval, and neither has one
    row: None. No number of resamples shows how far such a score may be off.

    Args:
        score: takes row indexes, int64 of shape `(rows,)` with repeats, and returns metric -> value.
        rows: how many rows there are; at least 1.
        samples: how many resamples; at least 1.
        level: nominal coverage, in (0, 1).
        seed: of the random draws; the same seed gives the same intervals.
    """
    if rows < 1 or samples < 1:
        raise ValueError(f"needs at least one row and one resample, got {rows} and {samples}")
    if rows == 1:
        return dict.fromkeys(score(np.zeros(1, dtype=np.int64)))
    tail = _expanded_tail(_tail(level), rows)
    rng = np.random.default_rng(seed)
    values: dict[str, list[float]] = {}
    # each resample is a vector of row indexes, (rows,), and scores all metrics: their intervals are over the same rows
    for _ in range(samples):
        for metric, value in score(rng.integers(0, rows, size=rows)).items():
            values.setdefault(metric, []).append(value)
    intervals: dict[str, Interval] = {}
    for metric, samples_of_metric in values.items():
        finite = np.asarray(samples_of_metric, dtype=np.float64)
        finite = finite[np.isfinite(finite)]
        # "weibull" leaves the share `tail` beyond each end on average, however many resamples there are
        low, high = np.quantile(finite, [tail, 1 - tail], method="weibull") if finite.size else (0.0, 0.0)
        has_width = high - low > _ROUNDING * max(abs(low), abs(high))
        intervals[metric] = (float(low), float(high)) if has_width else None
    return intervals


def wilson_interval(successes: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """Compute the score interval of a share, which stays within [0, 1] and is valid for few rows (Wilson 1927).

    >>> low, high = wilson_interval(0, 10)
    >>> round(low, 4), round(high, 4)
    (0.0, 0.2775)
    >>> wilson_interval(0, 0)
    (0.0, 1.0)
    """
    if not 0 <= successes <= total:
        raise ValueError(f"needs 0 <= successes <= total, got {successes} of {total}")
    z = NormalDist().inv_cdf(1 - _tail(level))
    if total == 0:
        return 0.0, 1.0
    share = successes / total
    # The interval holds the shares whose distance from the observed one is at most z of their own standard errors. Its
    # ends are the roots of a quadratic equation.
    spread = 1 + z * z / total
    middle = (share + z * z / (2 * total)) / spread
    half = z / spread * (share * (1 - share) / total + z * z / (4 * total * total)) ** 0.5
    # at the edges an end is the share itself, without the rounding of the formula
    return middle - half if successes else 0.0, middle + half if successes < total else 1.0


def f1_of_share(share: float) -> float:
    """Return F1, given the share of what is gold or predicted that is both.

    >>> f1_of_share(0.5) == 2 * 1 / (2 * 1 + 1)
    True
    """
    return 2 * share / (1 + share)


def percent(share: float) -> float:
    """Return a share in percent."""
    return 100 * share


def _expanded_tail(tail: float, rows: int) -> float:
    """Return the tail of the normal distribution beyond Student's quantile, widened for the variance of resamples."""
    from scipy import special

    quantile = special.stdtrit(rows - 1, tail) * math.sqrt(rows / (rows - 1))
    return float(special.ndtr(quantile))


def _tail(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"a level lies between 0 and 1, got {level}")
    return (1 - level) / 2
