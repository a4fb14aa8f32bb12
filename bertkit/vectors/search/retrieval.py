"""Rankings of the rows of an index for queries: by vectors, by words, by both, and by a reranker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from bertkit.errors import UsageError, closest
from bertkit.metrics import Numbers
from bertkit.vectors.reranker import Reranker
from bertkit.vectors.search.index import Index

Item = TypeVar("Item", bound=Hashable)

_CONSTANT = 60


def fuse_rankings(rankings: Iterable[Sequence[Item]]) -> list[tuple[Item, float]]:
    """Rank what several rankings hold by reciprocal rank fusion (Cormack, Clarke and Büttcher 2009).

    An item's score is the sum of 1 / (60 + rank) over the rankings that it is in. It needs no scores, so it
    joins rankings whose scores have nothing in common. Of equal scores, the item that was met first comes first.

    >>> [item for item, _ in fuse_rankings(["abc", "cd"])]
    ['c', 'a', 'b', 'd']
    """
    scores: dict[Item, float] = defaultdict(float)
    for ranking in rankings:
        for rank, item in enumerate(ranking, 1):
            scores[item] += 1 / (_CONSTANT + rank)
    return sorted(scores.items(), key=lambda pair: -pair[1])


WAYS = ("vectors", "words", "hybrid")
"""How rows are ranked: by the similarity of vectors, by BM25, by reciprocal rank fusion of both."""

DEPTH = 100
"""The best of each ranking, which are fused."""


class Hit(NamedTuple):
    """A row that is found, and the score that it is ranked by."""

    row: int
    score: float


Ranking = list[Hit]
"""The hits of one query, the best first."""


@dataclass(frozen=True)
class SearchMethod:
    """How rows are found and ranked.

    Raises:
        UsageError: there is no such way, or a number is below 1.
    """

    by: str = "vectors"
    """One of `WAYS`."""
    k: int = 10
    """Results per query."""
    reranker: Reranker | None = None
    """Ranks the candidates anew."""
    candidates: int = DEPTH
    """The best rows of a query that the reranker scores."""

    def __post_init__(self) -> None:
        if self.by not in WAYS:
            raise UsageError(f"--by {self.by}", closest(self.by, WAYS))
        if self.k < 1:
            raise UsageError(f"-k {self.k}", "ask for at least 1")
        if self.candidates < 1:
            raise UsageError(f"--candidates {self.candidates}", "rerank at least 1")


def rank_by_vectors(index: Index, vectors: Numbers, k: int) -> list[Ranking]:
    """Find the rows whose vectors are most similar to each of some vectors (queries, dimension)."""
    scores, rows = index.search(vectors, k)
    return [list(map(Hit, *found)) for found in zip(rows.tolist(), scores.tolist(), strict=True)]


def rank_by_words(index: Index, queries: Iterable[str], k: int) -> list[Ranking]:
    """Find the rows with the highest BM25 for each query; rows without a word of the query are not found."""
    found = (index.words.search(query, k, index.deleted) for query in queries)
    return [list(map(Hit, rows.tolist(), scores.tolist())) for scores, rows in found]


def fuse(*rankings: Sequence[Ranking]) -> list[Ranking]:
    """Fuse the rankings of each query into one, whose scores are those of reciprocal rank fusion."""
    return [
        [Hit(*pair) for pair in fuse_rankings([[hit.row for hit in ranking] for ranking in of_query])]
        for of_query in zip(*rankings, strict=True)
    ]


def rerank(reranker: Reranker, queries: Sequence[str], rankings: Sequence[Ranking], index: Index) -> list[Ranking]:
    """Rank rows anew by the scores of a reranker; of equal scores, the row that was better before comes first.

    Args:
        reranker: scores each query with each of its rows.
        queries: as many as rankings.
        rankings: the rows of each query, all of which are scored.
        index: has the rows.
    """
    found = sorted({hit.row for ranking in rankings for hit in ranking})
    texts = {row: record["text"] for row, record in zip(found, index.rows(found), strict=True)}
    pairs = [(query, texts[hit.row]) for query, ranking in zip(queries, rankings, strict=True) for hit in ranking]
    scores = iter(reranker.score(pairs).tolist())
    scored = ([Hit(hit.row, next(scores)) for hit in ranking] for ranking in rankings)
    return [sorted(ranking, key=lambda hit: -hit.score) for ranking in scored]


def search(index: Index, queries: Sequence[str], vectors: Numbers | None, method: SearchMethod) -> list[Ranking]:
    """Find the best rows for each query.

    Args:
        index: what is searched.
        queries: at least one.
        vectors: of the queries; None for a search by words.
        method: how rows are ranked, and how many are returned.
    """
    depth = method.k if method.reranker is None else max(method.k, method.candidates)
    if vectors is None:
        rankings = rank_by_words(index, queries, depth)
    elif method.by == "vectors":
        rankings = rank_by_vectors(index, vectors, depth)
    else:
        both = max(depth, DEPTH)
        rankings = fuse(rank_by_words(index, queries, both), rank_by_vectors(index, vectors, both))
    if method.reranker is not None:
        rankings = [ranking[: method.candidates] for ranking in rankings]
        rankings = rerank(method.reranker, queries, rankings, index)
    return [ranking[: method.k] for ranking in rankings]
