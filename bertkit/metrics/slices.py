"""Slices of rows against the rest: is an error rate significantly higher there, over many slices?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bertkit.metrics.intervals import combine_intervals, wilson_interval
from bertkit.metrics.paired import LEVEL, holm

# Minimum size of a slice, and of the other units, for inexact tests, which hold for many units.
MIN_UNITS = 20

Compare = Callable[[np.ndarray, np.ndarray, np.ndarray], "SliceDifference"]


@dataclass(frozen=True)
class SliceDifference:
    """The error rate of a slice, compared with the error rate of all other units."""

    units: int
    rate: float
    rest: float
    difference: float
    interval: tuple[float, float] | None = None
    """95%, of the difference."""
    p: float | None = None
    """One-sided probability of such a difference by chance; None if the slice is not tested."""
    min_p: float = 1.0
    """Lowest possible p for this number of units, if all of them are wrong or none is."""
    p_holm: float | None = None
    """`p` after Holm's correction for all slices that are tested."""

    @property
    def is_beyond_chance(self) -> bool:
        """Whether the corrected p is below .05."""
        return self.p_holm is not None and self.p_holm < LEVEL


def compare_slices(
    errors: np.ndarray, decisions: np.ndarray, slices: Sequence[np.ndarray]
) -> list[SliceDifference | None]:
    """Compare the error rate in each slice with the rate in all other units, and correct p for the number of slices.

    The rate is the errors of the units over their decisions: one decision per row for a class, one per entity for a
    tagger. `choose_test` selects the test. Intervals are Newcombe's (1998, method 10) if every unit is right or
    wrong, otherwise Welch's.

    Holm's correction (1979) keeps the chance of any false slice below 5 % under any dependence, and slices depend
    on each other: long rows hold more rare words. The procedure of Benjamini and Hochberg promises less, and only for
    slices that are independent or vary alike.

    A slice whose p could not be low enough, regardless of its wrong units, is not tested, and makes the correction
    of the others no stricter (Tarone 1990).

    Args:
        errors: Errors of each unit, (n,).
        decisions: Decisions of each unit, (n,).
        slices: Indices of the units of each slice.

    Returns:
        A comparison per slice, or None if the slice or the rest is empty.
    """
    compare, has_any = choose_test(errors, decisions)[1], decisions > 0
    row_scores: list[SliceDifference | None] = []
    for units in slices:
        is_inside = np.zeros(len(errors), dtype=bool)
        is_inside[units] = True
        is_inside = is_inside[has_any]
        is_part = is_inside.any() and not is_inside.all()
        row_scores.append(compare(errors[has_any], decisions[has_any], is_inside) if is_part else None)
    # With 4 wrong units of 20, a slice of 4 units can have p = 0.0002, and a slice of one unit at best 0.2. The latter
    # cannot reach .05, so it is not tested, and the correction of the former is for one test instead of two.
    lowest = np.array([1.0 if comparison is None else comparison.min_p for comparison in row_scores])
    # Level of the first count that is not exceeded by the number of slices which could reach it.
    levels = (LEVEL / count for count in range(1, len(lowest) + 1) if (lowest <= LEVEL / count).sum() <= count)
    highest = next(levels, 0.0)
    p_values = [None if comparison is None or comparison.min_p > highest else comparison.p for comparison in row_scores]
    return [
        None if comparison is None else replace(comparison, p=p, p_holm=p_holm)
        for comparison, p, p_holm in zip(row_scores, p_values, holm(p_values), strict=True)
    ]


def choose_test(errors: np.ndarray, decisions: np.ndarray) -> tuple[str, Compare]:
    """Choose the test that fits the errors; return its name too.

    * Every unit is right or wrong: Fisher's exact test.
    * Every unit has one number, such as the size of an error: the rank-sum test (Mann and Whitney 1947). Errors are so
      skewed that a t test finds a worse slice in 10 to 14 % of all draws without one.
    * Units have several decisions: a t test with unequal variances of the ratio, whose residual for a unit is its
      errors less the rate times its decisions (Cochran 1977, section 6.13). The rate of all units is used, as in a
      score test: with a rate per side, a side that has few errors by chance would appear too certain.
    """
    if not (decisions == 1).all():
        return "score test of a ratio", _compare_ratios
    if np.isin(errors, (0, 1)).all():
        return "Fisher's exact test", _compare_binary
    return "rank-sum test", _compare_numbers


def _compare_binary(errors: np.ndarray, _: np.ndarray, is_inside: np.ndarray) -> SliceDifference:
    inside, total = int(is_inside.sum()), len(errors)
    wrong, all_wrong = int(errors[is_inside].sum()), int(errors.sum())
    rest_size, other_wrong = total - inside, all_wrong - wrong
    p, lowest_p = fisher(wrong, inside, all_wrong, total)
    rate, rest = wrong / inside, other_wrong / rest_size
    # A difference is a sum with the weights 1 and -1.
    sides = (1, rate, wilson_interval(wrong, inside)), (-1, rest, wilson_interval(other_wrong, rest_size))
    return SliceDifference(inside, rate, rest, rate - rest, combine_intervals(sides), p, lowest_p)


def fisher(wrong: int, inside: int, all_wrong: int, total: int) -> tuple[float, float]:
    """Compute the p of Fisher's exact test, and the smallest p that any number of wrong units in the slice would have.

    p is the probability that at least this many of all wrong units are in a slice by chance.

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
    observed = wrong - counts[0]
    return min(1.0, float(probabilities[observed:].sum())), min(1.0, float(probabilities[-1]))


def _compare_numbers(errors: np.ndarray, decisions: np.ndarray, is_inside: np.ndarray) -> SliceDifference:
    welch = _compare_ratios(errors, decisions, is_inside)
    if welch.p is None:
        return welch
    return replace(welch, p=rank_sum(errors[is_inside], errors[~is_inside]))


def rank_sum(first: np.ndarray, second: np.ndarray) -> float:
    """Compute the p of the rank-sum test that the first numbers are higher, by its normal approximation with ties."""
    from scipy.stats import mannwhitneyu

    if len(np.unique(np.concatenate([first, second]))) == 1:  # the variance of the ranks is 0
        return 1.0
    return float(mannwhitneyu(first, second, alternative="greater", method="asymptotic").pvalue)


def _compare_ratios(errors: np.ndarray, decisions: np.ndarray, is_inside: np.ndarray) -> SliceDifference:
    from scipy import special

    sides = [(errors[mask], decisions[mask]) for mask in (is_inside, ~is_inside)]
    rates = [float(side_errors.sum() / side_decisions.sum()) for side_errors, side_decisions in sides]
    difference, pooled = rates[0] - rates[1], errors.sum() / decisions.sum()
    units = int(is_inside.sum())
    if min(units, len(errors) - units) < MIN_UNITS:
        return SliceDifference(units, rates[0], rates[1], difference)
    error, freedom = _ratio_error(sides, [pooled, pooled])
    above = float(special.stdtr(freedom, -difference / error)) if error else float(difference <= 0)
    side_error, side_freedom = _ratio_error(sides, rates)
    half = float(special.stdtrit(side_freedom, 1 - LEVEL / 2)) * side_error if side_error else 0.0
    interval = (difference - half, difference + half)
    return SliceDifference(units, rates[0], rates[1], difference, interval, above, min_p=0.0)


def _ratio_error(sides: Sequence[tuple[np.ndarray, np.ndarray]], rates: Sequence[float]) -> tuple[float, float]:
    """Compute the standard error of the difference of two ratios, and its degrees of freedom (Satterthwaite 1946)."""
    variances, counts = [], []
    for (errors, decisions), rate in zip(sides, rates, strict=True):
        residuals, count = (errors - rate * decisions) / decisions.mean(), len(errors)
        variances.append(float((residuals**2).sum() / (count * (count - 1))))
        counts.append(count)
    variance = sum(variances)
    if variance == 0:  # all units are alike on either side
        return 0.0, 1.0
    freedom = variance**2 / sum(part**2 / (count - 1) for part, count in zip(variances, counts, strict=True))
    return math.sqrt(variance), freedom
