"""Score the rankings of an index for queries whose relevant rows are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from bertkit.data.files import first_of
from bertkit.errors import DataError
from bertkit.metrics.intervals import Interval
from bertkit.metrics.retrieval import average_queries, query_intervals, score_rankings
from bertkit.progress import log, stage
from bertkit.recipe import typed_path
from bertkit.vectors.reranker import Reranker
from bertkit.vectors.search.index import Index
from bertkit.vectors.search.models import embedder_of
from bertkit.vectors.search.passages import find_truncated
from bertkit.vectors.search.ranking import (
    DEPTH,
    Ranking,
    Relevance,
    fuse,
    rank_by_vectors,
    rank_by_words,
    read_relevance,
    rerank,
)

_CHUNK = 256  # queries that are searched at a time

CUTOFF = 10
"""Results that nDCG and MRR look at."""


@dataclass(frozen=True)
class RankingScores:
    """How good the rankings of one way are, over all queries."""

    ranking: str
    scores: dict[str, float]
    intervals: dict[str, Interval]
    """The 95% interval of each score, over queries; None where there is none."""
    gains: dict[str, float] = field(default_factory=dict)
    """How much better each score is than that of the ranking before; empty for the first."""
    gain_intervals: dict[str, Interval] = field(default_factory=dict)
    """The 95% interval of each gain, over the differences of queries."""


@dataclass(frozen=True)
class SearchScores:
    """How good the rankings of an index are."""

    index: Path
    queries: int
    rows: int
    by_document: bool
    """Whether documents are ranked, each by its best passage."""
    rankings: list[RankingScores]


def evaluate(
    folder: str | Path,
    file: str | Path,
    *,
    reranker: Reranker | None = None,
    candidates: int = DEPTH,
    limit: int | None = None,
    model: str | None = None,
) -> SearchScores:
    """Score the first 100 results by words, by vectors, by both and, with a reranker, by that.

    Args:
        folder: of the index.
        file: Relevant rows of each query, as `bertkit.vectors.search.ranking.read_relevance` reads it.
        reranker: ranks the first of the hybrid ranking anew.
        candidates: how many those are.
        limit: use only the first queries.
        model: where the model of the index is now; by default where it was.

    Raises:
        DataError: nothing that is relevant is in the index, or the file is wrong.
        BertkitError: any other of the kind that fits; see `bertkit.errors`.
    """
    folder, file = typed_path(folder), typed_path(file)
    # Checksums are compared here and not at each query: a damaged index would only score lower.
    index = Index.open(folder, verify=True)
    _ = index.words
    if reranker is not None:
        _ = reranker.saved
    # Results are compared by the ids that the file names: those of rows, or of whole documents.
    relevance = dict(first_of(read_relevance(file).items(), limit))
    by_document, known = _is_by_document(index, relevance, file), dict[int, str]()
    find_ids = partial(_find_ids, index=index, column="document" if by_document else "id", known=known)
    with stage(f"loading {model or index.manifest.model}"):
        embedder = embedder_of(index.manifest, "query", folder=folder, model=model)
    if truncated := find_truncated(list(relevance), embedder):
        limits = f"than {embedder.tokenizer.model_max_length} tokens: only their beginning counts"
        log.info(f"{len(truncated):,} queries are longer {limits}")
    ways: dict[str, list[list[str]]] = {}
    with stage("searching", len(relevance)) as tick:
        queries = iter(relevance)
        while chunk := list(islice(queries, _CHUNK)):
            # The rankings of one chunk are made of each other: hybrid of both, reranked of hybrid.
            words = rank_by_words(index, chunk, DEPTH)
            vectors = rank_by_vectors(index, embedder.encode(chunk), DEPTH)
            hybrid = fuse(words, vectors)
            rankings_of = {"words (BM25)": words, "vectors": vectors, "hybrid": [ranking[:DEPTH] for ranking in hybrid]}
            if reranker is not None:
                best = rerank(reranker, chunk, [ranking[:candidates] for ranking in hybrid], index)
                rest = [ranking[candidates:DEPTH] for ranking in hybrid]
                rankings_of["hybrid and rerank"] = [[*first, *others] for first, others in zip(best, rest, strict=True)]
            for way, rankings in rankings_of.items():
                ways.setdefault(way, []).extend(map(find_ids, rankings))
            tick(len(chunk))
    scored = list(_score_ways(ways, list(relevance.values())))
    return SearchScores(folder, len(relevance), len(index), by_document, scored)


def _find_ids(ranking: Ranking, index: Index, column: str, known: dict[int, str]) -> list[str]:
    """Return the ids that a ranking has in a relevance file, each at its best rank; rows are read once, into `known`.

    The best passage ranks a document (Dai and Callan 2019, "Deeper Text Understanding for IR with Contextual Neural
    Language Modeling", section 3).
    """
    unknown = [hit.row for hit in ranking if hit.row not in known]
    for row, record in zip(unknown, index.rows(unknown), strict=True):
        known[row] = str(record[column])
    return list(dict.fromkeys(known[hit.row] for hit in ranking))


def _is_by_document(index: Index, relevance: Relevance, file: Path) -> bool:
    """Tell whether the ids of a file are those of documents; say how many the index lacks.

    Raises:
        DataError: the index has none of them, or some are of passages and some of documents.
    """
    wanted = {name for grades in relevance.values() for name, grade in grades.items() if grade}
    if not wanted:
        raise DataError("nothing is relevant to any query", "give some rows a grade above 0", file=file)
    # Relevance is of documents or of passages; the ids say which.
    passages = wanted & index.find_ids(wanted).keys()
    documents = index.find_documents(wanted - passages).keys()
    if passages and documents:
        what = f"{min(passages)!r} is the id of a passage, and {min(documents)!r} that of a document"
        raise DataError(what, "name either passages or documents", file=file)
    missing = wanted - passages - documents
    if len(missing) == len(wanted):
        what = f"the index has none of the {len(wanted):,} ids that are relevant, such as {min(missing)!r}"
        raise DataError(what, "is it the index of these texts?", file=file)
    if missing:
        log.info(
            f"{len(missing):,} of {len(wanted):,} relevant ids are not in the index, such as {min(missing)!r}: "
            "they count as not found"
        )
    without = sum(not any(grades.values()) for grades in relevance.values())
    if without:
        log.info(f"{without:,} of {len(relevance):,} queries have nothing relevant: they are left out")
    return bool(documents)


def _score_ways(ways: Mapping[str, list[list[str]]], relevance: list[Any]) -> Iterator[RankingScores]:
    before: dict[str, Any] = {}
    for way, rankings in ways.items():
        scores = score_rankings(rankings, relevance, CUTOFF, map_cutoff=DEPTH)
        gained = {name: scores[name] - values for name, values in before.items()}
        yield RankingScores(
            way,
            average_queries(scores),
            query_intervals(scores).ends,
            average_queries(gained),
            query_intervals(gained).ends if gained else {},
        )
        before = scores
