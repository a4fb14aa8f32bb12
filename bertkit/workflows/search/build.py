"""Build an index of the texts of a file, add texts to it, delete rows from it; split texts into passages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from bertkit.errors import DataError, UsageError
from bertkit.progress import get_progress, log, stage
from bertkit.recipe import typed_path
from bertkit.storage.outputs import claimed_folder, sweep_locks
from bertkit.vectors.embedder import Embedder
from bertkit.vectors.search.build import (
    Chunk,
    Chunks,
    add_to_index,
    build_index,
    delete_from_index,
    finish_addition,
)
from bertkit.vectors.search.index import Index, naming_damage
from bertkit.vectors.search.models import choose_prompts, describe, embedder_of
from bertkit.vectors.search.passages import Coverage, measure_coverage
from bertkit.vectors.search.rows import TextRows

_CHUNK = 4096  # rows that are embedded at a time: enough to sort by length


@dataclass(frozen=True)
class IndexReport:
    """What a command did to an index, and what it holds now."""

    index: Path
    changed: int
    """Rows that were added or deleted."""
    rows: int
    dimension: int
    similarity: str
    model: str | None
    coverage: Coverage
    """How much of all texts that were ever added the model read."""
    passages: Mapping[str, int] | None
    """Tokens and overlap of the passages that texts are split into; None where each text is a row."""
    max_length: int
    """Tokens that the model reads of a text."""
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
    """Build an index of the texts of a file; a killed build goes on where it was.

    Args:
        rows: what is indexed.
        embedder: the model and its options; its own prompt is not used.
        output: the folder of the index, which must not exist.
        prompts: Names of the prompts of ``document`` and ``query``; by default those that the model has.
        similarity: ``cosine`` or ``dot``; by default the similarity of the model.
        passages: ``tokens`` and ``overlap`` of the passages that become the rows; by default each text is a row.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    output = typed_path(output)
    if output.exists():
        sweep_locks([output])
        raise UsageError("the index exists", "add to it with `bertkit search add`, or choose another", file=output)
    sides = choose_prompts(embedder, prompts or {})
    rows = replace(rows, passages=passages).split_for(sides["document"])
    with claimed_folder(output):
        with stage(f"checking the rows of {rows.file}"):
            # All rows are read once before one is embedded: the last row may be wrong, or have the id of the first.
            count, covered = rows.check()
        with stage(f"loading {embedder.model}"):
            manifest = replace(describe(sides, similarity), passages=rows.passages)
        origin = {"rows": rows.fingerprint(), "manifest": asdict(manifest)}
        chunks = _embed_chunks(rows, sides["document"], count, covered)
        return _report_index(build_index(output, manifest, chunks, origin=origin), count)


def add(folder: str | Path, rows: TextRows, *, model: str | None = None) -> IndexReport:
    """Add the texts of a file to an index, with its own model.

    Rows without an ``id`` are numbered from the number of rows that the index ever had. Rows that were added before
    are not added again: the command that was killed after its last write can be repeated.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    folder = typed_path(folder)
    Index.open(folder)
    with claimed_folder(folder):
        index = Index.open(folder, verify=True)  # its words are counted again, of all rows
        embedder = embedder_of(index.manifest, "document", folder=folder, model=model)
        rows = replace(rows, first_id=index.manifest.total, passages=index.manifest.passages).split_for(embedder)
        source = rows.fingerprint()
        if index.manifest.find_shard(source):
            log.info(f"the index has the rows of {rows.file} already: nothing is added")
            return _report_index(finish_addition(folder, index.manifest), 0)
        with stage(f"checking the rows of {rows.file}"):
            count, covered = rows.check(index)
        chunks = _embed_chunks(rows, embedder, count, covered)
        return _report_index(add_to_index(index, chunks, origin={"rows": source}), count)


def delete(folder: str | Path, ids: Sequence[str]) -> IndexReport:
    """Delete the rows with some ids from an index, or all passages of a document.

    With one id that neither a row nor a document has, nothing is deleted.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    folder = typed_path(folder)
    Index.open(folder)
    with claimed_folder(folder), naming_damage(folder):
        index = Index.open(folder)
        numbers = {name: [number] for name, number in index.find_ids(ids).items()}
        numbers |= index.find_documents(name for name in ids if name not in numbers)
        missing = [identifier for identifier in ids if identifier not in numbers]
        if missing:
            more = f" (and {len(missing) - 1:,} more)" if len(missing) > 1 else ""
            raise DataError(f"no row has the id {missing[0]!r}{more}", "nothing was deleted", file=folder)
        rows = {number for of_id in numbers.values() for number in of_id}
        return _report_index(delete_from_index(index, rows), len(rows))


def _embed_chunks(rows: TextRows, embedder: Embedder, count: int, covered: Coverage) -> Chunks:
    """Return what yields the rows with their vectors, chunk by chunk, after those that are done.

    Passages are `covered`, which is known before; of texts, it is measured.
    """

    def chunks(done: int) -> Iterator[Chunk]:
        if done:
            log.info(f"going on after {done:,} of {count:,} rows, which an earlier command has finished")
        remaining = islice(rows, done, None)
        with stage("embedding", count, done):
            while chunk := list(islice(remaining, _CHUNK)):
                texts = [row.text for row in chunk]
                if rows.splitter is None:
                    coverage = measure_coverage(texts, embedder)
                else:
                    coverage = Coverage() if done else covered
                yield [row.record for row in chunk], embedder.encode(texts), coverage
                done += len(chunk)
                get_progress().update(done, {})
        # The rows that were checked are not those that were embedded.
        if done != count:
            raise DataError("the file changed while it was read", "repeat the command", file=rows.file)

    return chunks


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
        manifest.lexical is not None,
        size,
    )


def split_passages(rows: TextRows, embedder: Embedder, *, prompt: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the passages of documents, and log how much of the text the model reads in them.

    Args:
        rows: the documents, with the settings of passages.
        embedder: the model, whose tokens count.
        prompt: Name of the prompt of documents; by default the model's.

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
