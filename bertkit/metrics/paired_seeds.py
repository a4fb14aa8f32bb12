"""Two systems of several seeds each on the same rows: whether their difference outlasts other seeds and other rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertkit.metrics.intervals import Judged, Setting, count_units, take
from bertkit.metrics.paired import LEVEL, POWER, Difference, Score


def compare_seeds(
    score: Score, first: Sequence[Judged], second: Sequence[Judged], *, samples: int = 1000
) -> dict[str, Difference]:
    """Compute each metric's difference of means over seeds, with an interval and p over seeds and rows together.

    Seeds and rows are both random and crossed: every seed of either system is scored on every row. The variance of the
    difference is that of a mixed model with these two random effects, by moments: the variance over resampled rows,
    plus that between seeds, minus the interaction of both, which both of them contain. Student's distribution has the
    degrees of freedom of Satterthwaite (1946), so that few seeds cost what they should. `docs/compare.md` says why this
    and how often it errs.

    Args:
        score: computes metrics from arrays such as those of `first`.
        first: the baseline, one per seed, at least two; all over the same units in the same order.
        second: the system that is compared with it, as many seeds or not.
        samples: how many resamples of the units.
    """
    systems = (first, second)
    units = count_units(first[0])
    observed = [[score(judged) for judged in system] for system in systems]
    metrics = [name for name, value in observed[0][0].items() if not isinstance(value, Setting)]
    rng = np.random.default_rng(0)
    draws = [rng.integers(0, units, size=units) for _ in range(samples)]
    resampled = [[[score(take(judged, rows)) for rows in draws] for judged in system] for system in systems]
    compared = {}
    for name in metrics:
        scores = [np.array([of_seed[name] for of_seed in system]) for system in observed]
        # (seeds, resamples)
        drawn = [np.array([[one[name] for one in of_seed] for of_seed in system]) for system in resampled]
        compared[name] = _describe_difference(scores, drawn, units)
    return compared


@dataclass(frozen=True)
class _Variance:
    """The variance of a difference of means over seeds, in parts that shrink with rows, seeds, or both."""

    rows: float
    """Variance of the mean over these seeds, over other rows; contains the interaction."""
    seeds: tuple[float, float]
    """Variance of each system's mean, over other seeds on these rows; contains the interaction."""
    interaction: float

    @property
    def total(self) -> float:
        """The variance of the difference; an estimate of the interaction never lowers it below one of its parts."""
        return max(self.rows + sum(self.seeds) - self.interaction, self.rows, sum(self.seeds))

    def degrees(self, units: int, counts: Sequence[int]) -> float:
        """Compute Satterthwaite's degrees of freedom."""
        parts = [(self.rows, units - 1)] + [(part, count - 1) for part, count in zip(self.seeds, counts, strict=True)]
        return self.total**2 / sum(part**2 / degrees for part, degrees in parts)


def _describe_difference(scores: Sequence[np.ndarray], drawn: Sequence[np.ndarray], units: int) -> Difference:
    first, second = (float(values.mean()) for values in scores)
    difference = second - first
    undefined = Difference(first, second, difference, None, None, _TEST)
    finite = np.isfinite(drawn[0]).all(axis=0) & np.isfinite(drawn[1]).all(axis=0)
    if not math.isfinite(difference) or finite.sum() < 2:
        return undefined
    variance = _estimate_variance(scores, [values[:, finite] for values in drawn], units)
    if variance.total <= _ROUNDING:
        return undefined
    from scipy import special

    counts = [len(values) for values in scores]
    degrees, error = variance.degrees(units, counts), math.sqrt(variance.total)
    quantile = float(special.stdtrit(degrees, 1 - LEVEL / 2))
    reach = quantile + float(special.stdtrit(degrees, POWER))  # standard errors that show with power .8
    return Difference(
        first=first,
        second=second,
        difference=difference,
        interval=(difference - quantile * error, difference + quantile * error),
        p=2 * float(special.stdtr(degrees, -abs(difference) / error)),
        test=_TEST,
        rows_needed=_scale(variance, sum(variance.seeds), difference / reach, units),
        detectable=reach * error,
        seeds_needed=_scale(variance, variance.rows, difference / reach, max(counts)),
    )


def _estimate_variance(scores: Sequence[np.ndarray], drawn: Sequence[np.ndarray], units: int) -> _Variance:
    """Estimate the parts of the variance; `scores` have shape (seeds,), `drawn` (seeds, resamples), per system."""
    unbiased = units / (units - 1)  # a resample varies less than a sample does
    seeds = tuple(float(values.var(ddof=1)) / len(values) for values in scores)
    interaction = 0.0
    for values in drawn:
        # how far each seed moves from the mean of the seeds as rows change: the interaction, less its own mean
        deviations = values - values.mean(axis=0)
        interaction += float(deviations.var(axis=1).mean()) * unbiased / (len(values) - 1)
    rows = float((drawn[1].mean(axis=0) - drawn[0].mean(axis=0)).var()) * unbiased
    return _Variance(rows, (seeds[0], seeds[1]), interaction)


def _scale(variance: _Variance, rest: float, error: float, count: int) -> int | None:
    """Compute how many rows or seeds, of `count` now, bring the standard error down to `error`.

    `rest` is the part of the variance that they do not lower, with the interaction; None where it alone is too large.
    """
    stays = max(rest - variance.interaction, 0.0)
    shrinks = variance.total - stays
    return math.ceil(count * shrinks / (error**2 - stays)) if error**2 > stays else None


_TEST = "t over seeds and rows"
_ROUNDING = 1e-18
