"""Find the rows of an index that fit queries best."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from bertkit.errors import UnavailableError, UsageError, shorten
from bertkit.progress import log, stage
from bertkit.vectors.embedder import Embedder
from bertkit.vectors.search.index import Index, naming_damage
from bertkit.vectors.search.lexical import LexicalIndex
from bertkit.vectors.search.models import embedder_of
from bertkit.vectors.search.ranking import SearchMethod, search

_CHUNK = 1024  # queries that are embedded and searched at a time
_BY_VECTORS = SearchMethod()

Query = tuple[dict[str, Any], str]
"""What every result of a query begins with, and its text."""


def query(
    index: Index,
    queries: Iterable[Query],
    method: SearchMethod = _BY_VECTORS,
    *,
    model: str | None = None,
    prompt: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the best rows for each query, the best first.

    Args:
        index: what is searched.
        queries: with what their results begin with, such as ``{"query": text}``.
        method: how rows are ranked, and how many are returned; all rows where there are fewer.
        model: where the model of the index is now; by default where it was.
        prompt: name of the prompt, which must be the one that the index was built for.

    Returns:
        records with ``rank`` (from 1), ``score``, the ``similarity`` of the vectors and ``bm25`` where the score is
        another, and the columns of the row: ``id``, ``text`` and others.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    # What does not need the model is refused first: another prompt, missing words, a reranker that is none.
    built_for = index.manifest.prompts.get("query", {}).get("name")
    if prompt is not None and prompt != built_for:
        theirs = "no prompt" if built_for is None else f"the prompt {built_for!r}"
        what = f"--prompt {prompt}, but the index was built for queries with {theirs}"
        raise UsageError(what, "leave --prompt out, or build the index with --query-prompt", file=index.folder)
    with naming_damage(index.folder):
        words = _find_words(index, method)
    if method.reranker is not None:
        _ = method.reranker.saved
    if method.k > len(index):
        log.info(f"the index has {len(index):,} rows: each query gets all of them, not {method.k:,}")
    remaining = iter(queries)
    # The first query is read before the model is loaded, so that an empty or wrong file is told at once.
    first = next(remaining, None)
    if first is None:
        raise UsageError("no query", 'give one, e.g. "how to open a file", or --file')
    embedder = None
    if method.by != "words":
        with stage(f"loading {model or index.manifest.model}"):
            embedder = embedder_of(index.manifest, "query", folder=index.folder, model=model)
    texts = chain([first], remaining)

    def records() -> Iterator[dict[str, Any]]:
        with naming_damage(index.folder):
            while chunk := list(islice(texts, _CHUNK)):
                yield from _search_chunk(index, embedder, words, chunk, method)

    return records()


def _find_words(index: Index, method: SearchMethod) -> LexicalIndex | None:
    """Return the BM25 of an index; None where it has none, and none is needed.

    Raises:
        UsageError: the index has none, and the rows are ranked by words.
        UnavailableError: likewise, and bm25s is not installed.
    """
    try:
        return index.words
    except (UsageError, UnavailableError) as error:
        if method.by != "vectors":
            raise
        log.info(f"results without bm25: {error}")
        return None


def _search_chunk(
    index: Index, embedder: Embedder | None, words: LexicalIndex | None, chunk: Sequence[Query], method: SearchMethod
) -> Iterator[dict[str, Any]]:
    texts = [text for _, text in chunk]
    if not all(text.strip() for text in texts):
        raise UsageError("a query is empty", 'give a text, e.g. "how to open a file"')
    vectors = None if embedder is None else embedder.encode(texts)
    rankings = search(index, texts, vectors, method)
    for number, ((begin, text), ranking) in enumerate(zip(chunk, rankings, strict=True)):
        rows = [hit.row for hit in ranking]
        if not rows:
            log.info(f"no row has a word of the query: {shorten(text)}")
        # The score that ranks, and beside it those that others rank by, which tell why a row was found.
        scores = {"score": [hit.score for hit in ranking]}
        if vectors is not None and (method.by != "vectors" or method.reranker):
            scores["similarity"] = index.similarities(vectors[number], rows).tolist()
        if words is not None and (method.by != "words" or method.reranker):
            scores["bm25"] = words.score(text, rows).tolist()
        by_hit = (dict(zip(scores, values, strict=True)) for values in zip(*scores.values(), strict=True))
        for rank, (of_hit, record) in enumerate(zip(by_hit, index.rows(rows), strict=True), start=1):
            yield {**begin, "rank": rank, **of_hit, **record}
