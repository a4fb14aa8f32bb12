"""Scores of rankings (nDCG, reciprocal rank, average precision, recall), and ranks of the texts that belong together.

One of two relevant documents is ranked, in the second place:

>>> scores = score_rankings([["a", "b", "c", "d"]], [{"b": 1, "e": 1}], recall_cutoffs=(1, 2))
>>> {name: round(float(values[0]), 3) for name, values in scores.items()}
{'ndcg@10': 0.387, 'mrr@10': 0.5, 'map': 0.25, 'recall@1': 0.0, 'recall@2': 0.5}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
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
    """Score each query's ranking as trec_eval does; NaN if a query has no relevant document.

    A document is relevant if its relevance is above 0. The gain of nDCG is the relevance itself, as in trec_eval and
    scikit-learn. nDCG, MAP and recall are fractions of all that is relevant, ranked or not.

    Args:
        rankings: Document ids per query, the best first.
        relevance: Id -> relevance of each query's documents; other documents have 0.
        cutoff: Number of documents for nDCG and MRR.
        recall_cutoffs: Number of documents for each recall.
        map_cutoff: Documents that MAP considers, or None if the rankings hold every candidate.

    Returns:
        ``ndcg@10``, ``mrr@10``, ``map``, ``recall@1``, ... -> float64 of shape (queries,).

    Raises:
        ValueError: If a ranking has an id twice, or a relevance is below 0.
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
        ideal = np.sort(np.array([gain for gain in query_relevance.values() if gain], dtype=np.float64))[::-1]
        if ideal.size and ideal[-1] < 0:
            raise ValueError(f"relevance {ideal[-1]:g} in query {query} is below 0")
        if ideal.size:
            # Score the relevance of ranked documents, (ranked,), relative to all relevant ones, most relevant
            # first.
            ranks = np.flatnonzero(gains) + 1  # ranks of relevant documents, from 1
            # In the example at the top, `gains` is [0, 1, 0, 0], `ideal` [1, 1], `ranks` [2] and `precisions` [0.5].
            # The document that is not ranked counts in `ideal`, so that recall is at most 0.5 and MAP 0.25.
            precisions = np.arange(1, len(ranks) + 1) / ranks
            scores[:, query] = [
                _sum_discounted(gains[:cutoff]) / _sum_discounted(ideal[:cutoff]),
                float(1 / ranks[0]) if ranks.size and ranks[0] <= cutoff else 0.0,
                float(precisions[ranks <= (map_cutoff or len(gains))].sum()) / len(ideal),
                *(int((ranks <= k).sum()) / len(ideal) for k in recall_cutoffs),
            ]
    return dict(zip(names, scores, strict=True))


def _sum_discounted(gains: np.ndarray) -> float:
    """Sum gains divided by the logarithm of their rank (Järvelin and Kekäläinen 2002)."""
    return float((gains / np.log2(np.arange(2, len(gains) + 2))).sum())


def average_queries(scores: RowScores) -> dict[str, float]:
    """Average each score over the queries that have something relevant."""
    return {name: nan_mean(name, scores) for name in scores}


def nan_mean(name: str, row_scores: RowScores) -> float:
    """Return the mean of the values of an array that are not NaN, or NaN if all are."""
    values = row_scores[name][~np.isnan(row_scores[name])]
    return float(values.mean()) if values.size else math.nan


RERANKING: Mapping[str, Metric] = {name: Metric(partial(nan_mean, name)) for name in ("ndcg@10", "mrr@10", "map")}
"""Metrics of rerankers, over arrays of shape (queries,) as `score_rankings` returns them."""


def query_intervals(scores: RowScores, *, samples: int = 1000) -> Intervals:
    """Compute the 95% interval of each average over resampled queries."""
    return find_intervals(RERANKING, average_queries(scores), scores, average_queries, samples=samples)


def _count_found(max_rank: int, row_scores: RowScores) -> tuple[int, int]:
    """Count the rows whose positive has a rank up to `max_rank`, and all rows."""
    return int((row_scores["rank"] <= max_rank).sum()), len(row_scores["rank"])


def _count_beaten(row_scores: RowScores) -> tuple[int, int] | None:
    """Count the rows whose positive is ahead of all negatives, and the rows that have negatives."""
    beats = row_scores["beats"][~np.isnan(row_scores["beats"])]
    return (int(beats.sum()), len(beats)) if len(beats) else None


def _mean_reciprocal_rank(row_scores: RowScores) -> float:
    return float(np.where(row_scores["rank"] <= 10, 1 / row_scores["rank"], 0).mean())


RETRIEVAL: Mapping[str, Metric] = {
    "mrr@10": Metric(_mean_reciprocal_rank),
    "recall@1": ratio_metric(partial(_count_found, 1)),
    "recall@10": ratio_metric(partial(_count_found, 10)),
    "triple_accuracy": ratio_metric(_count_beaten, undefined="no row has a negative"),
}
"""Metrics of texts that belong together, over the ``rank`` of each positive and whether it ``beats`` negatives."""

ACTIVE_DIMENSIONS: Mapping[str, Metric] = {
    name: Metric(partial(nan_mean, name), lower_is_better=True, undefined="a baseline has no vectors")
    for name in ("query_active_dims", "document_active_dims")
}
"""Sizes of sparse vectors: the mean number of dimensions that are not 0."""


_MAX_ROWS = 10_000  # per ranking; the time is quadratic
_BLOCK = 512  # anchors whose scores are in memory at a time

Score = Callable[[Any, Any], Any]
"""Scores of some anchors with some positives, given their row indices: (anchors, positives)."""


def rank_positives(rows: Sequence[Mapping[str, Any]], score: Score) -> np.ndarray:
    """Rank each row's positive among the different positives of the rows, 1 for the best: (rows,).

    A positive of the same anchor in another row is not a candidate. More than 10,000 rows are ranked in blocks of
    10,000.
    """
    ranks = [_rank_run(rows[start : start + _MAX_ROWS], start, score) for start in range(0, len(rows), _MAX_ROWS)]
    return np.concatenate(ranks)


def _rank_run(rows: Sequence[Mapping[str, Any]], start: int, score: Score) -> np.ndarray:
    # Four rows with the anchors a, b, a, c and the positives x, y, z, x have the candidates x, y and z (rows 0, 1 and
    # 2), and `column` is [0, 1, 2, 0]. z is not a candidate for row 0, whose anchor has it as a positive too. With
    # scores of [[.9, .5, .7], [.2, .6, .8], [.9, .4, .3], [.1, .5, .2]], the ranks are [1, 2, 2, 3]. A text that is the
    # positive of several rows is one candidate, identified by the first row.
    first: dict[str, int] = {}
    first_rows = np.array([first.setdefault(row["positive"], index) for index, row in enumerate(rows)])
    candidates = np.array(sorted(first.values()))
    column = np.searchsorted(candidates, first_rows)  # column of each row's positive
    columns_by_anchor: dict[str, set[int]] = {}
    for row, place in zip(rows, column.tolist(), strict=True):
        columns_by_anchor.setdefault(row["anchor"], set()).add(place)
    ranks = []
    for begin in range(0, len(rows), _BLOCK):
        indices = np.arange(begin, min(begin + _BLOCK, len(rows)))
        scores = np.asarray(score(start + indices, start + candidates))
        right = scores[np.arange(len(indices)), column[indices]]
        better = scores > right[:, None]
        for line, index in enumerate(indices.tolist()):
            better[line, list(columns_by_anchor[rows[index]["anchor"]])] = False
        ranks.append(1 + better.sum(axis=1))
    return np.concatenate(ranks)


def draw_chance_ranks(count: int) -> np.ndarray:
    """Draw the ranks of random guessing among `count` candidates, the same ones in every call: (count,)."""
    return np.random.default_rng(0).integers(1, min(count, _MAX_ROWS) + 1, size=count)


def rank_by_words(rows: Sequence[Mapping[str, Any]]) -> tuple[np.ndarray, list[list[float]]]:
    """Rank positives by the words that they share with the anchor, rare ones weighing more (TF-IDF).

    Returns:
        the ranks (rows,), and the scores of each row's positive and negatives.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    counts = TfidfVectorizer(token_pattern=r"\w+", sublinear_tf=True)
    row_texts = [[row["positive"], *row.get("negative", ())] for row in rows]
    try:
        counts.fit([row["anchor"] for row in rows] + [text for texts in row_texts for text in texts])
    except ValueError:  # there is no word
        return np.full(len(rows), len(rows)), [[0.0] * len(texts) for texts in row_texts]
    anchors = counts.transform([row["anchor"] for row in rows]).tocsr()
    vectors = counts.transform([text for texts in row_texts for text in texts]).tocsr()
    starts = np.cumsum([0, *map(len, row_texts)])
    positives = vectors[starts[:-1]]
    ranks = rank_positives(rows, lambda first, second: (anchors[first] @ positives[second].T).toarray())
    lines = np.repeat(np.arange(len(rows)), np.diff(starts))
    shared = np.asarray(anchors[lines].multiply(vectors).sum(axis=1)).ravel()
    return ranks, [row_scores.tolist() for row_scores in np.split(shared, starts[1:-1])]
