"""Comprehensiveness and sufficiency, against their definition on a model known by heart."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.insight.faithfulness import RANDOM, drops, random_drops, summarize, to_probability
from bertkit.insight.words import Word
from tests.insight.test_attributions import IDS, Squares, make_explained

WORDS = [Word(str(ids), 0, ((0, position),)) for position, ids in enumerate(IDS[1:-1], 1)]
ADDED = np.array([49.0, 64.0, 81.0, 144.0]) - 25


def test_drops_are_those_without_the_best_words_and_with_them_alone():
    # of four words, 1, 5, 10 and 20 % are one word and 50 % are two
    comprehensiveness, sufficiency = drops(make_explained(Squares()), WORDS, ADDED, "value")
    assert comprehensiveness == pytest.approx((4 * 119 + 119 + 56) / 5)
    assert sufficiency == pytest.approx((4 * (24 + 39 + 56) + 24 + 39) / 5)


def test_random_attributions_do_worse():
    explained = make_explained(Squares())
    comprehensiveness, sufficiency = random_drops(explained, WORDS, "value", np.random.default_rng(0))
    assert comprehensiveness < drops(explained, WORDS, ADDED, "value")[0]
    assert sufficiency > drops(explained, WORDS, ADDED, "value")[1]


def test_log_odds_and_log_probabilities_are_turned_into_probabilities():
    from scipy.special import expit

    values = np.array([-3.0, 0.0, 2.0])
    np.testing.assert_allclose(to_probability(values, "log-odds"), expit(values))
    np.testing.assert_allclose(to_probability(values, "log-probability"), np.exp(values))
    np.testing.assert_allclose(to_probability(values, "cosine"), values)


def test_methods_are_compared_with_random_row_by_row():
    random = np.random.default_rng(0).random((40, 2))
    better = random + np.array([0.2, -0.1])
    found = {one.method: one for one in summarize({"ours": list(map(tuple, better)), RANDOM: list(map(tuple, random))})}
    assert found["ours"].comprehensiveness == pytest.approx(random[:, 0].mean() + 0.2)
    assert found["ours"].sufficiency == pytest.approx(random[:, 1].mean() - 0.1)
    # the difference is the same in every row, so that no interval can be given
    assert found["ours"].above_random is None
    assert found[RANDOM].above_random is None
    low, high = found["ours"].comprehensiveness_interval
    assert low < found["ours"].comprehensiveness < high
