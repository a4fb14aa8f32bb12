"""Baselines beside scores: the strongest one, ties, and what lengths tell."""

import numpy as np
import pytest

from bertkit.metrics.baselines import (
    find_baseline_warning,
    find_best_baseline,
    find_best_baseline_scores,
    score_by_length,
    tabulate,
)

TWO = {"most frequent label": {"accuracy": 0.6, "f1": None}, "text alone": {"accuracy": 0.7, "f1": float("nan")}}


@pytest.mark.parametrize(
    ("metric", "score", "least", "is_unbeaten"),
    [
        ("accuracy", 0.5, 0.6, True),
        ("accuracy", 0.6, 0.6, True),
        ("accuracy", 0.1 + 0.2, 0.3, True),
        ("accuracy", 0.7, 0.6, False),
        ("mean_squared_error", 2.0, 1.0, True),
        ("mean_squared_error", 0.5, 1.0, False),
        ("perplexity", 1234.5, 1234.0, True),
        ("perplexity", 12.5, 1234.0, False),
        ("mse", 2.0, 1.0, True),
        ("pearsonr", 0.1, float("nan"), False),
        ("pearsonr", float("nan"), 0.1, False),
        ("accuracy", 0.1, None, False),
        ("accuracy", None, 0.1, False),
    ],
)
def test_a_tie_does_not_beat_a_baseline(metric, score, least, is_unbeaten):
    found = find_baseline_warning({metric: score}, {"mean": {metric: least}}, metric)
    assert bool(found) == is_unbeaten
    if metric == "perplexity" and is_unbeaten:
        assert found == "The perplexity of 1,234.5 is no better than the 1,234.0 of a baseline (mean)."


def test_a_score_is_compared_with_the_strongest_baseline():
    assert find_best_baseline(TWO, "accuracy") == ("text alone", 0.7)
    assert find_best_baseline(TWO, "f1") == find_best_baseline({}, "f1") == ("", None)
    assert find_best_baseline_scores(TWO) == {"accuracy": 0.7, "f1": None}
    assert "0.7000 of a baseline (text alone)" in find_baseline_warning({"accuracy": 0.65}, TWO, "accuracy")


@pytest.mark.parametrize("metric", ["mean_absolute_error", "loss", "ece", "mse"])
def test_the_strongest_baseline_of_an_error_has_the_lowest(metric):
    baselines = {"often": {metric: 0.3}, "words": {metric: 0.5}}
    assert find_best_baseline(baselines, metric) == ("often", 0.3)
    assert find_best_baseline_scores(baselines) == {metric: 0.3}


def test_several_baselines_have_a_table():
    assert tabulate({"mean": {"r2": 0.0}}) == tabulate({}) == []
    assert tabulate({**TWO, "lengths": {}})[::2] == [
        {"baseline": "most frequent label", "accuracy": 0.6, "f1": "n/a"},
        {"baseline": "lengths", "accuracy": "", "f1": ""},
    ]


@pytest.mark.parametrize(("hint", "low", "high"), [(0, 0.45, 0.55), (8, 0.6, 0.9)])
def test_lengths_find_labels_that_depend_on_them_and_no_others(hint, low, high):
    random = np.random.default_rng(0)
    labels = random.integers(2, size=1000)
    lengths = random.integers(5, 30, (1000, 2)) + hint * np.column_stack([labels, 0 * labels])
    assert low < score_by_length(lengths, labels) < high


@pytest.mark.parametrize(("lengths", "labels"), [([(4, 4)] * 60, [0, 1] * 30), ([(4, 5), (6, 7)] * 30, [0] * 59 + [1])])
def test_too_few_lengths_or_labels_tell_nothing(lengths, labels):
    assert score_by_length(lengths, labels) is None
