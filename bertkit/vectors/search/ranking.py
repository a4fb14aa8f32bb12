"""Rank the rows of an index for queries: by vectors, by words, by both, and by a reranker; read relevant rows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertkit.data.files import read_records
from bertkit.data.rows import is_blank
from bertkit.data.text import as_number
from bertkit.errors import DataError, UsageError, did_you_mean, error_location
from bertkit.recipe.records import DataConfig
from bertkit.vectors.reranker import Reranker
from bertkit.vectors.search.index import Index

METHODS = ("vectors", "words", "hybrid")
"""How rows are ranked: by the similarity of vectors, by BM25, by reciprocal rank fusion of both."""

DEPTH = 100
"""Number of the best rows of each ranking that are fused."""

_RANK_OFFSET = 60  # constant of reciprocal rank fusion; a larger one makes the first ranks matter less


class Hit(NamedTuple):
    """A row of a ranking, with its score."""

    row: int
    score: float


Ranking = list[Hit]
"""The hits of one query, the best first."""


@dataclass(frozen=True)
class SearchMethod:
    """Method by which rows are found and ranked.

    Raises:
        UsageError: If the method is not known, or a number is below 1.
    """

    by: str = "vectors"
    """One of `METHODS`."""
    k: int = 10
    """Results per query."""
    reranker: Reranker | None = None
    """Model that ranks the candidates again."""
    candidates: int = DEPTH
    """Number of the best rows of a query that the reranker scores."""

    def __post_init__(self) -> None:
        if self.by not in METHODS:
            raise UsageError(f"--rank-by {self.by}", did_you_mean(self.by, METHODS))
        if self.k < 1:
            raise UsageError(f"-k {self.k}", "request at least 1")
        if self.candidates < 1:
            raise UsageError(f"--candidates {self.candidates}", "rerank at least 1")


def rank_by_vectors(index: Index, vectors: np.ndarray, k: int) -> list[Ranking]:
    """Find the rows whose vectors are most similar to each of some vectors (queries, dimension)."""
    scores, rows = index.search(vectors, k)
    return [list(map(Hit, *ranking)) for ranking in zip(rows.tolist(), scores.tolist(), strict=True)]


def rank_by_words(index: Index, queries: Iterable[str], k: int) -> list[Ranking]:
    """Find the rows with the highest BM25 for each query; rows without a word of the query are not found."""
    results = (index.words.search(query, k, index.deleted) for query in queries)
    return [list(map(Hit, rows.tolist(), scores.tolist())) for scores, rows in results]


def fuse(*rankings: Sequence[Ranking]) -> list[Ranking]:
    """Fuse the rankings of each query into one by reciprocal rank fusion (Cormack, Clarke and Büttcher 2009).

    A row's score is the sum of 1 / (60 + rank) over the rankings that it is in. So rankings can be fused whose scores
    have different scales. If scores are equal, the row that was met first comes first.

    >>> first, second = [Hit(7, 0.9), Hit(5, 0.8)], [Hit(5, 12.5), Hit(3, 1.0)]
    >>> [hit.row for hit in fuse([first], [second])[0]]
    [5, 7, 3]
    """
    fused = []
    for query_rankings in zip(*rankings, strict=True):
        scores: dict[int, float] = defaultdict(float)
        for ranking in query_rankings:
            for rank, hit in enumerate(ranking, 1):
                scores[hit.row] += 1 / (_RANK_OFFSET + rank)
        fused.append(sorted((Hit(*pair) for pair in scores.items()), key=lambda hit: -hit.score))
    return fused


def rerank(reranker: Reranker, queries: Sequence[str], rankings: Sequence[Ranking], index: Index) -> list[Ranking]:
    """Rank rows again by the scores of a reranker; if scores are equal, the row that was better before comes first.

    Args:
        reranker: Model that scores each query with each of its rows.
        queries: Queries, one per ranking.
        rankings: Rows of each query; all are scored.
        index: Index with the texts of the rows.
    """
    # Queries share rows, and each row is read from disk once, in the order of the file.
    rows = sorted({hit.row for ranking in rankings for hit in ranking})
    texts = {row: record["text"] for row, record in zip(rows, index.rows(rows), strict=True)}
    pairs = [(query, texts[hit.row]) for query, ranking in zip(queries, rankings, strict=True) for hit in ranking]
    scores = iter(reranker.score(pairs).tolist())
    scored_rankings = ([Hit(hit.row, next(scores)) for hit in ranking] for ranking in rankings)
    return [sorted(ranking, key=lambda hit: -hit.score) for ranking in scored_rankings]


def search(index: Index, queries: Sequence[str], vectors: np.ndarray | None, method: SearchMethod) -> list[Ranking]:
    """Find the best rows for each query.

    Args:
        index: The index to search.
        queries: Queries, at least one.
        vectors: Vectors of the queries, or None for a search by words.
        method: Method by which rows are ranked, and number of results.
    """
    depth = method.k if method.reranker is None else max(method.k, method.candidates)
    if vectors is None:
        rankings = rank_by_words(index, queries, depth)
    elif method.by == "vectors":
        rankings = rank_by_vectors(index, vectors, depth)
    else:
        fused_depth = max(depth, DEPTH)
        rankings = fuse(rank_by_words(index, queries, fused_depth), rank_by_vectors(index, vectors, fused_depth))
    if method.reranker is not None:
        rankings = [ranking[: method.candidates] for ranking in rankings]
        rankings = rerank(method.reranker, queries, rankings, index)
    return [ranking[: method.k] for ranking in rankings]


QUERY, RELEVANT, GRADE = "query", "relevant", "grade"

Relevance = dict[str, dict[str, float]]
"""Query -> id of a document or passage -> its grade, 0 if it is not relevant."""


def read_relevance(file: str | Path) -> Relevance:
    """Read the queries of a file and what is relevant to each; a query can have several rows.

    A row has a ``query``, the id that is ``relevant`` (in JSON and Parquet also a list of them) and, if not all are
    equally relevant, a ``grade``.

    Raises:
        DataError: If a column is missing or empty, a grade is not a number from 0, or an id has two grades.
    """
    relevance: Relevance = {}
    row = None
    for row, record in read_records(file, DataConfig()):
        with error_location(file=str(file), row=row):
            query, ids, grade = _read_row(record)
            grades = relevance.setdefault(query, {})
            for name in ids:
                if grades.setdefault(name, grade) != grade:
                    message = f"{name!r} has the grades {grades[name]:g} and {grade:g} for one query"
                    raise DataError(message, "take one out", column=GRADE)
    if row is None:
        raise DataError("the file has no rows", f"it needs the columns {QUERY} and {RELEVANT}", file=file)
    return relevance


def _read_row(record: Mapping[str, Any]) -> tuple[str, list[str], float]:
    for column in (QUERY, RELEVANT):
        if column not in record:
            message = f"no column {column!r}; the file has {', '.join(map(repr, record))}"
            raise DataError(message, f"name the columns {QUERY}, {RELEVANT} and, if there are grades, {GRADE}")
        if record[column] is None or is_blank(record[column]):
            raise DataError("an empty cell", "fill it in, or take the row out", column=column)
    query, relevant = record[QUERY], record[RELEVANT]
    if not isinstance(query, str):
        raise DataError(f"{query!r} is not a text", "write it in quotes", column=QUERY)
    ids = relevant if isinstance(relevant, list) else [relevant]
    if not all(isinstance(name, (str, int)) for name in ids):
        raise DataError(
            f"{relevant!r} is neither an id nor a list of ids", "write ids as text or integers", column=RELEVANT
        )
    value = record.get(GRADE, 1)
    grade = as_number(value)
    if not 0 <= grade < math.inf:
        raise DataError(f"{value!r} is not a grade", "a number from 0 (not relevant) up", column=GRADE)
    return query, [str(name) for name in ids], grade
