"""The H-score, compared with covariance matrices that are written out, and scikit-learn's shrinkage."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.covariance import ledoit_wolf_shrinkage

from bertkit.insight.ranking.measure import h_score


def make(count, width, classes=3, apart=1.0):
    random = np.random.default_rng(1)
    gold = random.integers(classes, size=count)
    means = apart * random.normal(size=(classes, width))
    return random.normal(size=(count, width)) * np.linspace(0.2, 3, width) + means[gold] + 5, gold


def written_out(features, gold, share):
    """tr(cov(f)^-1 cov(E[f|y])), one example after the other."""
    count, width = features.shape
    mean = features.mean(axis=0)
    covariance, between = np.zeros((width, width)), np.zeros((width, width))
    for row, label in zip(features, gold, strict=True):
        covariance += np.outer(row - mean, row - mean) / count
        of_class = features[gold == label].mean(axis=0) - mean
        between += np.outer(of_class, of_class) / count
    shrunk = (1 - share) * covariance + share * np.trace(covariance) / width * np.eye(width)
    return (1 - share) * np.trace(np.linalg.inv(shrunk) @ between)


@pytest.mark.parametrize(("count", "width"), [(200, 5), (40, 60)])
def test_the_score_is_that_of_the_covariances(count, width):
    features, gold = make(count, width)
    share = ledoit_wolf_shrinkage(features)
    assert h_score(features, gold) == pytest.approx(written_out(features, gold, share), rel=1e-8)
    if count > width:
        assert h_score(features, gold, 0) == pytest.approx(written_out(features, gold, 0.0), rel=1e-6)


def test_classes_that_lie_apart_score_more_and_shuffled_ones_next_to_nothing():
    features, gold = make(500, 8, apart=5.0)
    near, _ = make(500, 8, apart=0.2)
    assert 1.8 < h_score(features, gold) <= 2  # classes less 1
    assert h_score(near, gold) < h_score(features, gold)
    assert h_score(features, np.random.default_rng(0).permutation(gold)) < 0.1
    # neither the unit nor the names of classes matter
    assert h_score(100 * features, gold * 7 - 3) == pytest.approx(h_score(features, gold))


def test_constant_features_are_no_fault():
    features, gold = make(50, 4)
    assert h_score(np.ones((50, 4)), gold) == 0
    assert np.isfinite(h_score(np.concatenate([features, np.ones((50, 1))], axis=1), gold))
    assert np.isfinite(h_score(np.repeat(features, 2, axis=1), gold, 0))
    cross = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])  # whose covariance is the identity already
    assert h_score(cross, np.array([0, 0, 1, 1])) == 0
