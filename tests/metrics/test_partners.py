"""Ranks of right partners, compared with a plain loop and with scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from bertkit.metrics import partners
from bertkit.metrics.partners import chance_ranks, partner_ranks, word_ranks

ROWS = [
    {"anchor": f"anchor {number % 23}", "positive": f"positive {number % 31}", "negative": ["none of these"]}
    for number in range(50)
]


def rank_in_a_loop(scores: np.ndarray, row: int) -> int:
    own = ROWS[row]
    mine = {each["positive"] for each in ROWS if each["anchor"] == own["anchor"]}
    first = {each["positive"]: number for number, each in reversed(list(enumerate(ROWS)))}
    right = scores[row, first[own["positive"]]]
    return 1 + sum(scores[row, number] > right for text, number in first.items() if text not in mine)


@pytest.mark.parametrize("block", [7, 512])
def test_a_rank_counts_the_better_texts_that_are_not_positives_of_the_anchor(monkeypatch, block):
    monkeypatch.setattr(partners, "_BLOCK", block)
    scores = np.random.default_rng(0).random((50, 50))
    found = partner_ranks(ROWS, lambda one, other: scores[np.ix_(one, other)])
    assert found.tolist() == [rank_in_a_loop(scores, row) for row in range(50)]


def test_of_many_rows_each_run_is_ranked_by_itself(monkeypatch):
    monkeypatch.setattr(partners, "_MOST_ROWS", 20)
    scores = np.random.default_rng(0).random((50, 50))
    found = partner_ranks(ROWS, lambda one, other: scores[np.ix_(one, other)])
    alone = [
        partner_ranks(ROWS[start : start + 20], lambda one, other, s=start: scores[np.ix_(s + one, s + other)])
        for start in (0, 20, 40)
    ]
    assert found.tolist() == np.concatenate(alone).tolist()


def test_words_are_weighed_as_scikit_learn_weighs_them():
    ranks, scores = word_ranks(ROWS)
    words = TfidfVectorizer(token_pattern=r"\w+", sublinear_tf=True)
    words.fit([text for row in ROWS for text in (row["anchor"], row["positive"], *row["negative"])])
    anchors, positives = (words.transform([row[name] for row in ROWS]).toarray() for name in ("anchor", "positive"))
    np.testing.assert_allclose([first for first, _ in scores], (anchors * positives).sum(axis=1))
    assert all(second == 0 for _, second in scores)
    assert ranks.tolist() == [rank_in_a_loop(anchors @ positives.T, row) for row in range(50)]


def test_texts_without_words_and_guesses_have_ranks_too():
    ranks, _ = word_ranks([{"anchor": "?", "positive": "!"}, {"anchor": ".", "positive": ","}])
    assert ranks.tolist() == [2, 2]
    assert chance_ranks(50).tolist() == chance_ranks(50).tolist()
    assert (chance_ranks(1000) <= 10).mean() == pytest.approx(0.01, abs=0.01)
