"""Nearest neighbors and the linear probe, compared with a plain loop and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bertkit.insight.ranking.probes import correlate, score_linear_probe, score_neighbors


@pytest.fixture(scope="module")
def made():
    random = np.random.default_rng(5)
    gold = random.integers(3, size=60)
    return random.normal(size=(60, 6)) + 1.5 * np.eye(6)[gold], gold


def nearest_of(features, number, neighbors):
    """The others by their cosine to one example, the nearest first."""
    cosines = []
    for other, row in enumerate(features):
        if other != number:
            own = features[number]
            cosines.append((own @ row / (np.linalg.norm(own) * np.linalg.norm(row)), other))
    return [other for _, other in sorted(cosines, reverse=True)[:neighbors]]


def test_neighbors_vote_and_no_example_is_its_own(made):
    features, gold = made
    right = 0
    for number in range(60):
        votes = [gold[other] for other in nearest_of(features, number, 5)]
        counts = [votes.count(name) for name in range(3)]
        most = [name for name in range(3) if counts[name] == max(counts)]
        cosine = dict.fromkeys(most, 0.0)
        for other in nearest_of(features, number, 5):
            if gold[other] in cosine:
                norms = np.linalg.norm(features[number]) * np.linalg.norm(features[other])
                cosine[gold[other]] += features[number] @ features[other] / norms
        right += max(cosine, key=cosine.get) == gold[number]
    assert score_neighbors(features, gold, 5) == right / 60
    # an odd one out is never found by its own label
    assert score_neighbors(np.eye(2)[[0, 0, 1, 1]] + 1e-3, np.array([0, 1, 2, 3]), 1) == 0


def test_numbers_are_the_mean_of_the_neighbors(made):
    features, _ = made
    target = features @ np.arange(6.0)
    means = [np.mean([target[other] for other in nearest_of(features, number, 5)]) for number in range(60)]
    assert score_neighbors(features, target, 5) == pytest.approx(np.corrcoef(means, target)[0, 1])
    assert score_neighbors(features, np.ones(60)) == 0 == correlate(np.ones(3), np.arange(3.0))


def test_the_probe_is_cross_validated_by_blocks(made):
    features, gold = made
    blocks = np.arange(60) // 2 % 5
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200))
    predicted = cross_val_predict(model, features, gold, cv=PredefinedSplit(blocks))
    assert score_linear_probe(features, gold, blocks) == (predicted == gold).mean()
    target = features @ np.arange(6.0)
    assert score_linear_probe(features, target, blocks) > 0.99
    assert abs(score_linear_probe(features, np.random.default_rng(0).normal(size=60), blocks)) < 0.5


def test_a_fold_whose_training_rows_have_one_class_predicts_it():
    features, gold = np.random.default_rng(0).normal(size=(10, 2)), np.array([0] * 8 + [1] * 2)
    assert score_linear_probe(features, gold, np.array([0] * 8 + [1] * 2), folds=2) == 0
