"""Probabilities beside scipy's, and the labels that are chosen."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

from bertkit.metrics import decisions


def test_probabilities_are_those_of_scipy():
    logits = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    assert decisions.softmax(logits) == pytest.approx(scipy.special.softmax(logits.astype(float), axis=-1))
    assert decisions.sigmoid(logits) == pytest.approx(scipy.special.expit(logits.astype(float)))


def test_one_label_or_all_that_reach_their_thresholds_are_chosen():
    probabilities = np.array([[0.6, 0.4], [0.3, 0.7]])
    assert decisions.choose(probabilities, None).tolist() == [[True, False], [False, True]]
    assert decisions.choose(probabilities, np.array([0.3, 0.5])).tolist() == [[True, False], [True, True]]


def test_windows_vote_and_the_mean_decides_between_equally_many():
    assert decisions.vote(np.array([[0.6, 0.4], [0.1, 0.9]]), None).tolist() == [False, True]
    assert decisions.vote(np.array([[0.6, 0.4], [0.51, 0.49], [0.1, 0.9]]), None).tolist() == [True, False]
    assert decisions.vote(np.array([[0.6, 0.2], [0.1, 0.2]]), np.array([0.5, 0.5])).tolist() == [True, False]


@pytest.mark.parametrize("decoding", ["greedy", "repair", "constrained"])
def test_a_temperature_changes_how_sure_tags_are_and_none_of_them(decoding):
    names, logits = ("O", "B-X", "I-X"), 2 * np.random.default_rng(1).normal(size=(40, 3))
    logits[7] = np.nan
    plain, tempered = (decisions.tag_probabilities(logits, names, temperature) for temperature in (1.0, 2.5))
    assert tempered[:7] == pytest.approx(scipy.special.softmax(logits[:7] / 2.5, axis=1))
    assert plain[7].tolist() == tempered[7].tolist() == [1, 0, 0]
    tags, likely = decisions.choose_tags(plain, names, decoding)
    assert decisions.choose_tags(tempered, names, decoding)[0] == tags and likely[7] == 1
