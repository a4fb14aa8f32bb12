"""Intervals: equal to a plain loop and to scipy's, honest where all rows are right, and about as sure as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from bertkit.metrics.intervals import Metric, bootstrap_intervals, find_intervals, wilson_interval
from bertkit.metrics.registry import (
    CLASSIFICATION_METRICS,
    balanced_accuracy,
    f1_macro,
    matthews_correlation,
    mean_squared_error,
    pearsonr,
)


def test_bootstrap_equals_a_plain_loop() -> None:
    values = np.random.default_rng(1).exponential(size=40)
    draw, normal = np.random.default_rng(7), stats.norm()
    means = [values[draw.integers(0, 40, size=40)].mean() for _ in range(201)]
    bias = normal.ppf(sum(mean < values.mean() for mean in means) / 201)
    without_one = [(values.sum() - value) / 39 for value in values]
    cubes, squares = (sum((np.mean(without_one) - mean) ** power for mean in without_one) for power in (3, 2))
    # Student's quantile, in standard deviations of a resampled mean, which are smaller than those of a mean
    quantile = stats.t.ppf(0.025, df=39) / math.sqrt(39 / 40)
    levels = [
        normal.cdf(bias + (bias + end) / (1 - cubes / (6 * squares**1.5) * (bias + end)))
        for end in (quantile, -quantile)
    ]

    found = bootstrap_intervals(lambda rows: {"mean": values[rows].mean()}, 40, samples=201, seed=7)

    assert found == {"mean": pytest.approx(np.quantile(means, levels, method="weibull"))}


@pytest.mark.parametrize("rows", [30, 1001])
@pytest.mark.parametrize("statistic", [np.mean, np.std])
def test_bootstrap_agrees_with_scipy(statistic, rows) -> None:
    values = np.random.default_rng(0).exponential(size=rows)
    quantile = stats.t.ppf(0.025, df=rows - 1) * math.sqrt(rows / (rows - 1))
    reference = stats.bootstrap(
        (values,),
        statistic,
        n_resamples=2000,
        method="BCa",
        confidence_level=1 - 2 * stats.norm.cdf(quantile),
        rng=np.random.default_rng(3),
    ).confidence_interval
    found = bootstrap_intervals(lambda rows: {"score": statistic(values[rows])}, rows, samples=2000)
    width = reference.high - reference.low
    assert found["score"] == pytest.approx((reference.low, reference.high), abs=0.08 * width)


def test_bootstrap_is_repeatable_and_seeded() -> None:
    def score(rows: np.ndarray) -> dict[str, float]:
        return {"mean": float(rows.mean())}

    assert bootstrap_intervals(score, 50, samples=99) == bootstrap_intervals(score, 50, samples=99)
    assert bootstrap_intervals(score, 50, samples=99) != bootstrap_intervals(score, 50, samples=99, seed=1)


def test_bootstrap_leaves_out_what_is_not_finite() -> None:
    finite: list[float] = []

    def score(rows: np.ndarray) -> dict[str, float]:
        value = float(rows.mean()) if 0 in rows else math.nan
        finite.extend([value] * (0 in rows))
        return {"sometimes": value, "never": math.inf}

    found = bootstrap_intervals(score, 3, samples=200)

    assert 0 < len(finite) < 200
    low, high = found["sometimes"]
    assert min(finite) <= low < high <= max(finite)
    assert found["never"] is None


def test_two_rows_leave_the_whole_range():
    values = np.array([0.25, 1.0])
    assert bootstrap_intervals(lambda rows: {"mean": values[rows].mean()}, 2) == {"mean": (0.25, 1.0)}


def test_one_row_cannot_be_resampled():
    assert bootstrap_intervals(lambda rows: {"accuracy": float(len(rows))}, 1) == {"accuracy": None}


@pytest.mark.parametrize("score", [matthews_correlation, f1_macro, balanced_accuracy, pearsonr, mean_squared_error])
def test_where_all_rows_are_right_resamples_say_nothing(score):
    gold = np.arange(12) % 2
    assert bootstrap_intervals(lambda rows: {"score": score(gold[rows], gold[rows])}, 12) == {"score": None}


def test_bootstrap_covers_the_truth_about_as_often_as_it_says() -> None:
    draw = np.random.default_rng(5)
    hits = 0
    for trial in range(200):
        sample = draw.random(100) < 0.7
        low, high = bootstrap_intervals(
            lambda rows, sample=sample: {"share": sample[rows].mean()}, 100, samples=100, seed=trial
        )["share"]
        hits += low <= 0.7 <= high
    assert 178 <= hits <= 199


@pytest.mark.parametrize(("successes", "total"), [(0, 5), (1, 1), (7, 9), (50, 100), (9999, 10000)])
def test_wilson_agrees_with_scipy(successes: int, total: int) -> None:
    reference = stats.binomtest(successes, total).proportion_ci(method="wilson")
    assert wilson_interval(successes, total) == pytest.approx((reference.low, reference.high))


@pytest.mark.parametrize("name", ["accuracy", "f1", "precision", "recall", "f1_micro"])
@pytest.mark.parametrize(("gold", "predicted"), [([1] * 12, [1] * 12), ([1] * 12, [0] * 11 + [1]), ([0, 1], [1, 0])])
def test_a_share_has_the_interval_of_wilson_also_at_the_edges(name, gold, predicted):
    row_scores, metric = {"gold": np.array(gold), "predicted": np.array(predicted)}, CLASSIFICATION_METRICS[name]
    scores = {name: metric.compute(row_scores)}
    found = find_intervals(
        CLASSIFICATION_METRICS, scores, row_scores, lambda row_scores: pytest.fail("no resample is needed")
    )
    low, high = found.bounds[name]
    assert found.methods == {name: "Wilson"}
    assert low <= scores[name] <= high
    hits, total = metric.counts(row_scores)
    assert metric.to_score(hits / total) == pytest.approx(scores[name])
    reference = stats.binomtest(hits, total).proportion_ci(method="wilson")
    assert (low, high) == pytest.approx(tuple(metric.to_score(end) for end in (reference.low, reference.high)))


def test_a_threshold_has_no_interval():
    metrics = {"thresh": Metric(lambda row_scores: row_scores["value"][0], is_score=False)}
    found = find_intervals(
        metrics,
        {"thresh": 0.9, "mean": 4.0},
        {"value": np.arange(9)},
        lambda row_scores: {"mean": row_scores["value"].mean(), "thresh": row_scores["value"][0]},
    )
    expected = (None, {"thresh": "it is not a score"}, ["mean"])
    assert (found.bounds["thresh"], found.reasons, list(found.methods)) == expected


@pytest.mark.parametrize(
    ("score", "rows", "reason"),
    [
        (0.5, 1, "one row cannot be resampled"),
        (1.0, 5, "resamples score the same"),
        (math.nan, 5, "undefined in every resample"),
    ],
)
def test_a_score_without_an_interval_says_why(score, rows, reason):
    found = find_intervals(["score"], {"score": score}, {"value": np.arange(rows)}, lambda row_scores: {"score": score})
    assert (found.bounds, found.methods, found.reasons) == ({"score": None}, {}, {"score": reason})


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="successes"):
        wilson_interval(3, 2)
    with pytest.raises(ValueError, match="at least one"):
        bootstrap_intervals(lambda rows: {}, 0)
