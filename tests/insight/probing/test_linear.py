"""The probes beside scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.insight.probing import linear
from bertkit.insight.probing.linear import (
    Scaling,
    code_length,
    fit_classifier,
    fit_regression,
    gram_of,
)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    features = (rng.normal(size=(300, 20)) @ rng.normal(size=(20, 20))).astype(np.float32)
    return features, rng.integers(0, 4, size=300) + (features[:, 0] > 0) * 2


def test_features_are_standardized_and_a_constant_one_is_no_error(data):
    features = np.concatenate([data[0], np.full((300, 1), 7, dtype=np.float32)], axis=1)
    scaled = Scaling.of(features).apply(features)
    np.testing.assert_allclose(scaled[:, :-2].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(scaled[:, :-2].std(axis=0), 1, atol=1e-5)
    assert (scaled[:, -2] == 0).all() and (scaled[:, -1] == 1).all()


@pytest.mark.parametrize("strength", [1.0, 100.0])
def test_a_classifier_is_that_of_scikit_learn(data, strength, monkeypatch):
    from sklearn.linear_model import LogisticRegression

    monkeypatch.setattr(linear, "_TOLERANCE", 1e-9)
    features, labels = Scaling.of(data[0]).apply(data[0]), data[1]
    ours = fit_classifier(features, labels, 6, strength, gram=gram_of(features))
    theirs = LogisticRegression(C=1 / strength, fit_intercept=False, max_iter=1000, tol=1e-8).fit(features, labels)
    np.testing.assert_allclose(ours, theirs.coef_.T, atol=5e-3)
    again = fit_classifier(features, labels, 6, strength, gram=gram_of(features[:50]), start=ours)
    np.testing.assert_allclose(again, ours, atol=5e-3)


def test_regression_is_that_of_scikit_learn(data):
    from sklearn.linear_model import Ridge

    features = Scaling.of(data[0]).apply(data[0])
    values = features[:, 0] - 2 * features[:, 5] + np.random.default_rng(0).normal(size=300)
    ours = fit_regression(features, values, 10.0)
    np.testing.assert_allclose(
        ours[:, 0], Ridge(alpha=10.0, fit_intercept=False).fit(features, values).coef_, atol=1e-4
    )


def test_a_code_has_the_bits_of_each_label(data):
    features, labels = Scaling.of(data[0]).apply(data[0]), data[1]
    assert code_length(features, labels, np.zeros((21, 8), dtype=np.float32)) == pytest.approx(300 * 3)
    weights = fit_classifier(features, labels, 6, 10.0, gram=gram_of(features))
    bits = 0.0
    for row, label in zip(features, labels, strict=True):
        powers = np.exp(row.astype(float) @ weights)
        bits -= np.log2(powers[label] / powers.sum())
    assert code_length(features, labels, weights) == pytest.approx(bits, rel=1e-4)
