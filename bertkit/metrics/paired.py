"""Two systems on the same rows: the difference of their scores, how sure it is, and how many rows would show it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

import numpy as np

from bertkit.metrics.intervals import (
    Interval,
    Judged,
    Score,
    bootstrap_intervals,
    count_units,
    find_metric,
    take,
    wilson_interval,
)

LEVEL = 0.05  # of two-sided tests
POWER = 0.8


Runs = Sequence[Judged]
"""Arrays of the runs of a system that differ in their seed."""


@dataclass(frozen=True)
class Difference:
    """The score of a second system minus that of the first, on the same units."""

    first: float
    second: float
    difference: float
    interval: Interval
    """Ends of the 95% interval; None where there is none."""
    p: float | None
    """Two-sided; None where a score is undefined."""
    test: str
    """What `p` comes from."""
    rows_needed: int | None = None
    """How many rows would show this difference; None where no number would, or nobody knows."""
    detectable: float | None = None
    """The least difference that as many rows as these would show."""
    mcnemar: float | None = None
    """P of McNemar's test, of a score that is the share of units that are right."""
    seeds_needed: int | None = None
    """How many seeds per system would show this difference on these rows, where there are seeds."""
    p_holm: float | None = None
    """`p` after Holm's correction, where several systems are compared with the first."""


def compare_paired(
    score: Score, first: Judged, second: Judged, metrics: Collection[str] = (), *, samples: int = 2000
) -> dict[str, Difference]:
    """Compute each metric's difference, with a paired bootstrap interval and the p of a permutation test.

    Args:
        score: Computes metrics from arrays such as `first`.
        first: Arrays of the baseline, over the same units in the same order as `second`.
        second: Arrays of the system that is compared with it.
        metrics: Table of the task family, by which numbers that are not scores are left out.
        samples: Number of permutations; there are as many resamples as for any interval.
    """
    units = count_units(first)
    scores, others = score(first), score(second)
    names = _comparable(scores, metrics)

    def subtract(numbers: np.ndarray) -> dict[str, float]:
        before, after = score(take(first, numbers)), score(take(second, numbers))
        return {name: after[name] - before[name] for name in names}

    intervals = bootstrap_intervals(subtract, units)
    p_values, test = permutation_test(score, first, second, samples=samples)
    discordant = count_discordant(names, first, second, metrics)
    compared = {}
    for name in names:
        difference, interval = float(others[name] - scores[name]), intervals[name]
        error = None if interval is None else standard_error(interval)
        compared[name] = Difference(
            first=float(scores[name]),
            second=float(others[name]),
            difference=difference,
            interval=interval,
            p=p_values[name],
            test=test,
            rows_needed=None if error is None else rows_for_power(difference, error, units),
            detectable=None if error is None else _DETECTABLE * error,
            mcnemar=mcnemar(*discordant[name]) if name in discordant else None,
        )
    return compared


def _comparable(scores: Mapping[str, float], metrics: Collection[str]) -> list[str]:
    """Return the names of the scores that a test can compare: all but settings such as the best threshold."""
    return [name for name in scores if find_metric(metrics, name).is_score]


def swap(first: Judged, second: Judged, numbers: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return copies of both sides whose units at `numbers` have changed sides."""
    one, other = ({name: values.copy() for name, values in judged.items()} for judged in (first, second))
    for name in one:
        one[name][numbers], other[name][numbers] = second[name][numbers], first[name][numbers]
    return one, other


def find_changed(first: Judged, second: Judged) -> np.ndarray:
    """Find the units that two systems judge differently, in any of the arrays; shape (units that differ,)."""
    differs = np.zeros(count_units(first), dtype=bool)
    for name, values in first.items():
        is_nan = values != values  # NaN equals NaN here
        unequal = (values != second[name]) & ~(is_nan & (second[name] != second[name]))
        differs |= unequal.reshape(len(unequal), -1).any(axis=1)
    return np.flatnonzero(differs)


def permutation_test(
    score: Score, first: Judged, second: Judged, *, samples: int = 2000, seed: int = 0
) -> tuple[dict[str, float | None], str]:
    """Compute the two-sided p of each metric's difference under exchange of the two systems, unit by unit.

    If the systems are alike, either may have made either prediction of a unit, so a random half of the units changes
    sides (approximate randomization; Noreen 1989, Yeh 2000). The observed assignment counts as one of them, so that p
    is never 0 and the test never too bold (Phipson and Smyth 2010). Where `samples` suffice for all assignments, each
    is counted once and p is exact.

    Units that both systems judge alike change nothing and are not exchanged.

    Returns:
        p of each metric, None where a score is undefined; and the name of the test.
    """
    changed = find_changed(first, second)
    exact = len(changed) < 60 and 2 ** len(changed) <= samples
    before, after = score(first), score(second)
    observed = np.array([abs(after[name] - before[name]) for name in before])
    count = np.zeros(len(before))
    total = 2 ** len(changed) if exact else samples
    rng = np.random.default_rng(seed)
    for number in range(total):
        sides = number >> np.arange(len(changed)) & 1 if exact else rng.integers(0, 2, size=len(changed))
        one, other = (score(judged) for judged in swap(first, second, changed[sides.astype(bool)]))
        differences = np.array([abs(other[name] - one[name]) for name in before])
        # an undefined difference counts against the systems; sums that differ by rounding only are the same
        count += ~(differences < observed - _ROUNDING * np.maximum(observed, 1))
    shares = count / total if exact else (count + 1) / (total + 1)
    p_values = {
        name: float(share) if math.isfinite(value) else None
        for name, share, value in zip(before, shares, observed, strict=True)
    }
    return p_values, "exact permutation" if exact else "permutation"


def count_discordant(
    names: Iterable[str], first: Judged, second: Judged, metrics: Collection[str]
) -> dict[str, tuple[int, int]]:
    """Count the units that only the first system has right, and only the second, for each metric that is their share.

    A metric is such a share if its record counts hits among all units.
    """
    hits = [count_right(names, side, metrics) for side in (first, second)]
    shares = [name for name in hits[0] if name in hits[1]]
    losses, wins = dict.fromkeys(shares, 0), dict.fromkeys(shares, 0)
    for unit in find_changed(first, second) if shares else ():
        before, after = (count_right(shares, take(side, np.array([unit])), metrics) for side in (first, second))
        for name in shares:
            losses[name] += before[name] > after[name]
            wins[name] += after[name] > before[name]
    gains = {name: hits[1][name] - hits[0][name] for name in shares}
    return {name: (losses[name], wins[name]) for name in shares if gains[name] == wins[name] - losses[name]}


def count_right(names: Iterable[str], compared: Judged, metrics: Collection[str]) -> dict[str, int]:
    """Count the units that are right, for each metric that is their share; such a metric exists for a single unit."""
    counts = {name: find_metric(metrics, name).counts(compared) for name in names}
    units = count_units(compared)
    return {name: counted[0] for name, counted in counts.items() if counted is not None and counted[1] == units}


def mcnemar(lost: int, won: int) -> float:
    """Compute the exact two-sided p of McNemar's test: a fair coin for each unit that only one system has right.

    >>> mcnemar(0, 5), mcnemar(3, 3)
    (0.0625, 1.0)
    """
    from scipy import special

    return min(1.0, 2 * float(special.bdtr(min(lost, won), lost + won, 0.5)))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct p of several tests, so that one among true hypotheses is rejected in 5 % of all cases (Holm 1979).

    >>> holm([0.01, 0.04, None, 0.03])
    [0.03, 0.06, None, 0.06]
    """
    corrected: list[float | None] = [None] * len(p_values)
    order = sorted((p, number) for number, p in enumerate(p_values) if p is not None)
    highest = 0.0
    for rank, (p, number) in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p))
        corrected[number] = highest
    return corrected


def correct_differences(differences: Sequence[Difference]) -> list[Difference]:
    """Set `p_holm` of differences that are tested together; a single test needs no correction."""
    if len(differences) < 2:
        return list(differences)
    corrected = holm([difference.p for difference in differences])
    return [replace(difference, p_holm=p) for difference, p in zip(differences, corrected, strict=True)]


def judge_difference(
    found: Difference, units: int, margin: float = 0.0, *, lower_is_better: bool = False
) -> Literal["passed", "failed", "undecided"]:
    """Tell whether a second system is worse than the first by more than a margin, on so many units.

    It has failed where the whole interval of the difference lies below the margin; where `found` is one of several, its
    corrected p must be below `LEVEL` too. Without a margin it has passed otherwise. With one (non-inferiority), the
    whole interval must lie above it, and between the two nothing is decided.

    >>> shown, unknown = (Difference(0.9, 0.8, -0.1, ends, 0.01, "") for ends in ((-0.15, -0.05), (-0.3, 0.1)))
    >>> [judge_difference(found, 500, margin) for found in (shown, unknown) for margin in (0, 0.2)]
    ['failed', 'passed', 'passed', 'undecided']
    """
    if not math.isfinite(found.difference):
        return "undecided"
    # resamples differ by the same: no more than a share of the rows that none has shown
    if found.interval is None:
        unseen, p = wilson_interval(0, units)[1], found.p
        ends = (found.difference - unseen, found.difference + (unseen if margin else 0.0))
    else:
        ends, p = found.interval, 0.0
    p = p if found.p_holm is None else found.p_holm
    low, high = (-ends[1], -ends[0]) if lower_is_better else ends
    if high < -margin and p is not None and p < LEVEL:
        return "failed"
    return "passed" if low > -margin or not margin else "undecided"


def standard_error(interval: tuple[float, float]) -> float:
    """Compute the standard error that a 95% interval stands for, from its width."""
    low, high = interval
    return (high - low) / (2 * _QUANTILE)


def rows_for_power(difference: float, error: float, rows: int) -> int | None:
    """Compute how many rows would show a true difference of this size in 80 % of all cases, at p < .05; None for 0.

    A standard error shrinks with the square root of the rows, and the difference must be z(.975) + z(.8) = 2.80 of
    them (Lachin 1981, equation 1, for a paired difference; Card et al. 2020 on systems of language processing).

    >>> rows_for_power(0.02, 0.01, 1000)
    1963
    """
    if not difference or not math.isfinite(difference):
        return None
    return math.ceil(rows * (_DETECTABLE * error / difference) ** 2)


_ROUNDING = 1e-12
_QUANTILE = NormalDist().inv_cdf(1 - LEVEL / 2)
_DETECTABLE = _QUANTILE + NormalDist().inv_cdf(POWER)  # standard errors


def compare_seeds(
    score: Score, first: Runs, second: Runs, metrics: Collection[str] = (), *, samples: int = 1000
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
        metrics: Table of the task family, by which numbers that are not scores are left out.
        samples: Number of resamples of the units.
    """
    systems = (first, second)
    units = count_units(first[0])
    observed = [[score(judged) for judged in system] for system in systems]
    rng = np.random.default_rng(0)
    draws = [rng.integers(0, units, size=units) for _ in range(samples)]
    resampled = [[[score(take(judged, rows)) for rows in draws] for judged in system] for system in systems]
    compared = {}
    for name in _comparable(observed[0][0], metrics):
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
    if variance.total <= _SEEDS_ROUNDING:
        return undefined
    from scipy import special

    counts = [len(values) for values in scores]
    degrees, error = variance.degrees(units, counts), math.sqrt(variance.total)
    quantile = float(special.stdtrit(degrees, 1 - LEVEL / 2))
    # standard errors that show with power .8
    reach = quantile + float(special.stdtrit(degrees, POWER))
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
_SEEDS_ROUNDING = 1e-18
