"""Test whether the error rate in slices of the rows is significantly higher than in all other rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bertkit.metrics.intervals import combine_intervals, wilson_interval
from bertkit.metrics.paired import LEVEL, holm

# Minimum size of a slice, and of the other units, for approximate tests, which are valid only for many units.
MIN_UNITS = 20

Compare = Callable[[np.ndarray, np.ndarray, np.ndarray], "SliceDifference"]
"""Compares a slice with the rest, given errors, decisions and a mask of the slice, each of shape (units,)."""


@dataclass(frozen=True)
class SliceDifference:
    """Error rate of a slice, compared with the error rate of all other units."""

    units: int
    rate: float
    rest: float
    difference: float
    interval: tuple[float, float] | None = None
    """95% interval of the difference, or None for fewer than 20 units in a test that requires them."""
    p: float | None = None
    """One-sided p-value of a higher error rate in the slice, or None if the slice is not tested."""
    min_p: float = 1.0
    """Lowest p that any number of errors in the slice could have; 1 if the slice is too small for its test."""
    p_holm: float | None = None
    """`p` after Holm's correction for all tested slices."""

    @property
    def is_beyond_chance(self) -> bool:
        """Whether the slice is significantly worse: the corrected p is below .05."""
        return self.p_holm is not None and self.p_holm < LEVEL


def compare_slices(
    errors: np.ndarray, decisions: np.ndarray, slices: Sequence[np.ndarray]
) -> list[SliceDifference | None]:
    """Compare the error rate in each slice with the rate in all other units, and correct p for the number of slices.

    The rate is errors divided by decisions. A classified row is one decision; in a tagged row, each gold and each
    predicted entity is one. `choose_test` selects the test. Intervals are Newcombe's (1998, method 10) if each unit is
    one correct or wrong decision, otherwise Welch's.

    With Holm's correction (1979), the probability of any false slice is at most 5% under any dependence, and slices
    depend on each other: long rows have more rare words. The procedure of Benjamini and Hochberg controls only the
    fraction of false slices, and requires independence or positive dependence.

    A slice that could not be significant with any number of errors is not tested, so that the correction of the other
    slices is less strict (Tarone 1990).

    Args:
        errors: Number or size of the errors of each unit. Shape: (units,).
        decisions: Number of decisions of each unit; units without decisions are left out. Shape: (units,).
        slices: Indices of the units of each slice.

    Returns:
        One comparison per slice, or None if the slice has no unit or all units.
    """
    compare, has_decisions = choose_test(errors, decisions)[1], decisions > 0
    comparisons: list[SliceDifference | None] = []
    for units in slices:
        is_inside = np.zeros(len(errors), dtype=bool)
        is_inside[units] = True
        is_inside = is_inside[has_decisions]
        has_rest = is_inside.any() and not is_inside.all()
        comparisons.append(compare(errors[has_decisions], decisions[has_decisions], is_inside) if has_rest else None)
    # With 4 wrong units of 20, a slice of 4 units can have p = 0.0002, but a slice of one unit has p = 0.2 at best,
    # above .05. So only the first slice is tested, and its correction is for one test instead of two.
    min_p_values = np.array([1.0 if test is None else test.min_p for test in comparisons])
    # Find the smallest number of tests k such that at most k slices can reach .05 / k.
    counts = range(1, len(min_p_values) + 1)
    level = next((LEVEL / k for k in counts if (min_p_values <= LEVEL / k).sum() <= k), 0.0)
    p_values = [None if test is None or test.min_p > level else test.p for test in comparisons]
    return [
        None if comparison is None else replace(comparison, p=p, p_holm=p_holm)
        for comparison, p, p_holm in zip(comparisons, p_values, holm(p_values), strict=True)
    ]


def choose_test(errors: np.ndarray, decisions: np.ndarray) -> tuple[str, Compare]:
    """Choose the one-sided test that fits the errors; return its name and its function.

    * Each unit is one correct or wrong decision: Fisher's exact test.
    * Each unit has one number, such as the size of an error: the rank-sum test (Mann and Whitney 1947). Errors are so
      skewed that a t test would report a worse slice in 10 to 14% of all data without one.
    * Units have several decisions: a t test of the two ratios with unequal variances (Cochran 1977, section 6.13). The
      residual of a unit is its errors minus the rate times its decisions. As in a score test, all units have one rate:
      with separate rates, the variance of a group with few errors by chance would be too low.
    """
    if not (decisions == 1).all():
        return "score test of a ratio", _compare_ratios
    if np.isin(errors, (0, 1)).all():
        return "Fisher's exact test", _compare_binary
    return "rank-sum test", _compare_numbers


def _compare_binary(errors: np.ndarray, _: np.ndarray, is_inside: np.ndarray) -> SliceDifference:
    inside, total = int(is_inside.sum()), len(errors)
    wrong, all_wrong = int(errors[is_inside].sum()), int(errors.sum())
    outside, other_wrong = total - inside, all_wrong - wrong
    p, min_p = fisher(wrong, inside, all_wrong, total)
    rate, rest = wrong / inside, other_wrong / outside
    # A difference is a sum with the weights 1 and -1.
    terms = (1, rate, wilson_interval(wrong, inside)), (-1, rest, wilson_interval(other_wrong, outside))
    return SliceDifference(inside, rate, rest, rate - rest, combine_intervals(terms), p, min_p)


def fisher(wrong: int, inside: int, all_wrong: int, total: int) -> tuple[float, float]:
    """Return the one-sided p of Fisher's exact test, and the lowest p that any number of wrong units would have.

    p is the probability that a random slice of this size contains at least this many wrong units.

    Args:
        wrong: Number of wrong units in the slice.
        inside: Number of units in the slice.
        all_wrong: Number of wrong units in all.
        total: Number of units in all.

    >>> round(fisher(8, 10, 10, 30)[0], 6)
    0.000291
    """
    from scipy.stats import hypergeom

    counts = np.arange(max(0, inside + all_wrong - total), min(inside, all_wrong) + 1)
    probabilities = hypergeom.pmf(counts, total, all_wrong, inside)
    index = wrong - counts[0]
    return min(1.0, float(probabilities[index:].sum())), min(1.0, float(probabilities[-1]))


def _compare_numbers(errors: np.ndarray, decisions: np.ndarray, is_inside: np.ndarray) -> SliceDifference:
    comparison = _compare_ratios(errors, decisions, is_inside)
    if comparison.p is None:
        return comparison
    return replace(comparison, p=rank_sum(errors[is_inside], errors[~is_inside]))


def rank_sum(first: np.ndarray, second: np.ndarray) -> float:
    """Return the one-sided p that the first values are higher (Mann and Whitney 1947); 1 if all values are equal.

    It is the normal approximation, corrected for ties and continuity.
    """
    from scipy.stats import mannwhitneyu

    # The variance of the ranks is 0.
    if len(np.unique(np.concatenate([first, second]))) == 1:
        return 1.0
    return float(mannwhitneyu(first, second, alternative="greater", method="asymptotic").pvalue)


def _compare_ratios(errors: np.ndarray, decisions: np.ndarray, is_inside: np.ndarray) -> SliceDifference:
    from scipy import special

    groups = [(errors[mask], decisions[mask]) for mask in (is_inside, ~is_inside)]
    rates = [float(group_errors.sum() / group_decisions.sum()) for group_errors, group_decisions in groups]
    difference, pooled_rate = rates[0] - rates[1], errors.sum() / decisions.sum()
    units = int(is_inside.sum())
    if min(units, len(errors) - units) < MIN_UNITS:
        return SliceDifference(units, rates[0], rates[1], difference)
    # The test pools the rates, because they are equal under the null hypothesis; the interval does not.
    error, degrees = _ratio_error(groups, [pooled_rate, pooled_rate])
    p = float(special.stdtr(degrees, -difference / error)) if error else float(difference <= 0)
    error, degrees = _ratio_error(groups, rates)
    half_width = float(special.stdtrit(degrees, 1 - LEVEL / 2)) * error if error else 0.0
    interval = (difference - half_width, difference + half_width)
    return SliceDifference(units, rates[0], rates[1], difference, interval, p, min_p=0.0)


def _ratio_error(groups: Sequence[tuple[np.ndarray, np.ndarray]], rates: Sequence[float]) -> tuple[float, float]:
    """Compute the standard error of the difference of two ratios, and its degrees of freedom (Satterthwaite 1946)."""
    variances, counts = [], []
    for (errors, decisions), rate in zip(groups, rates, strict=True):
        residuals, count = (errors - rate * decisions) / decisions.mean(), len(errors)
        variances.append(float((residuals**2).sum() / (count * (count - 1))))
        counts.append(count)
    variance = sum(variances)
    if variance == 0:  # no residual in either group
        return 0.0, 1.0
    degrees = variance**2 / sum(part**2 / (count - 1) for part, count in zip(variances, counts, strict=True))
    return math.sqrt(variance), degrees
