"""The score to expect of the best of several models, and what settings explain, against simulation and formulas."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from bertkit.metrics.selection import estimate_selection, explained_share, find_pareto


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
        found = estimate_selection(lambda model, at, said=said: correlate(gold[at], said[model, at]), 3, 60, draws=seed)
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
    assert explained_share(groups.tolist(), scores.tolist()) == pytest.approx(2 * (f - 1) / (2 * f + 21))
    assert explained_share([0, 1] * 10, [0.5, 0.5, 0.7, 0.7] * 5) == 0


@pytest.mark.parametrize("groups", [[], [1], [1, 1, 1, 1], [1, 2, 3, 4]])
def test_too_few_trials_explain_nothing(groups):
    assert explained_share(groups, [0.1, 0.4, 0.2, 0.3][: len(groups)]) is None
    assert explained_share([1, 1, 2, 2], [0.5] * 4) is None


def test_what_is_beaten_in_both_or_in_one_is_not_optimal():
    assert find_pareto([3.0, 2.0, 1.0, 3.0], [1.0, 2.0, 2.0, 0.5]) == [True, True, False, False]
    assert find_pareto([1.0, 1.0], [5.0, 5.0]) == [True, True]
