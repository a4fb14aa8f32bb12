"""Probabilities and the labels chosen from them, compared with scipy and plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special
from scipy.special import expit, softmax

from bertkit.metrics import probabilities as module
from bertkit.metrics.probabilities import mean_label_probabilities, mean_logits, mean_probabilities


def test_probabilities_are_those_of_scipy():
    logits = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    assert module.softmax(logits) == pytest.approx(scipy.special.softmax(logits.astype(float), axis=-1))
    assert module.sigmoid(logits) == pytest.approx(scipy.special.expit(logits.astype(float)))


def test_one_label_or_all_that_reach_their_thresholds_are_chosen():
    probabilities = np.array([[0.6, 0.4], [0.3, 0.7]])
    assert module.choose_labels(probabilities, None).tolist() == [[True, False], [False, True]]
    assert module.choose_labels(probabilities, np.array([0.3, 0.5])).tolist() == [[True, False], [True, True]]


def test_windows_vote_and_the_mean_decides_between_equally_many():
    assert module.vote(np.array([[0.6, 0.4], [0.1, 0.9]]), None).tolist() == [False, True]
    assert module.vote(np.array([[0.6, 0.4], [0.51, 0.49], [0.1, 0.9]]), None).tolist() == [True, False]
    assert module.vote(np.array([[0.6, 0.2], [0.1, 0.2]]), np.array([0.5, 0.5])).tolist() == [True, False]


@pytest.mark.parametrize("decoding", ["greedy", "repair", "constrained"])
def test_a_temperature_changes_how_sure_tags_are_and_none_of_them(decoding):
    names, logits = ("O", "B-X", "I-X"), 2 * np.random.default_rng(1).normal(size=(40, 3))
    logits[7] = np.nan
    plain, tempered = (module.compute_tag_probabilities(logits, names, temperature) for temperature in (1.0, 2.5))
    assert tempered[:7] == pytest.approx(scipy.special.softmax(logits[:7] / 2.5, axis=1))
    assert plain[7].tolist() == tempered[7].tolist() == [1, 0, 0]
    tags, likely = module.choose_tags(plain, names, decoding)
    assert module.choose_tags(tempered, names, decoding)[0] == tags and likely[7] == 1


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
    assert np.isfinite(mean_label_probabilities([{"logits": np.array([900.0])}] * 2)["logits"]).all()


def test_the_sigmoid_of_combined_logits_is_the_mean_of_each_label():
    combined = mean_label_probabilities(outputs(LOGITS[:, 0]))
    np.testing.assert_allclose(expit(combined["logits"]), expit(LOGITS[:, 0]).mean(axis=0), rtol=1e-5)


def test_means_are_of_all_outputs_that_are_logits():
    both = [
        {**one, **other}
        for one, other in zip(outputs(LOGITS, "start_logits"), outputs(-LOGITS, "end_logits"), strict=True)
    ]
    combined = mean_logits(both)
    assert sorted(combined) == ["end_logits", "start_logits"]
    np.testing.assert_allclose(combined["end_logits"], -LOGITS.mean(axis=0), rtol=1e-5)
