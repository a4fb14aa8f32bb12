"""Online codes, recomputed part by part."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from bertkit.insight.probing.linear import Scaling, gram_of
from bertkit.insight.probing.probes import DescriptionLength, measure_code


def test_a_code_is_the_sum_of_its_parts():
    """Each part is coded by scikit-learn's probe of all parts before it; the first one uniformly."""
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    labels = np.append([0, 1, 2], rng.integers(0, 3, size=197))
    features = rng.normal(size=(200, 6)).astype(np.float32)
    features[:, 0] += labels
    features = Scaling.of(features).apply(features)
    bits, ends = 8 * np.log2(3), [8, 12, 25, 50, 100, 200]
    for begin, end in itertools.pairwise(ends):
        probe = LogisticRegression(C=0.1, fit_intercept=False, tol=1e-8).fit(features[:begin], labels[:begin])
        for row, label in zip(features[begin:end], labels[begin:end], strict=True):
            bits -= np.log2(probe.predict_proba(row[None])[0, label])
    found = measure_code(features, labels, 3, 10.0, gram=gram_of(features))
    assert found.bits == pytest.approx(bits, rel=1e-3)
    assert found.compression == pytest.approx(200 * np.log2(3) / bits, rel=1e-3)


def test_random_labels_take_as_many_bits_as_the_uniform_code():
    rng = np.random.default_rng(1)
    features = Scaling.of(rng.normal(size=(400, 6))).apply(rng.normal(size=(400, 6)))
    found = measure_code(features, rng.integers(0, 4, size=400), 4, 100.0, gram=gram_of(features))
    assert found.compression == pytest.approx(1, abs=0.05)
    assert DescriptionLength(0.0, 8.0).compression == float("inf")
