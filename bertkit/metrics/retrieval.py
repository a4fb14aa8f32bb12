"""Score rankings by nDCG, MRR, MAP and recall, and rank the positive of each row among the positives of all rows.

A ranking of four documents has one of two relevant documents, at rank 2:

>>> scores = score_rankings([["a", "b", "c", "d"]], [{"b": 1, "e": 1}], recall_cutoffs=(1, 2))
>>> {name: round(float(values[0]), 3) for name, values in scores.items()}
{'ndcg@10': 0.387, 'mrr@10': 0.5, 'map': 0.25, 'recall@1': 0.0, 'recall@2': 0.5}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from bertkit.metrics.intervals import Intervals, Metric, RowScores, find_intervals, ratio_metric


def score_rankings(
    rankings: Sequence[Sequence[Hashable]],
    relevance: Sequence[Mapping[Any, float]],
    cutoff: int = 10,
    recall_cutoffs: Sequence[int] = (1, 10, 100),
    map_cutoff: int | None = None,
) -> dict[str, np.ndarray]:
    """Score each query's ranking as trec_eval does; the scores are NaN if a query has no relevant document.

    A document is relevant if its relevance is above 0. The gain of nDCG is the relevance itself, as in trec_eval and
    scikit-learn, and its discount is log2(rank + 1) (Järvelin and Kekäläinen 2002). The denominators of nDCG, MAP and
    recall include relevant documents that are not ranked.

    Args:
        rankings: Document ids of each query, the best first.
        relevance: Document id -> relevance, for each query; other documents have the relevance 0.
        cutoff: Number of ranks that nDCG and MRR read.
        recall_cutoffs: Number of ranks that each recall reads.
        map_cutoff: Number of ranks that MAP reads, or None if the rankings contain all candidates.

    Returns:
        ``ndcg@10``, ``mrr@10``, ``map``, ``recall@1``, ... -> float64 of shape (queries,).

    Raises:
        ValueError: If the numbers of rankings and queries differ, a ranking has an id twice, or a relevance is below 0.
    """
    if len(rankings) != len(relevance):
        raise ValueError(f"{len(rankings)} rankings and relevance for {len(relevance)} queries")
    map_name = "map" if map_cutoff is None else f"map@{map_cutoff}"
    names = [f"ndcg@{cutoff}", f"mrr@{cutoff}", map_name, *(f"recall@{k}" for k in recall_cutoffs)]
    scores = np.full((len(names), len(rankings)), np.nan)
    for query, (ranking, query_relevance) in enumerate(zip(rankings, relevance, strict=True)):
        if len(set(ranking)) < len(ranking):
            raise ValueError(f"ranking {query} has an id twice")
        gains = np.array([query_relevance.get(document, 0) for document in ranking], dtype=np.float64)
        # Gains of an ideal ranking, which has all relevant documents of the query in descending order.
        ideal_gains = np.sort(np.array([gain for gain in query_relevance.values() if gain], dtype=np.float64))[::-1]
        if ideal_gains.size and ideal_gains[-1] < 0:
            raise ValueError(f"relevance {ideal_gains[-1]:g} in query {query} is below 0")
        if ideal_gains.size:
            # Ranks of relevant documents, from 1.
            ranks = np.flatnonzero(gains) + 1
            # In the example at the top, `gains` is [0, 1, 0, 0], `ideal_gains` [1, 1], `ranks` [2] and `precisions`
            # [0.5]. One of two relevant documents is not ranked, so recall is at most 1/2, and MAP is 0.5 / 2.
            precisions = np.arange(1, len(ranks) + 1) / ranks
            scores[:, query] = [
                _sum_discounted(gains[:cutoff]) / _sum_discounted(ideal_gains[:cutoff]),
                float(1 / ranks[0]) if ranks.size and ranks[0] <= cutoff else 0.0,
                float(precisions[ranks <= (map_cutoff or len(gains))].sum()) / len(ideal_gains),
                *(int((ranks <= k).sum()) / len(ideal_gains) for k in recall_cutoffs),
            ]
    return dict(zip(names, scores, strict=True))


def _sum_discounted(gains: np.ndarray) -> float:
    """Compute the discounted cumulative gain (Järvelin and Kekäläinen 2002); `gains` have shape (ranks,)."""
    return float((gains / np.log2(np.arange(2, len(gains) + 2))).sum())


def average_queries(scores: RowScores) -> dict[str, float]:
    """Return the mean of each score over the queries that have a relevant document, or NaN if no query has one."""
    return {name: nan_mean(name, scores) for name in scores}


def nan_mean(name: str, row_scores: RowScores) -> float:
    """Return the mean of an array without its NaN values, or NaN if all values are NaN."""
    values = row_scores[name][~np.isnan(row_scores[name])]
    return float(values.mean()) if values.size else math.nan


RERANKING: Mapping[str, Metric] = {name: Metric(partial(nan_mean, name)) for name in ("ndcg@10", "mrr@10", "map")}
"""Metrics of rerankers, computed from the arrays that `score_rankings` returns. Shape: (queries,)."""


def query_intervals(scores: RowScores, *, samples: int = 1000) -> Intervals:
    """Compute the 95% bootstrap interval of each mean over queries; see `find_intervals`."""
    return find_intervals(RERANKING, average_queries(scores), scores, average_queries, samples=samples)


def _count_found(max_rank: int, row_scores: RowScores) -> tuple[int, int]:
    """Return the number of rows whose positive has a rank up to `max_rank`, and the number of all rows."""
    return int((row_scores["rank"] <= max_rank).sum()), len(row_scores["rank"])


def _count_beaten(row_scores: RowScores) -> tuple[int, int] | None:
    """Return the number of rows whose positive beats all negatives, and of rows with negatives, or None without any."""
    beats = row_scores["beats"][~np.isnan(row_scores["beats"])]
    return (int(beats.sum()), len(beats)) if len(beats) else None


def _mean_reciprocal_rank(row_scores: RowScores) -> float:
    """Return the mean of 1 / rank, with 0 for ranks after 10."""
    return float(np.where(row_scores["rank"] <= 10, 1 / row_scores["rank"], 0).mean())


RETRIEVAL: Mapping[str, Metric] = {
    "mrr@10": Metric(_mean_reciprocal_rank),
    "recall@1": ratio_metric(partial(_count_found, 1)),
    "recall@10": ratio_metric(partial(_count_found, 10)),
    "triple_accuracy": ratio_metric(_count_beaten, undefined="no row has a negative"),
}
"""Metrics of embedding models, computed from the ``rank`` of each positive and whether it ``beats`` all negatives.

Both arrays have the shape (rows,); ``beats`` is NaN for rows without negatives.
"""

ACTIVE_DIMENSIONS: Mapping[str, Metric] = {
    name: Metric(partial(nan_mean, name), lower_is_better=True, undefined="a baseline has no vectors")
    for name in ("query_active_dims", "document_active_dims")
}
"""Sizes of sparse vectors: the mean number of dimensions that are not 0."""


_MAX_ROWS = 10_000  # per ranking; the time is quadratic
# Number of anchors whose scores are in memory at a time.
_BLOCK = 512

ScorePairs = Callable[[Any, Any], Any]
"""Returns the scores of anchors with positives, given the row indices of both. Shape: (anchors, positives)."""


def rank_positives(rows: Sequence[Mapping[str, Any]], score: ScorePairs) -> np.ndarray:
    """Rank each row's positive among the distinct positives of all rows; the best has rank 1. Shape: (rows,).

    Other positives of the same anchor are not candidates. Equal scores share the best of their ranks. More than 10,000
    rows are ranked in blocks of 10,000.
    """
    ranks = [_rank_block(rows[start : start + _MAX_ROWS], start, score) for start in range(0, len(rows), _MAX_ROWS)]
    return np.concatenate(ranks)


def _rank_block(rows: Sequence[Mapping[str, Any]], start: int, score: ScorePairs) -> np.ndarray:
    # Four rows with the anchors a, b, a, c and the positives x, y, z, x have the candidates x, y and z (rows 0, 1 and
    # 2), and `columns` is [0, 1, 2, 0]. z is not a candidate for row 0, because it is a positive of the same anchor.
    # With the scores [[.9, .5, .7], [.2, .6, .8], [.9, .4, .3], [.1, .5, .2]], the ranks are [1, 2, 2, 3].
    # A text that is the positive of several rows is one candidate: its first row.
    first: dict[str, int] = {}
    first_rows = np.array([first.setdefault(row["positive"], index) for index, row in enumerate(rows)])
    candidates = np.array(sorted(first.values()))
    # Column of each row's positive.
    columns = np.searchsorted(candidates, first_rows)
    columns_by_anchor: dict[str, set[int]] = {}
    for row, column in zip(rows, columns.tolist(), strict=True):
        columns_by_anchor.setdefault(row["anchor"], set()).add(column)
    ranks = []
    for begin in range(0, len(rows), _BLOCK):
        indices = np.arange(begin, min(begin + _BLOCK, len(rows)))
        scores = np.asarray(score(start + indices, start + candidates))
        is_better = scores > scores[np.arange(len(indices)), columns[indices]][:, None]
        for anchor_scores, index in zip(is_better, indices.tolist(), strict=True):
            anchor_scores[list(columns_by_anchor[rows[index]["anchor"]])] = False
        ranks.append(1 + is_better.sum(axis=1))
    return np.concatenate(ranks)


def draw_chance_ranks(count: int) -> np.ndarray:
    """Draw `count` ranks of random guessing among `count` candidates; each call returns the same. Shape: (count,)."""
    return np.random.default_rng(0).integers(1, min(count, _MAX_ROWS) + 1, size=count)


def rank_by_words(rows: Sequence[Mapping[str, Any]]) -> tuple[np.ndarray, list[list[float]]]:
    """Rank positives by the cosine of their TF-IDF with the anchor's: by shared words, rare words counting more.

    Returns:
        The rank of each positive, of shape (rows,), and the scores of each row's positive and negatives. If no text has
        a word, all ranks are the last, and all scores are 0.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(token_pattern=r"\w+", sublinear_tf=True)
    anchors = [row["anchor"] for row in rows]
    row_texts = [[row["positive"], *row.get("negative", ())] for row in rows]
    texts = list(chain.from_iterable(row_texts))
    try:
        vectorizer.fit(anchors + texts)
    except ValueError:  # no text has a word
        return np.full(len(rows), len(rows)), [[0.0] * len(candidates) for candidates in row_texts]
    anchor_vectors, vectors = (vectorizer.transform(strings).tocsr() for strings in (anchors, texts))
    starts = np.cumsum([0, *map(len, row_texts)])
    positives = vectors[starts[:-1]]
    ranks = rank_positives(rows, lambda first, second: (anchor_vectors[first] @ positives[second].T).toarray())
    row_indices = np.repeat(np.arange(len(rows)), np.diff(starts))
    similarities = np.asarray(anchor_vectors[row_indices].multiply(vectors).sum(axis=1)).ravel()
    return ranks, [row_scores.tolist() for row_scores in np.split(similarities, starts[1:-1])]
