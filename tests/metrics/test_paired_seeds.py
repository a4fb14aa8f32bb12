"""Seeds and rows together: the variance is that of a mixed model, and the error rate that of the level."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from bertkit.metrics.paired import compare_seeds
from tests.metrics.paired_trials import reject_seeds


def mean(row_scores):
    return {"mean": float(row_scores["value"].mean())}


def draw_systems(seeds, rows, seed=0, spread=0.3):
    draw = np.random.default_rng(seed)
    shared = draw.normal(size=rows)
    return [
        shared + draw.normal(size=rows) + spread * draw.normal(size=(seeds, 1)) + draw.normal(size=(seeds, rows))
        for _ in range(2)
    ]


def compare(systems, **options):
    return compare_seeds(mean, *([{"value": values} for values in system] for system in systems), **options)["mean"]


@pytest.mark.parametrize("spread", [0.05, 0.5])
def test_the_interval_is_that_of_the_mean_squares_of_a_crossed_design(spread):
    """Rows and seeds are random: the variance of a difference of means, from mean squares (Searle et al. 1992)."""
    seeds, rows = 4, 400
    first, second = systems = draw_systems(seeds, rows, 3, spread)
    difference = second.mean(axis=0) - first.mean(axis=0)
    of_rows = difference.var(ddof=1) / rows
    of_seeds = [values.mean(axis=1).var(ddof=1) / seeds for values in systems]
    of_both = 0.0
    for values in systems:
        rest = values - values.mean(axis=1, keepdims=True) - values.mean(axis=0) + values.mean()
        of_both += (rest**2).sum() / ((seeds - 1) * (rows - 1)) / (seeds * rows)
    total = max(of_rows + sum(of_seeds) - of_both, of_rows, sum(of_seeds))
    degrees = total**2 / (of_rows**2 / (rows - 1) + sum(part**2 / (seeds - 1) for part in of_seeds))
    half = stats.t.ppf(0.975, degrees) * math.sqrt(total)

    found = compare(systems, samples=1500)

    assert found.difference == pytest.approx(difference.mean())
    low, high = found.interval
    assert (high - low) / 2 == pytest.approx(half, rel=0.06)
    assert found.p == pytest.approx(2 * stats.t.sf(abs(difference.mean()) / math.sqrt(total), degrees), abs=0.03)
    assert (low <= 0 <= high) == (found.p >= 0.05)


def test_power_says_how_many_rows_or_seeds():
    systems = draw_systems(5, 100, 1, spread=0.02)
    systems[1] = systems[1] + 0.2 - (systems[1].mean() - systems[0].mean())
    found = compare(systems, samples=300)
    assert found.rows_needed > 100
    many = [np.tile(values, 30) for values in systems]  # 3,000 rows
    assert compare(many, samples=100).p < 0.05
    apart = draw_systems(3, 2000, 2, spread=2.0)
    apart[1] = apart[1] - apart[1].mean() + apart[0].mean() + 0.5
    found = compare(apart, samples=100)
    assert found.rows_needed is None  # no number of rows outweighs three seeds
    assert found.seeds_needed > 3


def test_systems_that_are_constant_have_no_interval():
    found = compare([np.ones((3, 20)), np.ones((3, 20))], samples=20)
    assert (found.difference, found.interval, found.p) == (0, None, None)


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "spread"), [(3, 0.6), (5, 0.2), (5, 0.6)])
def test_without_a_difference_five_percent_are_rejected(seeds, spread):
    assert reject_seeds(200, seeds, spread, trials=300) <= 0.085
