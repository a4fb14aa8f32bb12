"""Slices against the rest: p and intervals are those of scipy and of the formulas, and false alarms are rare."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from bertkit.metrics.slices import choose_test, compare_slices, fisher, rank_sum

ONES = np.ones(120)


def draw(seed=0, rows=120):
    rng = np.random.default_rng(seed)
    return rng, rng.choice(rows, 40, replace=False)


def split(values, units):
    inside = np.zeros(len(values), dtype=bool)
    inside[units] = True
    return values[inside], values[~inside]


@pytest.mark.parametrize("seed", range(3))
def test_right_or_wrong_is_fishers_exact_test(seed):
    rng, units = draw(seed)
    errors = (rng.random(120) < 0.2).astype(float)
    inside, outside = split(errors, units)
    table = [[inside.sum(), 40 - inside.sum()], [outside.sum(), 80 - outside.sum()]]
    (found,) = compare_slices(errors, ONES, [units])
    assert found.p == pytest.approx(stats.fisher_exact(table, "greater").pvalue)
    assert (found.rate, found.rest) == (inside.mean(), outside.mean())
    assert found.interval[0] < found.difference < found.interval[1]


def test_numbers_are_a_rank_sum_test_with_the_interval_of_welch():
    rng, units = draw()
    for errors in (rng.gamma(0.5, size=120), rng.integers(-1, 2, 120).astype(float)):
        inside, outside = split(errors, units)
        (found,) = compare_slices(errors, ONES, [units])
        pairs = np.sign(inside[:, None] - outside)  # of a unit in the slice and one of the rest: which errs more
        assert (found.p < 0.5) == (pairs.sum() > 0)
        welch = stats.ttest_ind(inside, outside, equal_var=False).confidence_interval()
        assert found.interval == pytest.approx((welch.low, welch.high))
    assert rank_sum(np.ones(5), np.ones(4)) == 1


def test_several_decisions_are_a_ratio_of_sums():
    rng, units = draw()
    decisions = rng.poisson(3, 120).astype(float)
    errors = rng.binomial(decisions.astype(int), 0.3).astype(float)
    (found,) = compare_slices(errors, decisions, [units])
    kept = decisions > 0
    inside = np.isin(np.arange(120), units) & kept
    pooled, rates, variances = errors.sum() / decisions.sum(), [], []
    for chosen in (inside, kept & ~inside):
        own, of, count = errors[chosen], decisions[chosen], chosen.sum()
        rates.append(own.sum() / of.sum())
        variances.append(
            [((own - rate * of) ** 2).sum() / of.mean() ** 2 / count / (count - 1) for rate in (pooled, rates[-1])]
        )
    counts = [inside.sum(), (kept & ~inside).sum()]
    freedom = [
        sum(own[n] for own in variances) ** 2
        / sum(own[n] ** 2 / (count - 1) for own, count in zip(variances, counts, strict=True))
        for n in (0, 1)
    ]
    errors_of = [sum(own[n] for own in variances) ** 0.5 for n in (0, 1)]
    difference = rates[0] - rates[1]
    assert (found.rate, found.rest) == pytest.approx(tuple(rates))
    assert found.p == pytest.approx(stats.t.sf(difference / errors_of[0], freedom[0]))
    half = stats.t.ppf(0.975, freedom[1]) * errors_of[1]
    assert found.interval == pytest.approx((difference - half, difference + half))


def test_the_test_fits_the_errors():
    assert choose_test(np.array([0.0, 1.0]), np.ones(2))[0] == "Fisher's exact test"
    assert choose_test(np.array([0.5, 1.0]), np.ones(2))[0] == "rank-sum test"
    assert choose_test(np.array([0.0, 1.0]), np.array([2.0, 1.0]))[0] == "score test of a ratio"


def test_p_is_corrected_for_the_slices_that_can_be_beyond_chance():
    rng, units = draw()
    errors = (rng.random(120) < 0.2).astype(float)
    tiny, first, second, whole = compare_slices(errors, ONES, [np.arange(2), units, np.arange(60), np.arange(120)])
    assert (tiny.p, tiny.p_holm, tiny.is_beyond_chance, tiny.units) == (None, None, False, 2)
    assert whole is None
    lower, higher = sorted((first, second), key=lambda one: one.p)
    assert lower.p_holm == pytest.approx(min(1, 2 * lower.p))
    assert higher.p_holm == pytest.approx(max(lower.p_holm, higher.p))


def test_a_rare_label_that_a_model_never_finds_is_beyond_chance_however_few_rows_it_has():
    errors = np.zeros(300)
    errors[:8] = 1
    rare, frequent, long = compare_slices(errors, np.ones(300), [np.arange(9), np.arange(9, 300), np.arange(0, 300, 3)])
    assert (rare.units, rare.rate, rare.rest) == (9, 8 / 9, 0)
    assert rare.p == pytest.approx(stats.fisher_exact([[8, 1], [0, 291]], "greater").pvalue)
    assert rare.is_beyond_chance
    assert not frequent.is_beyond_chance
    assert not long.is_beyond_chance


def test_few_sizes_of_errors_are_not_tested_but_told():
    rng, units = draw()
    few, many = compare_slices(rng.random(120), ONES, [np.arange(5), units])
    assert (few.units, few.p, few.interval) == (5, None, None)
    assert many.p is not None


def test_units_that_are_all_alike_have_no_spread():
    decisions = np.full(60, 2.0)
    worse, same = compare_slices(np.repeat([2.0, 1.0], 30), decisions, [np.arange(30), np.arange(0, 60, 2)])
    assert worse.interval == (0.5, 0.5)
    assert worse.p < 1e-6
    assert same.p == pytest.approx(0.5)
    (none,) = compare_slices(np.zeros(60), decisions, [np.arange(30)])
    assert (none.p, none.interval) == (1.0, (0.0, 0.0))


def test_published_intervals_and_small_tables():
    # Newcombe 1998, table II, method 10: cases (c), (e) and (h)
    for counts, expected in (
        ((6, 7, 2, 7), (0.0582, 0.8062)),
        ((5, 56, 0, 29), (-0.0381, 0.1926)),
        ((10, 10, 0, 10), (0.6075, 1.0)),
    ):
        wrong, inside, other_wrong, others = counts
        errors = np.concatenate([np.arange(inside) < wrong, np.arange(others) < other_wrong]).astype(float)
        (row_scores,) = compare_slices(errors, np.ones(len(errors)), [np.arange(inside)])
        assert row_scores.interval == pytest.approx(expected, abs=1e-4)
    assert fisher(3, 3, 3, 6) == pytest.approx((1 / 20, 1 / 20))


def make_slices(rng, rows):
    """Slices as real rows have them: thirds of length, labels, and features that long rows have more often."""
    length = rng.geometric(0.06, rows) + 2
    low, high = np.quantile(length, [1 / 3, 2 / 3])
    slices = [length <= low, (length > low) & (length <= high), length > high]
    for share in (0.05, 0.1, 0.2, 0.4):
        has = rng.random(rows) < np.clip(share * length / length.mean(), 0, 0.95)
        slices += [has, ~has]
    label = rng.integers(0, 3, rows)
    return length, [np.flatnonzero(one) for one in (*slices, *(label == name for name in range(3)))]


def find(errors, decisions, slices):
    found = compare_slices(errors, decisions, slices)
    return [number for number, one in enumerate(found) if one is not None and one.is_beyond_chance]


def test_a_planted_slice_is_found_and_none_in_twenty_draws_without_one():
    rng = np.random.default_rng(11)
    alarms = 0
    for number in range(20):
        _, slices = make_slices(rng, 600)
        errors = (rng.random(600) < 0.15).astype(float)
        alarms += bool(find(errors, np.ones(600), slices))
        planted = slices[5]  # about a tenth of the rows
        errors[planted] = rng.random(len(planted)) < 0.45
        assert 5 in find(errors, np.ones(600), slices), number
    assert alarms == 0


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "most"), [("rows", 0.05), ("numbers", 0.07), ("entities", 0.07)])
def test_false_alarms_are_as_rare_as_promised(kind, most):
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(500):
        length, slices = make_slices(rng, 600)
        decisions = np.ones(600)
        if kind == "rows":
            errors = (rng.random(600) < 0.15).astype(float)
        elif kind == "numbers":
            errors = np.exp(1.2 * rng.normal(size=600))
        else:  # longer rows have more entities, and the entities of a row share its difficulty
            decisions = rng.poisson(length / 6)
            errors = rng.binomial(decisions, rng.beta(0.5, 3.5, 600)).astype(float)
        alarms += bool(find(errors, decisions.astype(float), slices))
    assert alarms / 500 <= most
