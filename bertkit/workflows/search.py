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

_CHUNK_ROWS = 4096  # rows; enough texts to sort them by length, so that batches have little padding
_CHUNK_QUERIES = 1024  # queries
_CHUNK_SCORED = 256  # queries; fewer, because each has several rankings of DEPTH rows
_BY_VECTORS = SearchMethod()

CUTOFF = 10
"""Number of results that nDCG and MRR read."""

Query = tuple[dict[str, Any], str]
"""Fields that every result of a query starts with, and the text of the query."""


@dataclass(frozen=True)
class IndexReport:
    """Changes of an index by a command, and its content afterwards."""

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
    # Models can require other prompts for documents than for queries, so there is an embedder for each.
    embedders = choose_prompts(embedder, prompts or {})
    rows = replace(rows, passages=passages).split_for(embedders["document"])
    with lock_output_folder(output):
        # 2. Read all rows before the first is embedded, because the last row can be wrong or repeat an id.
        with stage(f"checking the rows of {rows.name}"):
            count, covered = rows.check()
        with stage(f"loading {embedder.model}"):
            manifest = replace(describe(embedders, similarity), passages=rows.passages)

        # 3. Embed and write chunk by chunk. `Index.create` skips the chunks of a killed build of the same rows.
        chunks = partial(_embed_chunks, rows, embedders["document"], count, covered)
        return _report_index(Index.create(output, manifest, chunks, source=rows.fingerprint()), count)


def add(folder: str | Path, rows: TextRows, *, model: str | None = None) -> IndexReport:
    """Add the texts of a file to an index, with the model of the index.

    Rows without an ``id`` are numbered; deleted rows keep their numbers. A file is not added twice, so a command that
    was killed after its last write can be repeated.

    Raises:
        BertkitError: If a file or an option is wrong; see `bertkit.errors`.
    """
    folder = expand_path(folder)
    Index.open(folder)  # A wrong folder is an error before a lock is created next to it.
    with lock_output_folder(folder):
        # The words of all rows are counted again for BM25, so all files must be intact.
        index = Index.open(folder, verify=True)
        embedder = open_embedder(index.manifest, "document", folder=folder, model=model)
        rows = replace(rows, first_id=index.manifest.total, passages=index.manifest.passages).split_for(embedder)
        source = rows.fingerprint()
        if index.manifest.has_source(source):
            log.info(f"the index already has the rows of {rows.name}; nothing is added")
            return _report_index(index.delete_old_words(), 0)
        with stage(f"checking the rows of {rows.name}"):
            count, covered = rows.check(index)
        chunks = partial(_embed_chunks, rows, embedder, count, covered)
        return _report_index(index.add(chunks, source=source), count)


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
        missing = [row_id for row_id in ids if row_id not in rows_by_id]
        if missing:
            more = f" (and {len(missing) - 1:,} more)" if len(missing) > 1 else ""
            raise DataError(f"no row has the id {missing[0]!r}{more}", "nothing was deleted", file=folder)
        rows = set(chain.from_iterable(rows_by_id.values()))
        return _report_index(index.delete(rows), len(rows))


def _embed_chunks(rows: TextRows, embedder: Embedder, count: int, covered: Coverage, done: int) -> Iterator[Chunk]:
    """Yield rows with their vectors, chunk by chunk.

    Args:
        rows: Rows of the index.
        embedder: Model.
        count: Number of rows.
        covered: Fraction of the passages that the model reads; for texts, it is measured here.
        done: Number of first rows to skip, because a killed command embedded them.
    """
    if done:
        log.info(f"resuming: {done:,} of {count:,} rows are already indexed")
    remaining = islice(rows, done, None)
    with stage("embedding", count, done):
        while chunk := list(islice(remaining, _CHUNK_ROWS)):
            texts = [row.record["text"] for row in chunk]
            # Passages were measured by document, so the first chunk counts for all of them.
            coverage = Coverage() if done else covered
            if rows.splitter is None:
                coverage = measure_coverage(texts, embedder)
            yield [row.record for row in chunk], embedder.encode(texts), coverage
            done += len(chunk)
            get_progress().update(done, {})
    # Other rows were embedded than were checked.
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
    """Yield the passages of documents, and log how much of the text the model reads in them.

    Args:
        rows: Documents, with the settings of passages.
        embedder: Model whose tokens are counted.
        prompt: Name of the prompt of documents; by default, the model's.

    Returns:
        Records with ``id``, ``text``, ``document``, ``file``, ``start`` and ``end``, and the other columns of the row.
        The passage is ``text[start:end]`` of the document.

    Raises:
        BertkitError: If files or options are wrong; see `bertkit.errors`.
    """
    return _yield_passages(rows.split_for(choose_prompts(embedder, {"document": prompt})["document"]))


def _yield_passages(rows: TextRows) -> Iterator[dict[str, Any]]:
    coverage, count = Coverage(), 0
    for split, row_coverage in rows.split():
        coverage += row_coverage
        count += len(split)
        yield from (row.record for row in split)
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
        queries: Queries, with the fields that their results start with, such as ``{"query": text}``.
        method: Ranking, and the maximum number of results.
        model: Current folder or name of the model; by default, the name that the index was built with.
        prompt: Name of the prompt, which must be the prompt that the index was built for.

    Returns:
        Records with ``rank`` (from 1), ``score``, the ``similarity`` of the vectors and ``bm25`` unless it is the
        score, and the columns of the row: ``id``, ``text`` and others.

    Raises:
        BertkitError: If a file or an option is wrong; see `bertkit.errors`.
    """
    # 1. Check everything that does not need the model: the prompt, the words, the reranker and the first query.
    built_for = index.manifest.prompts.get("query", {}).get("name")
    if prompt is not None and prompt != built_for:
        description = "no prompt" if built_for is None else f"the prompt {built_for!r}"
        message = f"--prompt {prompt}, but the index was built for queries with {description}"
        raise UsageError(message, "leave --prompt out, or build the index with --query-prompt", file=index.folder)
    with report_damage(index.folder):
        words = _find_words(index, method)
    if method.reranker is not None:
        _ = method.reranker.saved
    if method.k > len(index):
        log.info(f"the index has only {len(index):,} rows, fewer than -k {method.k:,}")
    remaining = iter(queries)
    first = next(remaining, None)
    if first is None:
        raise UsageError("no query", 'give one, e.g. "how to open a file", or --file')

    # 2. Load the model, and search chunk by chunk.
    embedder = None
    if method.by != "words":
        with stage(f"loading {model or index.manifest.model}"):
            embedder = open_embedder(index.manifest, "query", folder=index.folder, model=model)
    texts = chain([first], remaining)

    def records() -> Iterator[dict[str, Any]]:
        with report_damage(index.folder):
            while chunk := list(islice(texts, _CHUNK_QUERIES)):
                yield from _search_chunk(index, embedder, words, chunk, method)

    return records()


def _find_words(index: Index, method: SearchMethod) -> BM25 | None:
    """Return the BM25 of an index, or None if it has none and rows are ranked by vectors only.

    Raises:
        UsageError: If the index has no words, and rows are ranked by them.
        UnavailableError: If bm25s is not installed, and rows are ranked by words.
    """
    try:
        return index.words
    except (UsageError, UnavailableError) as error:
        if method.by != "vectors":
            raise
        log.info(f"results without bm25: {error}")
        return None


def _search_chunk(
    index: Index, embedder: Embedder | None, words: BM25 | None, chunk: Sequence[Query], method: SearchMethod
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
        # Results also have the scores of the rankings that were not used, which show why a row was found.
        scores = {"score": [hit.score for hit in ranking]}
        if vectors is not None and (method.by != "vectors" or method.reranker):
            scores["similarity"] = index.similarities(vectors[index_in_chunk], rows).tolist()
        if words is not None and (method.by != "words" or method.reranker):
            scores["bm25"] = words.score(text, rows).tolist()
        for position, record in enumerate(index.rows(rows)):
            hit_scores = {name: values[position] for name, values in scores.items()}
            yield {**fields, "rank": position + 1, **hit_scores, **record}


@dataclass(frozen=True)
class RankingScores:
    """The scores of a ranking method over all queries."""

    ranking: str
    scores: dict[str, float]
    intervals: dict[str, Interval]
    """95% interval of each score over queries, or None if it is undefined."""
    gains: dict[str, float] = field(default_factory=dict)
    """Difference of each score from the previous ranking's; empty for the first."""
    gain_intervals: dict[str, Interval] = field(default_factory=dict)
    """95% interval of each gain over the differences of queries."""


@dataclass(frozen=True)
class SearchScores:
    """The scores of the rankings of an index."""

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
    """Score the first 100 results by words, by vectors, by both, and reranked if there is a reranker.

    Args:
        folder: Folder of the index.
        file: Relevant rows of each query, as `bertkit.vectors.search.ranking.read_relevance` reads it.
        reranker: Model that ranks the first rows of the hybrid ranking again.
        candidates: Number of rows to rerank.
        limit: Maximum number of queries, from the start of the file.
        model: Current folder or name of the model; by default, the name that the index was built with.

    Raises:
        DataError: If no relevant row is in the index, or the file is wrong.
        BertkitError: If the index or a model cannot be read; see `bertkit.errors`.
    """
    # 1. Open the index. A damaged index would score lower without an error, so its checksums are compared.
    folder = expand_path(folder)
    index = Index.open(folder, verify=True)
    _ = index.words
    if reranker is not None:
        _ = reranker.saved

    # 2. Read the queries. Their relevant ids belong to rows or to documents, and so do the ids of results.
    relevance = dict(take_first(read_relevance(file).items(), limit))
    by_document, id_by_row = _is_by_document(index, relevance, file), dict[int, str]()
    find_ids = partial(_find_ids, index=index, column="document" if by_document else "id", id_by_row=id_by_row)

    # 3. Rank the rows of each query by each method, chunk by chunk.
    with stage(f"loading {model or index.manifest.model}"):
        embedder = open_embedder(index.manifest, "query", folder=folder, model=model)
    if truncated := find_truncated(list(relevance), embedder):
        limit_text = f"{embedder.tokenizer.model_max_length} tokens"
        log.info(f"{len(truncated):,} queries exceed {limit_text} and are truncated")
    ids_by_method: dict[str, list[list[str]]] = {}
    with stage("searching", len(relevance)) as advance:
        queries = iter(relevance)
        while chunk := list(islice(queries, _CHUNK_SCORED)):
            # The hybrid ranking combines the first two, and the reranker starts from the hybrid one.
            words = rank_by_words(index, chunk, DEPTH)
            vectors = rank_by_vectors(index, embedder.encode(chunk), DEPTH)
            hybrid = fuse(words, vectors)
            rankings_by_method = {
                "words (BM25)": words,
                "vectors": vectors,
                "hybrid": [ranking[:DEPTH] for ranking in hybrid],
            }
            if reranker is not None:
                best = rerank(reranker, chunk, [ranking[:candidates] for ranking in hybrid], index)
                rest = [ranking[candidates:DEPTH] for ranking in hybrid]
                rankings_by_method["hybrid and rerank"] = [
                    [*first, *last] for first, last in zip(best, rest, strict=True)
                ]
            for name, rankings in rankings_by_method.items():
                ids_by_method.setdefault(name, []).extend(map(find_ids, rankings))
            advance(len(chunk))

    # 4. Score the rankings.
    scored = list(_score_rankings(ids_by_method, list(relevance.values())))
    return SearchScores(folder, len(relevance), len(index), by_document, scored)


def _find_ids(ranking: Ranking, index: Index, column: str, id_by_row: dict[int, str]) -> list[str]:
    """Return the ids of a ranking, each at its best rank; a row is read once and its id is kept in `id_by_row`.

    The best passage ranks a document (Dai and Callan 2019, "Deeper Text Understanding for IR with Contextual Neural
    Language Modeling", section 3).
    """
    unknown = [hit.row for hit in ranking if hit.row not in id_by_row]
    for row, record in zip(unknown, index.rows(unknown), strict=True):
        id_by_row[row] = str(record[column])
    return list(dict.fromkeys(id_by_row[hit.row] for hit in ranking))


def _is_by_document(index: Index, relevance: Relevance, file: str | Path) -> bool:
    """Return whether the ids of a file belong to documents, and log how many the index lacks.

    Raises:
        DataError: If the index has none of them, or some belong to passages and some to documents.
    """
    relevant = {name for grades in relevance.values() for name, grade in grades.items() if grade}
    if not relevant:
        raise DataError("nothing is relevant to any query", "give some rows a grade above 0", file=file)
    passages = index.find_rows(relevant).keys()
    documents = index.find_rows(relevant - passages, "document").keys()
    if passages and documents:
        message = f"{min(passages)!r} is a passage, and {min(documents)!r} is a document"
        raise DataError(message, "name either passages or documents", file=file)
    missing = relevant - passages - documents
    if len(missing) == len(relevant):
        message = f"the index has none of the {len(relevant):,} ids that are relevant, such as {min(missing)!r}"
        raise DataError(message, "is it the index of these texts?", file=file)
    if missing:
        log.info(
            f"{len(missing):,} of {len(relevant):,} relevant ids are not in the index, such as {min(missing)!r}: "
            "they count as not found"
        )
    unanswerable = sum(not any(grades.values()) for grades in relevance.values())
    if unanswerable:
        log.info(f"{unanswerable:,} of {len(relevance):,} queries have nothing relevant: they are left out")
    return bool(documents)


def _score_rankings(ids_by_method: Mapping[str, list[list[str]]], relevance: list[Any]) -> Iterator[RankingScores]:
    # Scores are arrays over queries, so a gain is the mean difference of two rankings over the same queries.
    before: dict[str, Any] = {}
    for name, rankings in ids_by_method.items():
        scores = score_rankings(rankings, relevance, CUTOFF, map_cutoff=DEPTH)
        gained = {metric: scores[metric] - values for metric, values in before.items()}
        yield RankingScores(
            name,
            average_queries(scores),
            query_intervals(scores).bounds,
            average_queries(gained),
            query_intervals(gained).bounds if gained else {},
        )
        before = scores
