"""The scores of an encoder are those of its layers, and the best layer is the one that scores most."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.insight.ranking.examples import LayerFeatures, RankedExamples
from bertkit.insight.ranking.measure import h_score, log_me, score_encoder
from bertkit.insight.ranking.uncertainty import deal_blocks


@pytest.fixture(scope="module")
def made():
    """Three layers, of which the second tells the classes apart."""
    random = np.random.default_rng(6)
    gold = random.integers(2, size=80)
    vectors = random.normal(size=(80, 4, 5)).astype(np.float32)
    vectors[:, 2, 0] += 4 * gold
    examples = RankedExamples("text", [{}] * 80, gold, np.arange(80), [np.arange(80)], 2)
    return LayerFeatures([vectors]), examples


def test_scores_and_interval_are_those_of_the_mean_of_layers(made):
    features, examples = made
    mean = features.sides[0][:, 1:].mean(axis=1).astype(np.float64)
    found = score_encoder(features, examples, "mean", "h_score")
    assert list(found.scores) == ["h_score", "logme", "knn", "linear_probe"]
    assert found.scores["h_score"] == pytest.approx(h_score(mean, examples.gold))
    assert found.scores["logme"] == pytest.approx(log_me(mean, examples.gold))
    blocks = deal_blocks(np.arange(80))
    assert found.left_out[3] == pytest.approx(h_score(mean[blocks != 3], examples.gold[blocks != 3]))
    assert found.interval[0] < found.scores["h_score"] < found.interval[1]
    assert 0 < found.shuffled < found.interval[0]


def test_the_best_layer_is_found(made):
    features, examples = made
    best = score_encoder(features, examples, "best", "logme")
    second = score_encoder(features, examples, "2", "logme")
    assert best.layer == 2 and best.scores == second.scores
    assert best.scores["logme"] > score_encoder(features, examples, "last", "logme").scores["logme"]


def test_numbers_have_no_h_score_and_groups_are_averaged(made):
    features, examples = made
    numbers = RankedExamples("text", [{}] * 80, features.sides[0][:, 2, 0] * 1.0, np.arange(80), [np.arange(80)], None)
    assert list(score_encoder(features, numbers, "mean", "logme").scores) == ["logme", "knn", "linear_probe"]
    groups = [np.arange(30), np.arange(30, 80)]
    found = score_encoder(
        features, RankedExamples("target", [{}] * 80, examples.gold, np.arange(80), groups, 2), "2", "h_score"
    )
    own = [h_score(features.sides[0][group, 2], examples.gold[group]) for group in groups]
    assert found.scores["h_score"] == pytest.approx((30 * own[0] + 50 * own[1]) / 80)
