"""Scores over seeds, against other libraries and plain loops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from bertkit.metrics.seeds import (
    compute_spread,
    estimate_expected_best,
    estimate_selection,
    explained_fraction,
    mean_interval,
    resample_means,
)

SCORES = [0.62, 0.55, 0.71, 0.55, 0.66]


@pytest.mark.parametrize(("lower_is_better", "best"), [(False, max), (True, min)])
def test_the_expected_best_is_the_mean_over_all_choices_of_so_many_runs(lower_is_better, best):
    found = estimate_expected_best(SCORES, lower_is_better=lower_is_better)
    for size, value in enumerate(found, start=1):
        chosen = [best(choice) for choice in itertools.combinations(SCORES, size)]
        assert value == pytest.approx(np.mean(chosen), abs=1e-12)
    assert len(found) == len(SCORES)


def test_a_spread_is_that_of_numpy_and_runs_without_a_score_do_not_count():
    spread = compute_spread([*SCORES, float("nan")])
    assert spread.runs == 5
    assert spread.mean == pytest.approx(np.mean(SCORES))
    assert spread.standard_deviation == pytest.approx(np.std(SCORES, ddof=1))
    assert (spread.minimum, spread.median, spread.maximum) == (0.55, 0.62, 0.71)
    assert compute_spread([float("nan")]) is None
    assert compute_spread([0.5]).standard_deviation is None


def test_without_variance_over_rows_the_interval_is_that_of_student():
    found = mean_interval(SCORES, np.full(100, np.mean(SCORES)), rows=1000)
    expected = stats.t.interval(0.95, len(SCORES) - 1, np.mean(SCORES), stats.sem(SCORES))
    assert found == pytest.approx(expected)


def test_the_two_variances_are_added_with_the_degrees_of_freedom_of_welch():
    """The variance over rows has as many degrees of freedom as the second sample of Welch's test."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=40)
    # resamples whose variance is exactly what it is on average: that of a mean of resampled rows
    resampled = rng.normal(size=300)
    resampled = (resampled - resampled.mean()) / resampled.std(ddof=1) * np.sqrt(rows.var() / len(rows))
    low, high = mean_interval(SCORES, resampled, rows=len(rows))
    welch = stats.ttest_ind(SCORES, rows, equal_var=False).confidence_interval()
    assert high - low == pytest.approx(welch.high - welch.low)
    assert (low + high) / 2 == pytest.approx(np.mean(SCORES))


@pytest.mark.parametrize(
    ("scores", "resampled", "rows"),
    [
        ([0.5], [0.4, 0.6], 9),
        ([0.5, 0.6], [0.4, 0.6], 1),
        ([0.5, 0.5], [0.5, 0.5], 9),
        ([0.5, np.nan], [0.4, 0.6], 9),
        ([0.1, 0.9], [0.49, 0.51], 99),
    ],
)
def test_there_is_no_interval_where_nothing_tells_the_spread(scores, resampled, rows):
    assert mean_interval(scores, np.array(resampled), rows) is None


def test_all_runs_score_the_same_resampled_rows():
    right = np.random.default_rng(1).random((3, 50)) < 0.7
    seen = []

    def score(run, rows):
        seen.append((run, rows.tobytes()))
        return {"accuracy": right[run][rows].mean()}

    means = resample_means(score, 3, 50, samples=400)["accuracy"]
    assert len(means) == 400 and len({rows for _, rows in seen}) == 400
    assert means.mean() == pytest.approx(right.mean(), abs=0.01)
    assert means.std() == pytest.approx(right.mean(axis=0).std() / np.sqrt(50), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "rows", "spread"), [(5, 200, 0.1), (5, 1000, 0.3), (3, 200, 0.3), (10, 100, 0.0)])
def test_the_interval_holds_the_truth_as_often_as_it_says(seeds, rows, spread):
    """A run is right on a row where its skill, the row's ease and chance add up to more than zero."""
    rng = np.random.default_rng(2)
    ease, chance, skill = 1.0, 0.6, spread
    truth = stats.norm.cdf(0.5 / np.sqrt(ease**2 + chance**2 + skill**2))
    held = 0
    trials = 400
    for trial in range(trials):
        latent = 0.5 + skill * rng.normal(size=(seeds, 1)) + ease * rng.normal(size=rows)
        right = latent + chance * rng.normal(size=(seeds, rows)) > 0
        draws = np.random.default_rng(trial).integers(0, rows, size=(200, rows))
        resampled = right.mean(axis=0)[draws].mean(axis=1)  # what `resample_means` returns of an accuracy
        low, high = mean_interval(right.mean(axis=1).tolist(), resampled, rows)
        held += low <= truth <= high
    assert 0.925 <= held / trials <= 0.99


def select(correct, **options):
    models, rows = correct.shape
    return estimate_selection(lambda model, at: float(correct[model, at].mean()), models, rows, **options)


def test_the_estimate_is_unbiased_where_all_models_are_equally_good_and_the_best_score_is_not():
    rng = np.random.default_rng(5)
    best, estimates = [], []
    for _ in range(40):
        correct = (rng.random((12, 150)) < 0.7).astype(float)
        best.append(correct.mean(axis=1).max())
        estimates.append(select(correct, samples=40).estimate)
    assert np.mean(best) > 0.75
    assert abs(np.mean(estimates) - 0.7) < 0.015


def test_a_model_that_is_far_better_is_always_chosen_and_keeps_its_score():
    correct = np.zeros((3, 100))
    correct[1, :90] = 1
    found = select(correct)
    assert found.chosen == [0, 1, 0]
    assert found.estimate == 0.9
    errors = select(1 - correct, lower_is_better=True)
    assert errors.chosen == [0, 1, 0] and errors.estimate == pytest.approx(0.1)


def correlate(gold, answers) -> float:
    """Return the Matthews correlation, which is Pearson's of columns of 0 and 1; 0 where all answers are the same."""
    gold, answers = gold - gold.mean(), answers - answers.mean()
    spread = np.sqrt((gold @ gold) * (answers @ answers))
    return float(gold @ answers / spread) if spread else 0.0


def test_the_estimate_is_never_above_the_best_score_whatever_the_metric():
    rng = np.random.default_rng(4)
    gold = rng.random(60) < 0.3
    for seed in range(5):
        said = np.where(rng.random((3, 60)) < [[0.9], [0.85], [0.6]], gold, ~gold)
        scores = [correlate(gold, answers) for answers in said]
        found = estimate_selection(lambda model, at, said=said: correlate(gold[at], said[model, at]), 3, 60, seed=seed)
        assert found.estimate <= max(scores)


def test_the_estimate_lowers_the_best_score_by_what_choices_lose_to_the_best_model():
    """Against a plain loop over the same draws."""
    correct = (np.random.default_rng(6).random((4, 50)) < 0.7).astype(float)
    means = correct.mean(axis=1)
    best, rng, losses = int(means.argmax()), np.random.default_rng(0), []
    for _ in range(200):
        inside = rng.integers(0, 50, size=50)
        outside = [row for row in range(50) if row not in inside]
        choice = int(correct[:, inside].mean(axis=1).argmax())
        losses.append(correct[best, outside].mean() - correct[choice, outside].mean())
    assert np.mean(losses) > 0
    assert select(correct).estimate == pytest.approx(means[best] - np.mean(losses))


def test_scores_that_are_undefined_choose_nothing():
    assert select(np.full((2, 30), np.nan)) is None
    assert select(np.ones((2, 1))) is None
    half = np.ones((2, 30))
    half[0] = np.nan
    assert select(half).chosen == [0, 1]


def test_the_share_is_epsilon_squared_of_an_analysis_of_variance():
    rng = np.random.default_rng(3)
    groups = np.repeat([0, 1, 2], 8)
    scores = rng.normal(size=24) + groups
    f = stats.f_oneway(*(scores[groups == group] for group in range(3))).statistic
    assert explained_fraction(groups.tolist(), scores.tolist()) == pytest.approx(2 * (f - 1) / (2 * f + 21))
    assert explained_fraction([0, 1] * 10, [0.5, 0.5, 0.7, 0.7] * 5) == 0


@pytest.mark.parametrize("groups", [[], [1], [1, 1, 1, 1], [1, 2, 3, 4]])
def test_too_few_trials_explain_nothing(groups):
    assert explained_fraction(groups, [0.1, 0.4, 0.2, 0.3][: len(groups)]) is None
    assert explained_fraction([1, 1, 2, 2], [0.5] * 4) is None
