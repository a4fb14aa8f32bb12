"""Search by meaning: build an index of texts, change it, query it, and score its rankings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from bertkit.data.files import take_first
from bertkit.errors import DataError, UnavailableError, UsageError, shorten
from bertkit.metrics.intervals import Interval
from bertkit.metrics.retrieval import average_queries, query_intervals, score_rankings
from bertkit.progress import get_progress, log, stage
from bertkit.recipe.sections import expand_path
from bertkit.storage.outputs import delete_leftover_locks, lock_output_folder
from bertkit.vectors.embedder import Embedder
from bertkit.vectors.reranker import Reranker
from bertkit.vectors.search.bm25 import BM25
from bertkit.vectors.search.index import Chunk, Index, report_damage
from bertkit.vectors.search.models import choose_prompts, describe, open_embedder
from bertkit.vectors.search.passages import Coverage, find_truncated, measure_coverage
from bertkit.vectors.search.ranking import (
    DEPTH,
    Ranking,
    Relevance,
    SearchMethod,
    fuse,
    rank_by_vectors,
    rank_by_words,
    read_relevance,
    rerank,
    search,
)
from bertkit.vectors.search.rows import TextRows

# Enough texts to sort them by length, so that batches have little padding.
_CHUNK_ROWS = 4096
_CHUNK_QUERIES = 1024  # queries
# Fewer queries, because each query has several rankings of DEPTH rows.
_CHUNK_EVALUATED = 256
_BY_VECTORS = SearchMethod()

CUTOFF = 10
"""Number of results that count for nDCG and MRR."""

Query = tuple[dict[str, Any], str]
"""Fields at the start of each result of the query, and the text of the query."""


@dataclass(frozen=True)
class IndexReport:
    """Changes of an index by a command, and the content of the index afterwards."""

    index: Path
    changed: int
    """Number of rows that were added or deleted."""
    rows: int
    dimension: int
    similarity: str
    model: str | None
    coverage: Coverage
    """Fraction of all added text that the model read."""
    passages: Mapping[str, int] | None
    """Tokens and overlap of the passages, or None if each text is a row."""
    max_length: int
    """Maximum tokens per text."""
    has_words: bool
    """Whether the index can be searched by words."""
    bytes: int


def build(
    rows: TextRows,
    embedder: Embedder,
    output: str | Path,
    *,
    prompts: Mapping[str, str | None] | None = None,
    similarity: str | None = None,
    passages: Mapping[str, Any] | None = None,
) -> IndexReport:
    """Build an index of the texts of a file; a killed build is resumed.

    Args:
        rows: Texts to index.
        embedder: Model and its options; its prompt is not used.
        output: Folder of the index, which must not exist.
        prompts: Names of the prompts of ``document`` and ``query``; by default, the model's prompts of these names.
        similarity: ``cosine`` or ``dot``; by default, the similarity of the model.
        passages: ``tokens`` and ``overlap`` of the passages that become the rows; by default, each text is a row.

    Raises:
        BertkitError: If a file or an option is wrong; see `bertkit.errors`.
    """
    # 1. Check the folder and the prompts.
    output = expand_path(output)
    if output.exists():
        delete_leftover_locks([output])
        raise UsageError("the index exists", "add to it with `bertkit search add`, or choose another", file=output)
    # Models can require different prompts for documents and queries, so use one embedder for each.
    embedders = choose_prompts(embedder, prompts or {})
    rows = replace(rows, passages=passages).split_for(embedders["document"])
    with lock_output_folder(output):
        # 2. Check all rows before the first row is embedded, because the last row can be wrong or repeat an id.
        with stage(f"checking the rows of {rows.name}"):
            count, coverage = rows.check()
        with stage(f"loading {embedder.model}"):
            manifest = replace(describe(embedders, similarity), passages=rows.passages)

        # 3. Embed and write chunk by chunk. `Index.create` skips chunks that a killed build of the same rows wrote.
        chunks = partial(_embed_chunks, rows, embedders["document"], count, coverage)
        return _report_index(Index.create(output, manifest, chunks, source=rows.fingerprint()), count)


def add(folder: str | Path, rows: TextRows, *, model: str | None = None) -> IndexReport:
    """Add the texts of a file to an index, with the model of the index.

    Rows without an ``id`` are numbered, and the numbers of deleted rows are not reused. A file is not added twice, so a
    command that was killed after its last write can be repeated.

    Raises:
        BertkitError: If a file or an option is wrong; see `bertkit.errors`.
    """
    folder = expand_path(folder)
    # A wrong folder is an error before a lock is created next to it.
    Index.open(folder)
    with lock_output_folder(folder):
        # Verify all files, because the words of all rows are counted again for BM25.
        index = Index.open(folder, verify=True)
        embedder = open_embedder(index.manifest, "document", folder=folder, model=model)
        rows = replace(rows, first_id=index.manifest.total, passages=index.manifest.passages).split_for(embedder)
        source = rows.fingerprint()
        if index.manifest.has_source(source):
            log.info(f"the index already has the rows of {rows.name}; nothing is added")
            return _report_index(index.delete_old_words(), 0)
        with stage(f"checking the rows of {rows.name}"):
            count, coverage = rows.check(index)
        return _report_index(index.add(partial(_embed_chunks, rows, embedder, count, coverage), source=source), count)


def delete(folder: str | Path, ids: Sequence[str]) -> IndexReport:
    """Delete rows from an index by their ids, or all passages of a document.

    If an id belongs to neither a row nor a document, nothing is deleted.

    Raises:
        BertkitError: If a file or an id is wrong; see `bertkit.errors`.
    """
    folder = expand_path(folder)
    Index.open(folder)
    with lock_output_folder(folder), report_damage(folder):
        index = Index.open(folder)
        rows_by_id = index.find_rows(ids)
        rows_by_id |= index.find_rows([row_id for row_id in ids if row_id not in rows_by_id], "document")
        missing_ids = [row_id for row_id in ids if row_id not in rows_by_id]
        if missing_ids:
            more = f" (and {len(missing_ids) - 1:,} more)" if len(missing_ids) > 1 else ""
            raise DataError(f"no row has the id {missing_ids[0]!r}{more}", "nothing was deleted", file=folder)
        rows = set(chain.from_iterable(rows_by_id.values()))
        return _report_index(index.delete(rows), len(rows))


def _embed_chunks(rows: TextRows, embedder: Embedder, count: int, coverage: Coverage, done: int) -> Iterator[Chunk]:
    """Yield rows with their vectors, chunk by chunk.

    Args:
        rows: Rows of the index.
        embedder: Model.
        count: Number of rows.
        coverage: Fraction of all documents that the model reads in passages; without passages, it is measured here.
        done: Number of first rows to skip, because a killed command embedded them.
    """
    if done:
        log.info(f"resuming: {done:,} of {count:,} rows are already indexed")
    remaining_rows = islice(rows, done, None)
    with stage("embedding", count, done):
        while chunk := list(islice(remaining_rows, _CHUNK_ROWS)):
            texts = [row.record["text"] for row in chunk]
            # The coverage of passages is known for all documents together, so only the first chunk reports it.
            chunk_coverage = Coverage() if done else coverage
            if rows.splitter is None:
                chunk_coverage = measure_coverage(texts, embedder)
            yield [row.record for row in chunk], embedder.encode(texts), chunk_coverage
            done += len(chunk)
            get_progress().update(done, {})
    # Fewer or more rows were embedded than were checked.
    if done != count:
        raise DataError("the file changed while it was read", "repeat the command", file=rows.name)


def _report_index(index: Index, changed: int) -> IndexReport:
    manifest = index.manifest
    size = sum(file.stat().st_size for file in index.folder.rglob("*") if file.is_file())
    return IndexReport(
        index.folder,
        changed,
        len(index),
        manifest.dimension,
        manifest.similarity,
        manifest.model,
        manifest.coverage,
        manifest.passages,
        int(manifest.embedding["max_length"]),
        manifest.words is not None,
        size,
    )


def split_passages(rows: TextRows, embedder: Embedder, *, prompt: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the passages of documents, and log the fraction of the text that the model reads.

    Args:
        rows: Documents, with the settings of passages.
        embedder: Model whose tokens are counted.
        prompt: Name of the prompt of documents; by default, the document prompt of the model.

    Returns:
        Records with ``id``, ``text``, ``document``, ``file``, ``start`` and ``end``, and the other columns of the row.
        The passage is ``text[start:end]`` of the document.

    Raises:
        BertkitError: If files or options are wrong; see `bertkit.errors`.
    """
    return _yield_passages(rows.split_for(choose_prompts(embedder, {"document": prompt})["document"]))


def _yield_passages(rows: TextRows) -> Iterator[dict[str, Any]]:
    coverage, count = Coverage(), 0
    for passages, document_coverage in rows.split():
        coverage += document_coverage
        count += len(passages)
        yield from (row.record for row in passages)
    log.info(f"passages: {count:,}, of texts: {coverage.texts:,}; {coverage} of the text reaches the model")


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
        index: Index to search.
        queries: Queries, with fields to add at the start of their results, such as ``{"query": text}``.
        method: Ranking, and the maximum number of results.
        model: Current folder or name of the model; by default, the name that the index was built with.
        prompt: Name of the prompt, which must be the prompt that the index was built for.

    Returns:
        Records with ``rank`` (from 1), ``score``, ``similarity`` of the vectors and ``bm25`` (unless one of them is the
        score), and the columns of the row: ``id``, ``text`` and others.

    Raises:
        BertkitError: If a file or an option is wrong; see `bertkit.errors`.
    """
    # 1. Check everything that does not need the model: the prompt, the words, the reranker and the first query.
    index_prompt = index.manifest.prompts.get("query", {}).get("name")
    if prompt is not None and prompt != index_prompt:
        description = "no prompt" if index_prompt is None else f"the prompt {index_prompt!r}"
        message = f"--prompt {prompt}, but the index was built for queries with {description}"
        raise UsageError(message, "leave --prompt out, or build the index with --query-prompt", file=index.folder)
    with report_damage(index.folder):
        bm25 = _find_bm25(index, method)
    if method.reranker is not None:
        _ = method.reranker.checkpoint_info
    if method.k > len(index):
        log.info(f"the index has only {len(index):,} rows, fewer than -k {method.k:,}")
    remaining_queries = iter(queries)
    first_query = next(remaining_queries, None)
    if first_query is None:
        raise UsageError("no query", 'give one, e.g. "how to open a file", or --file')

    # 2. Load the model, and search chunk by chunk.
    embedder = None
    if method.by != "words":
        with stage(f"loading {model or index.manifest.model}"):
            embedder = open_embedder(index.manifest, "query", folder=index.folder, model=model)
    all_queries = chain([first_query], remaining_queries)

    def records() -> Iterator[dict[str, Any]]:
        with report_damage(index.folder):
            while chunk := list(islice(all_queries, _CHUNK_QUERIES)):
                yield from _search_chunk(index, embedder, bm25, chunk, method)

    return records()


def _find_bm25(index: Index, method: SearchMethod) -> BM25 | None:
    """Return the BM25 scorer of an index, or None if it is not available and rows are ranked by vectors only.

    Raises:
        UsageError: If rows are ranked by words, but the index has no words.
        UnavailableError: If rows are ranked by words, but bm25s is not installed.
    """
    try:
        return index.words
    except (UsageError, UnavailableError) as error:
        if method.by != "vectors":
            raise
        log.info(f"results without bm25: {error}")
        return None


def _search_chunk(
    index: Index, embedder: Embedder | None, bm25: BM25 | None, chunk: Sequence[Query], method: SearchMethod
) -> Iterator[dict[str, Any]]:
    texts = [text for _, text in chunk]
    if not all(text.strip() for text in texts):
        raise UsageError("a query is empty", 'give a text, e.g. "how to open a file"')
    vectors = None if embedder is None else embedder.encode(texts)
    rankings = search(index, texts, vectors, method)
    for index_in_chunk, ((fields, text), ranking) in enumerate(zip(chunk, rankings, strict=True)):
        rows = [hit.row for hit in ranking]
        if not rows:
            log.info(f"no row has a word of the query: {shorten(text)}")
        # Add the scores by which rows were not ranked, because they help to understand the ranking.
        scores = {"score": [hit.score for hit in ranking]}
        if vectors is not None and (method.by != "vectors" or method.reranker):
            scores["similarity"] = index.similarities(vectors[index_in_chunk], rows).tolist()
        if bm25 is not None and (method.by != "words" or method.reranker):
            scores["bm25"] = bm25.score(text, rows).tolist()
        for position, record in enumerate(index.rows(rows)):
            hit_scores = {name: values[position] for name, values in scores.items()}
            yield {**fields, "rank": position + 1, **hit_scores, **record}


@dataclass(frozen=True)
class RankingScores:
    """Mean scores of a ranking method over all queries."""

    ranking: str
    scores: dict[str, float]
    intervals: dict[str, Interval]
    """95% interval of each score over queries, or None if it is undefined."""
    gains: dict[str, float] = field(default_factory=dict)
    """Difference of each score from the score of the previous ranking; empty for the first ranking."""
    gain_intervals: dict[str, Interval] = field(default_factory=dict)
    """95% interval of each gain, from the differences per query."""


@dataclass(frozen=True)
class SearchScores:
    """The scores of several rankings of an index."""

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
    """Score the first 100 results by words, by vectors, by both, and by both with a reranker if there is one.

    Args:
        folder: Folder of the index.
        file: Relevant rows of each query, as `bertkit.vectors.search.ranking.read_relevance` reads it.
        reranker: Model that reranks the first rows of the hybrid ranking.
        candidates: Number of rows to rerank.
        limit: Maximum number of queries, from the start of the file.
        model: Current folder or name of the model; by default, the name that the index was built with.

    Raises:
        DataError: If no relevant row is in the index, or the file is wrong.
        BertkitError: If the index or a model cannot be read; see `bertkit.errors`.
    """
    # 1. Open the index and verify its checksums: a damaged index would score lower without an error.
    folder = expand_path(folder)
    index = Index.open(folder, verify=True)
    _ = index.words
    if reranker is not None:
        _ = reranker.checkpoint_info

    # 2. Read the queries with their relevant ids. These name rows or documents, so rank rows or documents.
    relevance = dict(take_first(read_relevance(file).items(), limit))
    by_document = _is_by_document(index, relevance, file)
    find_ids = partial(_find_ids, index=index, column="document" if by_document else "id", id_by_row={})

    # 3. Rank the rows of each query by each method, chunk by chunk.
    with stage(f"loading {model or index.manifest.model}"):
        embedder = open_embedder(index.manifest, "query", folder=folder, model=model)
    if truncated := find_truncated(list(relevance), embedder):
        limit_text = f"{embedder.tokenizer.model_max_length} tokens"
        log.info(f"{len(truncated):,} queries exceed {limit_text} and are truncated")
    ids_by_method: dict[str, list[list[str]]] = {}
    with stage("searching", len(relevance)) as advance:
        queries = iter(relevance)
        while chunk := list(islice(queries, _CHUNK_EVALUATED)):
            # The hybrid ranking combines words and vectors, and the reranker starts from the hybrid ranking.
            by_words = rank_by_words(index, chunk, DEPTH)
            by_vectors = rank_by_vectors(index, embedder.encode(chunk), DEPTH)
            hybrid = fuse(by_words, by_vectors)
            rankings_by_method = {
                "words (BM25)": by_words,
                "vectors": by_vectors,
                "hybrid": [ranking[:DEPTH] for ranking in hybrid],
            }
            if reranker is not None:
                reranked = rerank(reranker, chunk, [ranking[:candidates] for ranking in hybrid], index)
                rankings_by_method["hybrid and rerank"] = [
                    [*top, *ranking[candidates:DEPTH]] for top, ranking in zip(reranked, hybrid, strict=True)
                ]
            for name, rankings in rankings_by_method.items():
                ids_by_method.setdefault(name, []).extend(map(find_ids, rankings))
            advance(len(chunk))

    # 4. Score the rankings.
    ranking_scores = list(_score_rankings(ids_by_method, list(relevance.values())))
    return SearchScores(folder, len(relevance), len(index), by_document, ranking_scores)


def _find_ids(ranking: Ranking, index: Index, column: str, id_by_row: dict[int, str]) -> list[str]:
    """Return the ids of a ranking, each id at its best rank; `id_by_row` caches the ids, so that rows are read once.

    A document has the rank of its best passage (Dai and Callan 2019, "Deeper Text Understanding for IR with Contextual
    Neural Language Modeling", section 3).
    """
    new_rows = [hit.row for hit in ranking if hit.row not in id_by_row]
    for row, record in zip(new_rows, index.rows(new_rows), strict=True):
        id_by_row[row] = str(record[column])
    return list(dict.fromkeys(id_by_row[hit.row] for hit in ranking))


def _is_by_document(index: Index, relevance: Relevance, file: str | Path) -> bool:
    """Return whether the relevant ids of a file name documents, and log how many of the ids are not in the index.

    Raises:
        DataError: If the index has none of the ids, or if some ids name passages and others documents.
    """
    relevant_ids = {name for grades in relevance.values() for name, grade in grades.items() if grade}
    if not relevant_ids:
        raise DataError("nothing is relevant to any query", "give some rows a grade above 0", file=file)
    passages = index.find_rows(relevant_ids).keys()
    documents = index.find_rows(relevant_ids - passages, "document").keys()
    if passages and documents:
        message = f"{min(passages)!r} is a passage, and {min(documents)!r} is a document"
        raise DataError(message, "name either passages or documents", file=file)
    missing_ids = relevant_ids - passages - documents
    if missing_ids == relevant_ids:
        message = f"the index has none of the {len(relevant_ids):,} relevant ids, such as {min(missing_ids)!r}"
        raise DataError(message, "name the index of these texts", file=file)
    if missing_ids:
        log.info(
            f"{len(missing_ids):,} of {len(relevant_ids):,} relevant ids are not in the index, such as "
            f"{min(missing_ids)!r}: they count as not found"
        )
    num_unanswerable = sum(not any(grades.values()) for grades in relevance.values())
    if num_unanswerable:
        log.info(f"{num_unanswerable:,} of {len(relevance):,} queries have nothing relevant: they are left out")
    return bool(documents)


def _score_rankings(ids_by_method: Mapping[str, list[list[str]]], relevance: list[Any]) -> Iterator[RankingScores]:
    # Scores are arrays with one value per query, so a gain is the mean difference of two rankings of the same queries.
    previous_scores: dict[str, Any] = {}
    for name, rankings in ids_by_method.items():
        scores = score_rankings(rankings, relevance, CUTOFF, map_cutoff=DEPTH)
        gains = {metric: scores[metric] - values for metric, values in previous_scores.items()}
        yield RankingScores(
            name,
            average_queries(scores),
            query_intervals(scores).bounds,
            average_queries(gains),
            query_intervals(gains).bounds if gains else {},
        )
        previous_scores = scores
