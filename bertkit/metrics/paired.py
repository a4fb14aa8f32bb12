"""Two systems on the same rows: difference of scores, its interval, and the number of rows that would show it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

import numpy as np

from bertkit.metrics.intervals import (
    Interval,
    RowScores,
    Score,
    bootstrap_intervals,
    count_units,
    find_metric,
    select_units,
    wilson_interval,
)

LEVEL = 0.05  # significance level of two-sided tests
POWER = 0.8


Runs = Sequence[RowScores]
"""Arrays of the runs of a system that differ in their seed."""


@dataclass(frozen=True)
class Difference:
    """The score of a second system minus the score of the first, on the same units."""

    first: float
    second: float
    difference: float
    interval: Interval
    """Ends of the 95% interval, or None without an interval."""
    p: float | None
    """Two-sided p-value, or None if a score is undefined."""
    test: str
    """Name of the test that `p` comes from."""
    rows_needed: int | None = None
    """Number of rows that would show this difference, or None if it is unknown or no number would."""
    detectable: float | None = None
    """Smallest difference that this number of rows would show."""
    mcnemar: float | None = None
    """P-value of McNemar's test, if the score is the fraction of right units."""
    seeds_needed: int | None = None
    """Number of seeds per system that would show this difference on these rows, with several seeds."""
    p_holm: float | None = None
    """`p` after Holm's correction, if several systems are compared with the first."""


def compare_paired(
    score: Score, first: RowScores, second: RowScores, metrics: Collection[str] = (), *, samples: int = 2000
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
    scores, second_scores = score(first), score(second)
    names = _comparable(scores, metrics)

    def subtract(rows: np.ndarray) -> dict[str, float]:
        before, after = score(select_units(first, rows)), score(select_units(second, rows))
        return {name: after[name] - before[name] for name in names}

    intervals = bootstrap_intervals(subtract, units)
    p_values, test = permutation_test(score, first, second, samples=samples)
    discordant = count_discordant(names, first, second, metrics)
    differences = {}
    for name in names:
        difference, interval = float(second_scores[name] - scores[name]), intervals[name]
        error = None if interval is None else to_standard_error(interval)
        differences[name] = Difference(
            first=float(scores[name]),
            second=float(second_scores[name]),
            difference=difference,
            interval=interval,
            p=p_values[name],
            test=test,
            rows_needed=None if error is None else compute_rows_needed(difference, error, units),
            detectable=None if error is None else _DETECTABLE * error,
            mcnemar=mcnemar(*discordant[name]) if name in discordant else None,
        )
    return differences


def _comparable(scores: Mapping[str, float], metrics: Collection[str]) -> list[str]:
    """Return the names of the scores that a test can compare: all but settings such as the best threshold."""
    return [name for name in scores if find_metric(metrics, name).is_score]


def swap_units(
    first: RowScores, second: RowScores, indices: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return copies of both sides whose units at `indices` have changed sides.

    >>> first, second = swap_units({"right": np.array([0, 0, 1])}, {"right": np.array([1, 1, 1])}, np.array([1]))
    >>> first["right"].tolist(), second["right"].tolist()
    ([0, 1, 1], [1, 0, 1])
    """
    first_copy, second_copy = ({name: values.copy() for name, values in side.items()} for side in (first, second))
    for name in first_copy:
        first_copy[name][indices], second_copy[name][indices] = second[name][indices], first[name][indices]
    return first_copy, second_copy


def find_differing_units(first: RowScores, second: RowScores) -> np.ndarray:
    """Find the units that two systems judge differently, in any of the arrays; shape (units that differ,)."""
    differs = np.zeros(count_units(first), dtype=bool)
    for name, values in first.items():
        is_nan = values != values  # NaN equals NaN here
        unequal = (values != second[name]) & ~(is_nan & (second[name] != second[name]))
        differs |= unequal.reshape(len(unequal), -1).any(axis=1)
    return np.flatnonzero(differs)


def permutation_test(
    score: Score, first: RowScores, second: RowScores, *, samples: int = 2000, seed: int = 0
) -> tuple[dict[str, float | None], str]:
    """Compute the two-sided p of each metric's difference under exchange of the two systems, unit by unit.

    If the systems are alike, either may have made either prediction of a unit, so a random half of the units changes
    sides (approximate randomization; Noreen 1989, Yeh 2000). The observed assignment counts as one of them, so that p
    is never 0 and the test never too bold (Phipson and Smyth 2010). Where `samples` suffice for all assignments, each
    is counted once and p is exact.

    Units that both systems judge alike change nothing and are not exchanged.

    Returns:
        p of each metric, or None if a score is undefined; and the name of the test.

    Of four rows, the second system has two more right. The four assignments of these two rows have differences of 0.5,
    0, 0 and -0.5. Two of four are at least as large as the observed 0.5:

    >>> first, second = {"right": np.array([0, 0, 1, 1])}, {"right": np.array([1, 1, 1, 1])}
    >>> permutation_test(lambda side: {"accuracy": float(side["right"].mean())}, first, second)
    ({'accuracy': 0.5}, 'exact permutation')
    """
    changed = find_differing_units(first, second)
    exact = len(changed) < 60 and 2 ** len(changed) <= samples
    before, after = score(first), score(second)
    observed = np.array([abs(after[name] - before[name]) for name in before])
    count = np.zeros(len(before))
    total = 2 ** len(changed) if exact else samples
    rng = np.random.default_rng(seed)
    # The bits of an assignment are the units that change sides: 2 is [0, 1] for two units.
    for assignment in range(total):
        flips = assignment >> np.arange(len(changed)) & 1 if exact else rng.integers(0, 2, size=len(changed))
        new_first, new_second = (
            score(row_scores) for row_scores in swap_units(first, second, changed[flips.astype(bool)])
        )
        differences = np.array([abs(new_second[name] - new_first[name]) for name in before])
        # An undefined difference counts against the systems; sums that differ only by rounding are equal.
        count += ~(differences < observed - _ROUNDING * np.maximum(observed, 1))
    shares = count / total if exact else (count + 1) / (total + 1)
    p_values = {
        name: float(share) if math.isfinite(value) else None
        for name, share, value in zip(before, shares, observed, strict=True)
    }
    return p_values, "exact permutation" if exact else "permutation"


def count_discordant(
    names: Iterable[str], first: RowScores, second: RowScores, metrics: Collection[str]
) -> dict[str, tuple[int, int]]:
    """Count the units that only the first system has right, and only the second, per metric of right units.

    Such a metric is the fraction of right units: its record counts hits among all units.
    """
    hits = [count_correct_units(names, side, metrics) for side in (first, second)]
    shares = [name for name in hits[0] if name in hits[1]]
    losses, wins = dict.fromkeys(shares, 0), dict.fromkeys(shares, 0)
    for unit in find_differing_units(first, second) if shares else ():
        before, after = (
            count_correct_units(shares, select_units(side, np.array([unit])), metrics) for side in (first, second)
        )
        for name in shares:
            losses[name] += before[name] > after[name]
            wins[name] += after[name] > before[name]
    # If units one by one do not add up to the total, the score is not a fraction of units, and McNemar's test is wrong.
    gains = {name: hits[1][name] - hits[0][name] for name in shares}
    return {name: (losses[name], wins[name]) for name in shares if gains[name] == wins[name] - losses[name]}


def count_correct_units(names: Iterable[str], row_scores: RowScores, metrics: Collection[str]) -> dict[str, int]:
    """Count the units that are right, for each metric that is their share; such a metric exists for a single unit."""
    counts = {name: find_metric(metrics, name).counts(row_scores) for name in names}
    units = count_units(row_scores)
    return {name: counted[0] for name, counted in counts.items() if counted is not None and counted[1] == units}


def mcnemar(losses: int, wins: int) -> float:
    """Compute the exact two-sided p of McNemar's test: a fair coin for each unit that only one system has right.

    >>> mcnemar(0, 5), mcnemar(3, 3)
    (0.0625, 1.0)
    """
    from scipy import special

    return min(1.0, 2 * float(special.bdtr(min(losses, wins), losses + wins, 0.5)))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct p of several tests, so that one among true hypotheses is rejected in 5 % of all cases (Holm 1979).

    >>> holm([0.01, 0.04, None, 0.03])
    [0.03, 0.06, None, 0.06]
    """
    corrected: list[float | None] = [None] * len(p_values)
    order = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    # In the example, the three p values in order are multiplied by 3, 2 and 1: 0.03, 0.06 and 0.04. A test cannot be
    # more significant than one with a lower p, so the last becomes 0.06.
    highest = 0.0
    for rank, (p, index) in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p))
        corrected[index] = highest
    return corrected


def apply_holm(differences: Sequence[Difference]) -> list[Difference]:
    """Set `p_holm` of differences that are tested together; a single test needs no correction."""
    if len(differences) < 2:
        return list(differences)
    corrected = holm([difference.p for difference in differences])
    return [replace(difference, p_holm=p) for difference, p in zip(differences, corrected, strict=True)]


def judge_difference(
    comparison: Difference, units: int, margin: float = 0.0, *, lower_is_better: bool = False
) -> Literal["passed", "failed", "undecided"]:
    """Return whether a second system is worse than the first by more than a margin, on this number of units.

    It failed if the complete interval of the difference is below the margin; if it is one of several differences, its
    corrected p must be below `LEVEL` too. Otherwise it passed if there is no margin. With a margin (non-inferiority),
    it passed if the complete interval is above the margin, and is undecided in all other cases.

    >>> shown, unknown = (Difference(0.9, 0.8, -0.1, ends, 0.01, "") for ends in ((-0.15, -0.05), (-0.3, 0.1)))
    >>> [judge_difference(found, 500, margin) for found in (shown, unknown) for margin in (0, 0.2)]
    ['failed', 'passed', 'passed', 'undecided']
    """
    if not math.isfinite(comparison.difference):
        return "undecided"
    # All resamples differ by the same: the true difference is at most a fraction of unseen rows away.
    if comparison.interval is None:
        unseen, p = wilson_interval(0, units)[1], comparison.p
        ends = (comparison.difference - unseen, comparison.difference + (unseen if margin else 0.0))
    else:
        ends, p = comparison.interval, 0.0
    p = p if comparison.p_holm is None else comparison.p_holm
    low, high = (-ends[1], -ends[0]) if lower_is_better else ends
    if high < -margin and p is not None and p < LEVEL:
        return "failed"
    return "passed" if low > -margin or not margin else "undecided"


def to_standard_error(interval: tuple[float, float]) -> float:
    """Compute the standard error that corresponds to the width of a 95% interval."""
    low, high = interval
    return (high - low) / (2 * _QUANTILE)


def compute_rows_needed(difference: float, error: float, rows: int) -> int | None:
    """Compute how many rows would show a true difference of this size in 80 % of all cases, at p < .05.

    Returns None if the difference is 0 or undefined.

    A standard error shrinks with the square root of the rows, and the difference must be z(.975) + z(.8) = 2.80 of
    them (Lachin 1981, equation 1, for a paired difference; Card et al. 2020 on systems of language processing).

    >>> compute_rows_needed(0.02, 0.01, 1000)
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
    difference follows a mixed model with these two random effects, by moments: the variance over resampled rows,
    plus the variance between seeds, minus the interaction, which both contain. Student's distribution has the
    degrees of freedom of Satterthwaite (1946), which accounts for few seeds. `docs/compare.md` gives the reasons
    and the error rates.

    Args:
        score: Computes metrics from arrays such as `first`.
        first: Arrays of the baseline, one per seed, at least two; all over the same units in the same order.
        second: Arrays of the system to compare with it; the number of seeds can differ.
        metrics: Table of the task family, by which numbers that are not scores are left out.
        samples: Number of resamples of the units.
    """
    systems = (first, second)
    units = count_units(first[0])
    observed = [[score(row_scores) for row_scores in system] for system in systems]
    rng = np.random.default_rng(0)
    draws = [rng.integers(0, units, size=units) for _ in range(samples)]
    # All seeds of both systems are scored on the same draws, which keeps the comparison paired by rows.
    resampled = [
        [[score(select_units(row_scores, rows)) for rows in draws] for row_scores in system] for system in systems
    ]
    differences = {}
    for name in _comparable(observed[0][0], metrics):
        scores = [np.array([seed[name] for seed in system]) for system in observed]
        # (seeds, resamples)
        means = [np.array([[sample[name] for sample in seed] for seed in system]) for system in resampled]
        differences[name] = _describe_difference(scores, means, units)
    return differences


@dataclass(frozen=True)
class _Variance:
    """Variance of a difference of means over seeds, in parts that shrink with rows, seeds, or both."""

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


def _describe_difference(scores: Sequence[np.ndarray], resampled: Sequence[np.ndarray], units: int) -> Difference:
    first, second = (float(values.mean()) for values in scores)
    difference = second - first
    undefined = Difference(first, second, difference, None, None, _TEST)
    finite = np.isfinite(resampled[0]).all(axis=0) & np.isfinite(resampled[1]).all(axis=0)
    if not math.isfinite(difference) or finite.sum() < 2:
        return undefined
    variance = _estimate_variance(scores, [values[:, finite] for values in resampled], units)
    if variance.total <= _SEEDS_ROUNDING:
        return undefined
    from scipy import special

    counts = [len(values) for values in scores]
    degrees, error = variance.degrees(units, counts), math.sqrt(variance.total)
    quantile = float(special.stdtrit(degrees, 1 - LEVEL / 2))
    # Number of standard errors that a test detects with power .8.
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


def _estimate_variance(scores: Sequence[np.ndarray], resampled: Sequence[np.ndarray], units: int) -> _Variance:
    """Estimate the parts of the variance; `scores` have shape (seeds,), `resampled` (seeds, resamples), per system."""
    unbiased = units / (units - 1)  # a resample varies less than a sample does
    seeds = tuple(float(values.var(ddof=1)) / len(values) for values in scores)
    interaction = 0.0
    for values in resampled:
        # Deviation of each seed from the mean of the seeds, in each resample of the rows. Its variance over resamples
        # measures the interaction: how differently the seeds react to other rows.
        deviations = values - values.mean(axis=0)
        interaction += float(deviations.var(axis=1).mean()) * unbiased / (len(values) - 1)
    rows = float((resampled[1].mean(axis=0) - resampled[0].mean(axis=0)).var()) * unbiased
    return _Variance(rows, (seeds[0], seeds[1]), interaction)


def _scale(variance: _Variance, rest: float, error: float, count: int) -> int | None:
    """Compute how many rows or seeds, of `count` now, bring the standard error down to `error`.

    `rest` is the part of the variance that they do not lower, with the interaction. Returns None if this part is too
    large.
    """
    stays = max(rest - variance.interaction, 0.0)
    shrinks = variance.total - stays
    return math.ceil(count * shrinks / (error**2 - stays)) if error**2 > stays else None


_TEST = "t over seeds and rows"
_SEEDS_ROUNDING = 1e-18
