"""Scores of rankings and ranks of right partners, compared with plain loops and with scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import average_precision_score, ndcg_score

from bertkit.metrics import retrieval
from bertkit.metrics.intervals import select_units
from bertkit.metrics.retrieval import (
    average_queries,
    draw_chance_ranks,
    query_intervals,
    rank_by_words,
    rank_positives,
    score_rankings,
)


def draw(graded: bool, queries: int = 50, documents: int = 30):
    """Draw scores of documents and their relevance, (queries, documents), with a relevant one at least."""
    rng = np.random.default_rng(graded)
    scores = rng.permuted(np.tile(np.arange(documents, dtype=float), (queries, 1)), axis=1)
    relevance = rng.integers(0, 4, (queries, documents)) * (rng.random((queries, documents)) < 0.2)
    relevance[:, 0] = 1
    return scores, relevance if graded else np.minimum(relevance, 1)


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("cutoff", [3, 10, 50])
def test_scores_are_those_of_scikit_learn(graded, cutoff):
    scores, relevance = draw(graded)
    rankings = [np.argsort(-of_query).tolist() for of_query in scores]
    found = score_rankings(rankings, [dict(enumerate(of_query)) for of_query in relevance], cutoff)
    gold = [ndcg_score([true], [predicted], k=cutoff) for true, predicted in zip(relevance, scores, strict=True)]
    assert found[f"ndcg@{cutoff}"] == pytest.approx(gold, abs=1e-12)
    gold = [average_precision_score(true > 0, predicted) for true, predicted in zip(relevance, scores, strict=True)]
    assert found["map"] == pytest.approx(gold, abs=1e-12)


def test_rank_and_recall_are_those_of_a_plain_loop():
    scores, relevance = draw(graded=True)
    rankings = [np.argsort(-of_query)[:20].tolist() for of_query in scores]
    found = score_rankings(rankings, [dict(enumerate(of_query)) for of_query in relevance], 5, (1, 7))
    for query, ranking in enumerate(rankings):
        relevant = [document for document, gain in enumerate(relevance[query]) if gain > 0]
        reciprocal = next((1 / rank for rank, document in enumerate(ranking[:5], start=1) if document in relevant), 0)
        assert found["mrr@5"][query] == reciprocal
        for cutoff in (1, 7):
            assert found[f"recall@{cutoff}"][query] == len(set(ranking[:cutoff]) & set(relevant)) / len(relevant)


def test_what_a_ranking_lacks_lowers_every_score():
    found = score_rankings([["a"], ["a"], []], [{"a": 1}, {"a": 1, "b": 1}, {"a": 1}])
    assert found["map"].tolist() == found["recall@100"].tolist() == [1, 0.5, 0]
    assert found["ndcg@10"] == pytest.approx([1, 1 / (1 + 1 / math.log2(3)), 0])


def test_queries_without_relevant_documents_do_not_count():
    scores = score_rankings([["a", "b"], ["a"], ["b", "a"]], [{"a": 1}, {"a": 0}, {"a": 2}])
    assert np.isnan(scores["map"]).tolist() == [False, True, False]
    assert average_queries(scores)["mrr@10"] == 0.75
    assert math.isnan(average_queries(select_units(scores, np.array([1])))["mrr@10"])


def test_intervals_are_over_queries():
    scores = {"map": np.random.default_rng(0).random(400)}
    low, high = query_intervals(scores, samples=200).bounds["map"]
    width = 2 * 1.96 * scores["map"].std() / 20  # of the normal approximation
    assert low < scores["map"].mean() < high
    assert high - low == pytest.approx(width, rel=0.15)


@pytest.mark.parametrize(
    ("rankings", "relevance", "message"),
    [
        ([["a", "a"]], [{"a": 1}], "twice"),
        ([["a"]], [{"b": -1}], "below 0"),
        ([["a"]], [], "0 queries"),
    ],
)
def test_wrong_rankings_are_refused(rankings, relevance, message):
    with pytest.raises(ValueError, match=message):
        score_rankings(rankings, relevance)


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
    monkeypatch.setattr(retrieval, "_BLOCK", block)
    scores = np.random.default_rng(0).random((50, 50))
    found = rank_positives(ROWS, lambda one, other: scores[np.ix_(one, other)])
    assert found.tolist() == [rank_in_a_loop(scores, row) for row in range(50)]


def test_of_many_rows_each_run_is_ranked_by_itself(monkeypatch):
    monkeypatch.setattr(retrieval, "_MAX_ROWS", 20)
    scores = np.random.default_rng(0).random((50, 50))
    found = rank_positives(ROWS, lambda one, other: scores[np.ix_(one, other)])
    alone = [
        rank_positives(ROWS[start : start + 20], lambda one, other, s=start: scores[np.ix_(s + one, s + other)])
        for start in (0, 20, 40)
    ]
    assert found.tolist() == np.concatenate(alone).tolist()


def test_words_are_weighed_as_scikit_learn_weighs_them():
    ranks, scores = rank_by_words(ROWS)
    words = TfidfVectorizer(token_pattern=r"\w+", sublinear_tf=True)
    words.fit([text for row in ROWS for text in (row["anchor"], row["positive"], *row["negative"])])
    anchors, positives = (words.transform([row[name] for row in ROWS]).toarray() for name in ("anchor", "positive"))
    np.testing.assert_allclose([first for first, _ in scores], (anchors * positives).sum(axis=1))
    assert all(second == 0 for _, second in scores)
    assert ranks.tolist() == [rank_in_a_loop(anchors @ positives.T, row) for row in range(50)]


def test_texts_without_words_and_guesses_have_ranks_too():
    ranks, _ = rank_by_words([{"anchor": "?", "positive": "!"}, {"anchor": ".", "positive": ","}])
    assert ranks.tolist() == [2, 2]
    assert draw_chance_ranks(50).tolist() == draw_chance_ranks(50).tolist()
    assert (draw_chance_ranks(1000) <= 10).mean() == pytest.approx(0.01, abs=0.01)
