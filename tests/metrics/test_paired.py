"""Paired differences: equal to SciPy's tests and to formulas written out, and about as sure as they say."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from bertkit.metrics.intervals import Metric
from bertkit.metrics.paired import (
    compare_paired,
    compute_rows_needed,
    count_discordant,
    find_differing_units,
    holm,
    mcnemar,
    permutation_test,
    swap_units,
    to_standard_error,
)
from bertkit.metrics.registry import CLASSIFICATION_METRICS, accuracy
from tests.metrics.paired_trials import draw_labels, find_power, reject_rows


def mean(row_scores):
    return {"mean": float(row_scores["value"].mean())}


def values(rows, seed, shift=0.0):
    draw = np.random.default_rng(seed)
    shared = draw.normal(size=rows)
    return {"value": shared + draw.normal(size=rows)}, {"value": shared + draw.normal(size=rows) + shift}


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_few_rows_have_the_exact_p_of_scipy(shift):
    first, second = values(9, 1, shift)
    p, test = permutation_test(mean, first, second, samples=512)
    reference = stats.permutation_test(
        (first["value"], second["value"]),
        lambda one, other, axis: one.mean(axis=axis) - other.mean(axis=axis),
        permutation_type="samples",
        n_resamples=np.inf,
    )
    assert test == "exact permutation"
    assert p["mean"] == pytest.approx(reference.pvalue)


def test_many_rows_have_the_p_of_scipy_up_to_the_draws():
    first, second = values(80, 3, 0.2)
    p, test = permutation_test(mean, first, second, samples=1000)
    reference = stats.permutation_test(
        (first["value"], second["value"]),
        lambda one, other, axis: one.mean(axis=axis) - other.mean(axis=axis),
        permutation_type="samples",
        n_resamples=5000,
        rng=np.random.default_rng(0),
    )
    assert test == "permutation"
    assert p["mean"] == pytest.approx(reference.pvalue, abs=0.05)


def test_p_counts_the_observed_assignment_too():
    first, second = {"value": np.zeros(40)}, {"value": np.ones(40)}
    assert permutation_test(mean, first, second, samples=99)[0]["mean"] == 1 / 100


def test_the_exact_p_of_a_share_is_that_of_all_assignments_in_a_loop():
    gold = np.zeros(7, dtype=int)
    first = {"gold": gold, "predicted": np.array([1, 1, 1, 1, 0, 0, 0])}
    second = {"gold": gold, "predicted": np.array([0, 0, 0, 0, 1, 0, 0])}

    def difference(sides):
        pairs = zip(sides, first["predicted"], second["predicted"], strict=True)
        return sum((one - other) * (-1) ** side for side, one, other in pairs)

    # of the two rows that both answer alike, either assignment is the same
    every = [abs(difference(sides)) for sides in itertools.product([0, 1], repeat=7)]
    expected = sum(value >= abs(difference([0] * 7)) for value in every) / len(every)
    score = lambda row_scores: {"accuracy": accuracy(row_scores["gold"], row_scores["predicted"])}  # noqa: E731
    assert permutation_test(score, first, second)[0]["accuracy"] == expected


def test_the_interval_is_that_of_scipy_for_pairs():
    first, second = values(120, 5, 0.3)
    found = compare_paired(mean, first, second, samples=50)["mean"]
    reference = stats.bootstrap(
        (second["value"] - first["value"],), np.mean, n_resamples=3000, rng=np.random.default_rng(1)
    ).confidence_interval
    width = reference.high - reference.low
    assert found.interval == pytest.approx((reference.low, reference.high), abs=0.1 * width)
    assert found.difference == pytest.approx(second["value"].mean() - first["value"].mean())


@pytest.mark.parametrize(("lost", "won"), [(0, 0), (0, 1), (3, 12), (7, 7), (40, 21)])
def test_mcnemar_is_the_binomial_test_of_scipy(lost, won):
    expected = stats.binomtest(won, lost + won).pvalue if lost + won else 1.0
    assert mcnemar(lost, won) == pytest.approx(expected)


def test_the_units_that_one_system_has_right_are_those_of_a_loop():
    first, second = draw_labels(60, np.random.default_rng(2), 0.5)
    right = [one["predicted"] == one["gold"] for one in (first, second)]
    expected = int((right[0] & ~right[1]).sum()), int((right[1] & ~right[0]).sum())
    assert count_discordant(["accuracy", "f1_macro"], first, second, CLASSIFICATION_METRICS) == {"accuracy": expected}
    assert count_discordant(["mean"], *values(5, 0), CLASSIFICATION_METRICS) == {}


def test_holm_rejects_step_by_step():
    """The lowest p is compared with level / tests, the next with level / (tests - 1), until one is not rejected."""
    draw = np.random.default_rng(0)
    for _ in range(50):
        p = draw.random(5) ** 3
        rejected, level = set(), 0.05
        for rank, number in enumerate(np.argsort(p)):
            if p[number] > level / (5 - rank):
                break
            rejected.add(int(number))
        assert {number for number, value in enumerate(holm(p.tolist())) if value <= level} == rejected
    assert holm([None, 0.02]) == [None, 0.02]


def test_rows_for_power_are_those_of_the_normal_distribution():
    # the power of a z test of a difference of 0.02 with a standard deviation of 0.5 per row
    rows = compute_rows_needed(0.02, 0.5 / math.sqrt(400), 400)
    power = [stats.norm.sf(stats.norm.ppf(0.975) - 0.02 / (0.5 / math.sqrt(count))) for count in (rows - 1, rows)]
    assert power[0] < 0.8 <= power[1] + 1e-9
    assert compute_rows_needed(0.0, 0.1, 400) is None
    assert to_standard_error((-1.959964, 1.959964)) == pytest.approx(1)


def test_units_differ_where_any_array_does_and_nan_is_nan():
    first = {"a": np.array([1, 2, 3]), "b": np.array([[0, np.nan], [0, 0], [0, np.nan]])}
    second = {"a": np.array([1, 2, 3]), "b": np.array([[0, np.nan], [0, 1], [0, 5.0]])}
    assert find_differing_units(first, second).tolist() == [1, 2]
    one, other = swap_units(first, second, np.array([1]))
    assert (one["b"][1, 1], other["b"][1, 1], first["b"][1, 1]) == (1, 0, 0)


def test_a_metric_that_is_undefined_has_neither_p_nor_interval():
    def score(row_scores):
        return {"undefined": math.nan, "threshold": row_scores["value"].mean()}

    metrics = {"threshold": Metric(lambda row_scores: row_scores["value"].mean(), is_score=False)}
    found = compare_paired(score, *values(6, 0), metrics, samples=16)
    assert set(found) == {"undefined"}
    assert (found["undefined"].p, found["undefined"].interval, found["undefined"].rows_needed) == (None, None, None)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [50, 200])
def test_without_a_difference_five_percent_are_rejected(rows):
    found = reject_rows(rows, trials=300)
    for test, most in (
        ("p", 0.09),
        ("interval", 0.12),
    ):  # 300 trials of 5%: .025 to .075; few rows make intervals short
        assert all(share <= most for share in found[test].values()), found
    assert found["p"]["matthews_correlation"] >= 0.015


@pytest.mark.slow
def test_a_difference_is_found_as_often_as_predicted():
    for name, power in find_power(0.6, trials=300).items():
        assert 0.68 <= power <= 0.88, name  # of .8; it comes out a little lower, as docs/compare.md says
