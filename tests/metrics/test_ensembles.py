"""Combined outputs, against scipy's softmax and sigmoid."""

from __future__ import annotations

import numpy as np
from scipy.special import expit, softmax

from bertkit.metrics.ensembles import mean_logits, mean_of_each_label, mean_probabilities

LOGITS = np.random.default_rng(0).normal(scale=8, size=(3, 7, 4))  # models, tokens, labels


def outputs(logits, name="logits"):
    return [{name: each.astype(np.float32), "vectors": np.zeros(2)} for each in logits]


def test_the_softmax_of_combined_logits_is_the_mean_of_the_probabilities():
    combined = mean_probabilities(outputs(LOGITS))
    assert list(combined) == ["logits"]
    expected = softmax(LOGITS, axis=-1).mean(axis=0)
    np.testing.assert_allclose(softmax(combined["logits"], axis=-1), expected, rtol=1e-5)


def test_extreme_logits_stay_finite():
    combined = mean_probabilities([{"logits": np.array([9e3, -9e3])}, {"logits": np.array([8e3, -9e3])}])
    assert np.isfinite(combined["logits"]).all()
    assert np.isfinite(mean_of_each_label([{"logits": np.array([900.0])}] * 2)["logits"]).all()


def test_the_sigmoid_of_combined_logits_is_the_mean_of_each_label():
    combined = mean_of_each_label(outputs(LOGITS[:, 0]))
    np.testing.assert_allclose(expit(combined["logits"]), expit(LOGITS[:, 0]).mean(axis=0), rtol=1e-5)


def test_means_are_of_all_outputs_that_are_logits():
    both = [
        {**one, **other}
        for one, other in zip(outputs(LOGITS, "start_logits"), outputs(-LOGITS, "end_logits"), strict=True)
    ]
    combined = mean_logits(both)
    assert sorted(combined) == ["end_logits", "start_logits"]
    np.testing.assert_allclose(combined["end_logits"], -LOGITS.mean(axis=0), rtol=1e-5)
