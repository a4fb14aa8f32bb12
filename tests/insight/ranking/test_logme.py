"""LogME, compared with the evidence that scikit-learn's Bayesian ridge finds, and with a density written out."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.linear_model import BayesianRidge

from bertkit.insight.ranking.measure import evidence, log_me


def make(count, width, noise=0.5):
    random = np.random.default_rng(2)
    features = random.normal(size=(count, width)) + 0.3
    return features, features @ random.normal(size=width) + noise * random.normal(size=count)


@pytest.mark.parametrize(("count", "width"), [(120, 6), (60, 50), (30, 45)])
def test_the_evidence_is_that_of_bayesian_ridge(count, width):
    features, target = make(count, width)
    none = {"alpha_1": 0, "alpha_2": 0, "lambda_1": 0, "lambda_2": 0}
    ridge = BayesianRidge(max_iter=5000, tol=1e-10, fit_intercept=False, compute_score=True, **none)
    ridge.fit(features, target)
    found = evidence(features, target[:, None])[0]
    assert found == pytest.approx(ridge.scores_[-1] / count, rel=1e-5)
    # y is normal with the covariance I / beta + F F' / alpha
    covariance = np.eye(count) / ridge.alpha_ + features @ features.T / ridge.lambda_
    assert found == pytest.approx(multivariate_normal(np.zeros(count), covariance).logpdf(target) / count, rel=1e-5)


def test_it_is_a_maximum():
    features, target = make(80, 5)
    best = evidence(features, target[:, None])[0]
    for alpha in np.geomspace(1e-3, 1e3, 13):
        for beta in np.geomspace(1e-3, 1e3, 13):
            covariance = np.eye(80) / beta + features @ features.T / alpha
            assert multivariate_normal(np.zeros(80), covariance).logpdf(target) / 80 <= best + 1e-9


def test_classes_are_the_mean_of_one_against_the_rest():
    features, target = make(90, 4)
    gold = np.digitize(target, [-1, 1]).astype(np.int64)
    apart = [evidence(features, (gold == name).astype(float)[:, None])[0] for name in range(3)]
    assert log_me(features, gold) == pytest.approx(np.mean(apart), rel=1e-6)
    assert log_me(features, gold + 10) == pytest.approx(np.mean(apart), rel=1e-6)
    assert log_me(features, target) > log_me(features, np.random.default_rng(0).permutation(target))


def test_it_stays_finite_where_there_is_nothing_to_learn_or_nothing_left_to_learn():
    features, target = make(50, 4, noise=0.0)
    random = np.random.default_rng(3).normal(size=50)
    for given, gold in (
        (features, target),  # exact
        (features, random),
        (features, np.zeros(50)),
        (np.zeros((50, 4)), target),
        (np.repeat(features, 2, axis=1), target),
        (1e-6 * features, target),
        (1e6 * features.astype(np.float32), target),
        (np.random.default_rng(4).normal(size=(50, 200)), target),
    ):
        assert np.isfinite(log_me(given, gold))
