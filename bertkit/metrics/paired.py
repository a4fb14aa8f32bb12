"""Compare two systems on the same rows: difference of scores, its interval and p-value, and the rows that it needs."""

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
    count_examples,
    find_metric,
    select_units,
    wilson_interval,
)

LEVEL = 0.05  # significance level of two-sided tests
# Probability that a test finds a true difference.
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
    """95% interval of the difference, or None if it has none."""
    p: float | None
    """Two-sided p-value, or None if a score is undefined."""
    test: str
    """Name of the test that `p` comes from."""
    rows_needed: int | None = None
    """Number of rows at which this difference is significant with power .8, or None if unknown or none suffices."""
    detectable: float | None = None
    """Smallest true difference that is significant on these rows with power .8."""
    mcnemar: float | None = None
    """P-value of McNemar's test, or None unless the score is the fraction of correct units."""
    seeds_needed: int | None = None
    """Number of seeds per system at which this difference is significant on these rows with power .8, or None."""
    p_holm: float | None = None
    """`p` after Holm's correction, if several systems are compared with the first."""


def compare_paired(
    score: Score, first: RowScores, second: RowScores, metrics: Collection[str] = (), *, samples: int = 2000
) -> dict[str, Difference]:
    """Compute each metric's difference, its interval by a paired bootstrap, and its p-value by a permutation test.

    Args:
        score: Computes metrics from arrays such as `first`.
        first: Arrays of the baseline.
        second: Arrays of the other system, with the same units in the same order.
        metrics: Table of the task family; metrics that it declares not to be scores are skipped.
        samples: Number of permutations. The bootstrap has 1,000 resamples.
    """
    units = count_examples(first)
    scores, other_scores = score(first), score(second)
    names = _list_scores(scores, metrics)

    def subtract(rows: np.ndarray) -> dict[str, float]:
        first_scores, second_scores = score(select_units(first, rows)), score(select_units(second, rows))
        return {name: second_scores[name] - first_scores[name] for name in names}

    intervals = bootstrap_intervals(subtract, units)
    p_values, test = permutation_test(score, first, second, samples=samples)
    discordant = count_discordant(names, first, second, metrics)
    differences = {}
    for name in names:
        difference, interval = float(other_scores[name] - scores[name]), intervals[name]
        error = None if interval is None else to_standard_error(interval)
        differences[name] = Difference(
            first=float(scores[name]),
            second=float(other_scores[name]),
            difference=difference,
            interval=interval,
            p=p_values[name],
            test=test,
            rows_needed=None if error is None else compute_rows_needed(difference, error, units),
            detectable=None if error is None else _DETECTABLE * error,
            mcnemar=mcnemar(*discordant[name]) if name in discordant else None,
        )
    return differences


def _list_scores(scores: Mapping[str, float], metrics: Collection[str]) -> list[str]:
    """List the metrics that a test can compare: all except settings such as the best threshold."""
    return [name for name in scores if find_metric(metrics, name).is_score]


def swap_units(
    first: RowScores, second: RowScores, indices: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return copies of both systems' arrays, with the units at `indices` exchanged.

    >>> first, second = swap_units({"correct": np.array([0, 0, 1])}, {"correct": np.array([1, 1, 1])}, np.array([1]))
    >>> first["correct"].tolist(), second["correct"].tolist()
    ([0, 1, 1], [1, 0, 1])
    """
    first_copy, second_copy = ({name: values.copy() for name, values in system.items()} for system in (first, second))
    for name in first_copy:
        first_copy[name][indices], second_copy[name][indices] = second[name][indices], first[name][indices]
    return first_copy, second_copy


def find_differing_units(first: RowScores, second: RowScores) -> np.ndarray:
    """Return the indices of the units at which any array of the two systems differs. Shape: (differing units,)."""
    differs = np.zeros(count_examples(first), dtype=bool)
    for name, values in first.items():
        # Two NaN values are equal.
        is_nan = values != values
        unequal = (values != second[name]) & ~(is_nan & (second[name] != second[name]))
        differs |= unequal.reshape(len(unequal), -1).any(axis=1)
    return np.flatnonzero(differs)


def permutation_test(
    score: Score, first: RowScores, second: RowScores, *, samples: int = 2000, seed: int = 0
) -> tuple[dict[str, float | None], str]:
    """Compute the two-sided p-value of each metric's difference by exchanging the two systems at random units.

    Under the null hypothesis, either system could have made either prediction of a unit. So each assignment exchanges
    a random half of the units (approximate randomization; Noreen 1989, Yeh 2000), and p is the fraction of assignments
    whose difference is at least as large as the observed one. The observed assignment is counted too, so p is never 0,
    and the test is valid for any number of samples (Phipson and Smyth 2010). If all assignments are at most `samples`,
    each is counted once, and p is exact. Units without a difference between the systems are not exchanged.

    Returns:
        Metric -> p, or None if its observed difference is undefined; and the name of the test.

    Of four rows, the second system predicts two more correctly. The four assignments of these two rows have the
    differences 0.5, 0, 0 and -0.5. The absolute values of two are at least the observed 0.5:

    >>> first, second = {"correct": np.array([0, 0, 1, 1])}, {"correct": np.array([1, 1, 1, 1])}
    >>> permutation_test(lambda system: {"accuracy": float(system["correct"].mean())}, first, second)
    ({'accuracy': 0.5}, 'exact permutation')
    """
    units = find_differing_units(first, second)
    is_exact = len(units) < 60 and 2 ** len(units) <= samples
    first_scores, second_scores = score(first), score(second)
    observed_differences = np.array([abs(second_scores[name] - first_scores[name]) for name in first_scores])
    counts = np.zeros(len(first_scores))
    total = 2 ** len(units) if is_exact else samples
    rng = np.random.default_rng(seed)
    # The bits of an assignment are the units that it exchanges: 2 is [0, 1] for two units.
    for assignment in range(total):
        bits = assignment >> np.arange(len(units)) & 1 if is_exact else rng.integers(0, 2, size=len(units))
        new_first, new_second = map(score, swap_units(first, second, units[bits.astype(bool)]))
        differences = np.array([abs(new_second[name] - new_first[name]) for name in first_scores])
        # An undefined difference counts as at least as large; sums that differ only by rounding are equal.
        counts += ~(differences < observed_differences - _ROUNDING * np.maximum(observed_differences, 1))
    fractions = counts / total if is_exact else (counts + 1) / (total + 1)
    p_values = {
        name: float(p) if math.isfinite(difference) else None
        for name, p, difference in zip(first_scores, fractions, observed_differences, strict=True)
    }
    return p_values, "exact permutation" if is_exact else "permutation"


def count_discordant(
    names: Iterable[str], first: RowScores, second: RowScores, metrics: Collection[str]
) -> dict[str, tuple[int, int]]:
    """Count the units that only the first system, and only the second, predicts correctly, for McNemar's test.

    Returns:
        Metric -> (losses, wins) of the second system, for metrics that are the fraction of correct units.
    """
    systems = (first, second)
    first_counts, second_counts = (count_correct(names, system, metrics) for system in systems)
    fractions = [name for name in first_counts if name in second_counts]
    losses, wins = dict.fromkeys(fractions, 0), dict.fromkeys(fractions, 0)
    for unit in find_differing_units(first, second) if fractions else ():
        units = [select_units(system, np.array([unit])) for system in systems]
        first_correct, second_correct = (count_correct(fractions, unit_scores, metrics) for unit_scores in units)
        for name in fractions:
            losses[name] += first_correct[name] > second_correct[name]
            wins[name] += second_correct[name] > first_correct[name]
    # If single units do not add up to the total, the score is not a fraction of units, and the test does not apply.
    gains = {name: second_counts[name] - first_counts[name] for name in fractions}
    return {name: (losses[name], wins[name]) for name in fractions if gains[name] == wins[name] - losses[name]}


def count_correct(names: Iterable[str], row_scores: RowScores, metrics: Collection[str]) -> dict[str, int]:
    """Count the correct units, for each metric that is the fraction of correct units; other metrics are left out."""
    counts = {name: find_metric(metrics, name).counts(row_scores) for name in names}
    units = count_examples(row_scores)
    return {name: ratio[0] for name, ratio in counts.items() if ratio is not None and ratio[1] == units}


def mcnemar(losses: int, wins: int) -> float:
    """Compute the two-sided p-value of McNemar's exact test; it is 1 without any discordant unit.

    Under the null hypothesis, a unit that only one system predicts correctly is a loss or a win with probability 1/2.

    >>> mcnemar(0, 5), mcnemar(3, 3)
    (0.0625, 1.0)
    """
    from scipy import special

    return min(1.0, 2 * float(special.bdtr(min(losses, wins), losses + wins, 0.5)))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct the p-values of several tests (Holm 1979); None stays None and does not count as a test.

    Tests at level .05 then reject any true null hypothesis with a probability of at most .05, under any dependence.

    >>> holm([0.01, 0.04, None, 0.03])
    [0.03, 0.06, None, 0.06]
    """
    corrected: list[float | None] = [None] * len(p_values)
    order = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    # In the example, the three p-values in order are multiplied by 3, 2 and 1: 0.03, 0.06 and 0.04. A test cannot be
    # more significant than one with a lower p, so the last becomes 0.06.
    highest_p = 0.0
    for rank, (p, index) in enumerate(order):
        highest_p = max(highest_p, min(1.0, (len(order) - rank) * p))
        corrected[index] = highest_p
    return corrected


def apply_holm(differences: Sequence[Difference]) -> list[Difference]:
    """Return the differences of one family of tests with `p_holm` set; a single test needs no correction."""
    if len(differences) < 2:
        return list(differences)
    corrected = holm([difference.p for difference in differences])
    return [replace(difference, p_holm=p) for difference, p in zip(differences, corrected, strict=True)]


def judge_difference(
    comparison: Difference, units: int, margin: float = 0.0, *, lower_is_better: bool = False
) -> Literal["passed", "failed", "undecided"]:
    """Return whether a second system is worse than the first by more than a margin.

    * "failed": the complete interval of the difference is below -margin. The corrected p of several differences, or the
      p of a difference without an interval, must also be below `LEVEL`.
    * "passed": otherwise, if the margin is 0 or the complete interval is above -margin (non-inferiority).
    * "undecided": in all other cases, and if the difference is undefined.

    Args:
        comparison: Difference of the second system to the first.
        units: Number of units that both systems were scored on.
        margin: Acceptable loss; 0 or more.
        lower_is_better: Whether a lower score is better.

    >>> worse, unclear = (Difference(0.9, 0.8, -0.1, ends, 0.01, "") for ends in ((-0.15, -0.05), (-0.3, 0.1)))
    >>> [judge_difference(comparison, 500, margin) for comparison in (worse, unclear) for margin in (0, 0.2)]
    ['failed', 'passed', 'passed', 'undecided']
    """
    if not math.isfinite(comparison.difference):
        return "undecided"
    # Without an interval, all resamples have the same difference. The true one can deviate from it by the fraction of
    # rows that never occurred in these units, which is at most the upper end of Wilson's interval.
    if comparison.interval is None:
        unseen, p = wilson_interval(0, units)[1], comparison.p
        bounds = (comparison.difference - unseen, comparison.difference + (unseen if margin else 0.0))
    else:
        bounds, p = comparison.interval, 0.0
    p = p if comparison.p_holm is None else comparison.p_holm
    low, high = (-bounds[1], -bounds[0]) if lower_is_better else bounds
    if high < -margin and p is not None and p < LEVEL:
        return "failed"
    return "passed" if low > -margin or not margin else "undecided"


def to_standard_error(interval: tuple[float, float]) -> float:
    """Return the standard error of a normal distribution whose 95% interval has this width."""
    low, high = interval
    return (high - low) / (2 * _QUANTILE)


def compute_rows_needed(difference: float, error: float, rows: int) -> int | None:
    """Return the number of rows at which a true difference has p < .05 with a probability (power) of .8.

    The difference must be z(.975) + z(.8) = 2.80 standard errors (Lachin 1981, equation 1, for a paired difference;
    Card et al. 2020 for NLP systems), and the standard error shrinks with the square root of the rows.

    Args:
        difference: True difference.
        error: Standard error of the difference on `rows` rows.
        rows: Present number of rows.

    Returns:
        Number of rows, or None if the difference is 0 or undefined.

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
    """Compute each metric's difference of means over seeds, with an interval and p-value over both seeds and rows.

    Seeds and rows are crossed random effects: every seed of either system is scored on every row. The variance of the
    difference is estimated by moments: the variance over resampled rows, plus the variance between seeds, minus their
    interaction, which both parts contain. The t distribution has Satterthwaite's degrees of freedom (1946), which
    account for few seeds. `docs/compare.md` gives the reasons and the error rates.

    Args:
        score: Computes metrics from arrays such as `first[0]`.
        first: Arrays of the baseline, for each of at least two seeds; all have the same units in the same order.
        second: Arrays of the other system, for each of at least two seeds.
        metrics: Table of the task family; metrics that it declares not to be scores are skipped.
        samples: Number of resamples of the units.

    Returns:
        Metric -> difference, without interval and p if it is undefined, or constant over both seeds and rows.
    """
    systems = (first, second)
    units = count_examples(first[0])
    observed_scores = [[score(row_scores) for row_scores in system] for system in systems]
    rng = np.random.default_rng(0)
    draws = [rng.integers(0, units, size=units) for _ in range(samples)]
    # All seeds of both systems are scored on the same draws, which keeps the comparison paired by rows.
    resampled = [
        [[score(select_units(row_scores, rows)) for rows in draws] for row_scores in system] for system in systems
    ]
    differences = {}
    for name in _list_scores(observed_scores[0][0], metrics):
        scores = [np.array([seed[name] for seed in system]) for system in observed_scores]
        # (seeds, resamples)
        draws_by_seed = [np.array([[sample[name] for sample in seed] for seed in system]) for system in resampled]
        differences[name] = _describe_difference(scores, draws_by_seed, units)
    return differences


@dataclass(frozen=True)
class _Variance:
    """Variance of a difference of means over seeds, in parts that shrink with more rows, more seeds, or both."""

    rows: float
    """Variance of the difference over other rows, with these seeds; includes the interaction."""
    seeds: tuple[float, float]
    """Variance of each system's mean over other seeds, on these rows; includes the interaction."""
    interaction: float
    """Variance that shrinks with both: each seed reacts differently to other rows."""

    @property
    def total(self) -> float:
        """Variance of the difference, at least as large as either part: the interaction is only an estimate."""
        return max(self.rows + sum(self.seeds) - self.interaction, self.rows, sum(self.seeds))

    def degrees_of_freedom(self, units: int, num_seeds: Sequence[int]) -> float:
        """Compute the degrees of freedom (Satterthwaite 1946) for a number of units, and of seeds per system."""
        degrees = [units - 1, *(count - 1 for count in num_seeds)]
        return self.total**2 / sum(part**2 / n for part, n in zip((self.rows, *self.seeds), degrees, strict=True))


def _describe_difference(scores: Sequence[np.ndarray], resampled: Sequence[np.ndarray], units: int) -> Difference:
    """Compute the difference of one metric; per system, `scores` are (seeds,), `resampled` are (seeds, resamples)."""
    first, second = (float(values.mean()) for values in scores)
    difference = second - first
    undefined = Difference(first, second, difference, None, None, _TEST)
    is_finite = np.isfinite(resampled[0]).all(axis=0) & np.isfinite(resampled[1]).all(axis=0)
    if not math.isfinite(difference) or is_finite.sum() < 2:
        return undefined
    variance = _estimate_variance(scores, [values[:, is_finite] for values in resampled], units)
    if variance.total <= _SEEDS_ROUNDING:
        return undefined
    from scipy import special

    num_seeds = [len(values) for values in scores]
    degrees, error = variance.degrees_of_freedom(units, num_seeds), math.sqrt(variance.total)
    quantile = float(special.stdtrit(degrees, 1 - LEVEL / 2))
    # Number of standard errors that a test detects with power .8.
    detectable = quantile + float(special.stdtrit(degrees, POWER))
    return Difference(
        first=first,
        second=second,
        difference=difference,
        interval=(difference - quantile * error, difference + quantile * error),
        p=2 * float(special.stdtr(degrees, -abs(difference) / error)),
        test=_TEST,
        rows_needed=_solve_count(variance, sum(variance.seeds), difference / detectable, units),
        detectable=detectable * error,
        seeds_needed=_solve_count(variance, variance.rows, difference / detectable, max(num_seeds)),
    )


def _estimate_variance(scores: Sequence[np.ndarray], resampled: Sequence[np.ndarray], units: int) -> _Variance:
    """Estimate the parts of the variance; per system, `scores` are (seeds,), `resampled` are (seeds, resamples)."""
    # A resample varies less than a sample.
    correction = units / (units - 1)
    seeds = tuple(float(values.var(ddof=1)) / len(values) for values in scores)
    interaction = 0.0
    for values in resampled:
        # Deviation of each seed from the mean of the seeds, in each resample of the rows. Its variance over resamples
        # measures the interaction: how differently the seeds react to other rows.
        deviations = values - values.mean(axis=0)
        interaction += float(deviations.var(axis=1).mean()) * correction / (len(values) - 1)
    rows = float((resampled[1].mean(axis=0) - resampled[0].mean(axis=0)).var()) * correction
    return _Variance(rows, (seeds[0], seeds[1]), interaction)


def _solve_count(variance: _Variance, other_part: float, error: float, count: int) -> int | None:
    """Return how many rows (or seeds) lower the standard error to `error`, or None if no number suffices.

    Args:
        variance: Variance with `count` rows (or seeds).
        other_part: Part of the variance that shrinks with more seeds (or rows), including the interaction.
        error: Required standard error.
        count: Present number of rows (or seeds).
    """
    fixed = max(other_part - variance.interaction, 0.0)
    shrinking = variance.total - fixed
    return math.ceil(count * shrinking / (error**2 - fixed)) if error**2 > fixed else None


_TEST = "t over seeds and rows"
_SEEDS_ROUNDING = 1e-18
