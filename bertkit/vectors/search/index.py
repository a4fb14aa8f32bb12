"""An index on disk: rows, their vectors and their words. One process changes it at a time, and others can read.

The files of rows only grow, and the manifest counts the part of them that belongs to the index. A change first writes
its data behind that part, and then replaces the manifest: so it is visible completely or not at all. Bytes that the
manifest does not count are ignored, and the next writer overwrites them. While a build or an addition runs, the
manifest also counts the rows that are written so far (`Manifest.pending`), from which the same command resumes.

An index holds any JSON value as an id, and any columns next to ``id`` and ``text``. A manifest may add rows and delete
others at once, which replaces rows. Dimension 0 means that the index has words only.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.errors import BertkitError, DataError, ModelError, UnavailableError, UsageError, install_command
from bertkit.progress import log
from bertkit.storage.files import check_links, disk_errors, make_ignored_folder, sync_folder, to_json
from bertkit.storage.fingerprints import (
    feed_file,
    file_fingerprint,
    leaves_folder,
    list_files,
    read_with_checksum,
    write_with_checksum,
)
from bertkit.vectors.search.bm25 import BM25
from bertkit.vectors.search.passages import Coverage

MANIFEST = "manifest.json"
VECTORS, ROWS, OFFSETS = "vectors.f32", "rows.jsonl", "row_offsets.i64"
SIMILARITIES = ("cosine", "dot")

_VERSION = 2
_WORDS = "bm25"  # folder; after N additions, the words of all rows are in bm25/N
_SPARE = 20  # candidates beyond k, which are ranked again in float64
_QUERIES = 256  # per pass over the vectors
# Rows per product: a batch of queries needs the cache of the CPU for its scores, one query does not.
_BLOCK, _BLOCK_OF_ONE = 8192, 65536
_MAPPED = 1 << 30  # bytes of vectors that remain in memory for the next query

Chunk = tuple[list[dict[str, Any]], np.ndarray, Coverage]
"""Rows with ``id`` and ``text``, their vectors (rows, dimension), and the part of their texts that the model read."""

Chunks = Callable[[int], Iterable[Chunk]]
"""Function that yields the chunks of the rows from an index on, because a resumed command skips the rows before it."""


@dataclass(frozen=True)
class Addition:
    """Rows that one command added."""

    source: Mapping[str, Any] | None = None
    """Fingerprint of the file that the rows come from, or None if it is not known."""
    rows: int = 0
    bytes: int = 0
    """Size of the rows in the file of rows."""
    coverage: Coverage = field(default_factory=Coverage)
    sha256: Mapping[str, str] = field(default_factory=dict)
    """Name of a file -> checksum of the bytes that were added to it."""

    def sizes(self, dimension: int) -> dict[str, int]:
        """Return the number of bytes in each file."""
        return {VECTORS: 4 * dimension * self.rows, ROWS: self.bytes, OFFSETS: 8 * self.rows}


@dataclass(frozen=True)
class Manifest:
    """Content of an index, and how its vectors were computed."""

    dimension: int
    similarity: str = "cosine"
    """``cosine``, of vectors that have length 1 on disk, or ``dot``."""
    model: str | None = None
    """The user's name of the model, or None for vectors without a model."""
    embedding: Mapping[str, Any] = field(default_factory=dict)
    """Result of `Embedder.describe`: model, pooling, dimension, length."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the `Embedder` that differ from the model folder."""
    prompts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """``document`` and ``query`` -> name (or None) and text of its prompt."""
    passages: Mapping[str, int] | None = None
    """Tokens and overlap of the passages that texts are split into, or None if each text is a row."""
    additions: tuple[Addition, ...] = ()
    pending: Addition | None = None
    """Rows of a build or an addition that has not finished; they are behind all others and cannot be found."""
    deleted: tuple[int, ...] = ()
    """Indices of the deleted rows, ascending."""
    words: Mapping[str, Mapping[str, Any]] | None = None
    """Size and checksum of each file with the words of the rows, or None if words are not indexed."""

    @property
    def total(self) -> int:
        """Number of rows on disk, including deleted ones."""
        return sum(addition.rows for addition in self.additions)

    @property
    def rows(self) -> int:
        """Number of rows that can be found."""
        return self.total - len(self.deleted)

    @property
    def coverage(self) -> Coverage:
        """Part of all texts ever added that the model read."""
        return sum((addition.coverage for addition in self.additions), Coverage())

    @property
    def words_folder(self) -> str:
        """Folder of the words, relative to the index."""
        return f"{_WORDS}/{len(self.additions)}"

    def sizes(self) -> Counter[str]:
        """Return the number of bytes of each file that belong to the index."""
        sizes = Counter({VECTORS: 0, ROWS: 0, OFFSETS: 0})
        for addition in self.additions:
            sizes.update(addition.sizes(self.dimension))
        return sizes

    def has_source(self, source: Mapping[str, Any]) -> bool:
        """Return whether the index has all rows of a source; if one of them was deleted, it does not."""
        end = 0
        for addition in self.additions:
            start, end = end, end + addition.rows
            if addition.source == source and not any(start <= row < end for row in self.deleted):
                return True
        return False


class Index:
    """Rows with vectors and words in a folder, whose files are mapped into memory and read as needed."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest

    @classmethod
    def open(cls, folder: Path, *, verify: bool = False) -> Index:
        """Open the index of a folder.

        Args:
            folder: Folder of the index.
            verify: Whether to read all files and compare their checksums; their sizes are always compared.

        Raises:
            UsageError: If the folder is not an index.
            DataError: If the index is damaged, or another version of bertkit built it.
        """
        return cls(folder, _read_manifest(folder, verify=verify))

    @classmethod
    def create(
        cls, folder: Path, manifest: Manifest, chunks: Chunks, *, source: Mapping[str, Any] | None = None
    ) -> Index:
        """Build an index next to its folder, and move it there; the caller holds the lock of the folder.

        Args:
            folder: Folder of the index, which must not exist.
            manifest: How the vectors are computed, without additions.
            chunks: The rows, in at least one chunk.
            source: Fingerprint of rows and vectors, by which a killed build is resumed; None always starts over.

        Raises:
            UsageError: If the folder exists, or the similarity is unknown.
            ModelError: If a vector is not finite.
            ResourceError: If a file cannot be written.
        """
        if folder.exists():
            raise UsageError("the index exists", "add to it with `bertkit search add`, or delete it", file=folder)
        if manifest.similarity not in SIMILARITIES:
            raise UsageError(f"similarity {manifest.similarity!r} is not known", f"one of {', '.join(SIMILARITIES)}")
        # The folder gets its name at the end, so that a folder of this name is always complete.
        path = folder.resolve()
        building = path.with_name(f".{path.name}.building")
        with disk_errors(building):
            index = _resume_build(building, manifest, source)
            make_ignored_folder(building)
            try:
                if not index.manifest.additions:
                    index.add(chunks, source=source)
            except (DataError, ModelError):  # Resuming would fail in the same way.
                shutil.rmtree(building)
                raise
            building.rename(folder)
            sync_folder(folder.parent)
        return cls.open(folder)

    def add(self, chunks: Chunks, *, source: Mapping[str, Any] | None = None) -> Index:
        """Add rows, and return the index opened again; the caller holds the lock of the folder.

        Args:
            chunks: The rows, in at least one chunk.
            source: Fingerprint of the rows, by which a killed addition is resumed; None always starts over.

        Raises:
            ModelError: If a vector is not finite.
            ResourceError: If a file cannot be written.
            UsageError: If a file of the index is a link.
        """
        check_links(self.folder)
        with disk_errors(self.folder):
            # 1. Append the rows. 2. Count the words of all rows. 3. Let the manifest count both. 4. Delete old words.
            added = self._append_rows(chunks, source)
            complete = replace(self.manifest, additions=(*self.manifest.additions, added), pending=None)
            complete = replace(complete, words=Index(self.folder, complete)._write_words())
            _write_manifest(self.folder, complete)
        return Index.open(self.folder).delete_old_words()

    def delete(self, rows: Iterable[int]) -> Index:
        """Mark rows as deleted, and return the index opened again; the caller holds the lock of the folder.

        Raises:
            ResourceError: If a file cannot be written.
        """
        # Deleted rows remain in the files: nothing that readers have mapped ever changes.
        deleted = tuple(sorted({*self.manifest.deleted, *map(int, rows)}))
        with disk_errors(self.folder):
            _write_manifest(self.folder, replace(self.manifest, deleted=deleted))
        return Index.open(self.folder)

    def __len__(self) -> int:
        return self.manifest.rows

    @cached_property
    def vectors(self) -> np.ndarray:
        """Vectors of all rows, float32 of shape (rows, dimension), including deleted rows."""
        return self._map(VECTORS, "<f4", (self.manifest.total, self.manifest.dimension))

    @cached_property
    def deleted(self) -> np.ndarray:
        """Indices of the deleted rows, ascending."""
        return np.array(self.manifest.deleted, dtype=np.int64)

    @cached_property
    def words(self) -> BM25:
        """BM25 of the rows.

        Raises:
            UsageError: If the index has none, because it was built without bm25s.
            UnavailableError: If bm25s is not installed.
        """
        if self.manifest.words is None:
            remedy = f"`{install_command('search')}`, then build it again or add to it"
            raise UsageError("the index has no words: it was built without bm25s", remedy, file=self.folder)
        return BM25.load(self.folder / self.manifest.words_folder)

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Find the k nearest rows of each query, or all rows if there are fewer.

        All vectors are compared in float32, and the best candidates are ranked in float64. So a result can only be
        missing if 20 others are closer to the k-th score than the rounding of float32.

        Args:
            queries: Vectors of the index's model, of shape (queries, dimension).
            k: Number of results, at least 1.

        Returns:
            Scores (queries, k), float32 and descending, and row indices (queries, k), for `rows`. If scores are equal,
            the earlier row comes first.

        Raises:
            UsageError: If the queries have another dimension, or a number that is not finite.
        """
        queries = np.atleast_2d(queries)
        if queries.shape[1] != self.manifest.dimension:
            message = f"the queries have dimension {queries.shape[1]}, and the index {self.manifest.dimension}"
            raise UsageError(message, "use the model that the index was built with", file=self.folder)
        if not np.isfinite(queries).all():
            message = "the vector of a query is not finite"
            raise UsageError(message, "compute it again, with another model or in fp32", file=self.folder)
        queries, k = _prepare(queries, self.manifest.similarity), min(k, len(self))
        scores = np.zeros((len(queries), k), dtype=np.float32)
        rows = np.zeros((len(queries), k), dtype=np.int64)
        for start in range(0, len(queries) if k else 0, _QUERIES):
            candidates = self._scan(queries[start : start + _QUERIES], k + _SPARE)
            for query, nearest in enumerate(candidates, start):
                scores[query], rows[query] = self._rank(queries[query], nearest, k)
        return scores, rows

    def similarities(self, query: np.ndarray, rows: Iterable[int]) -> np.ndarray:
        """Compute the similarity of a vector (dimension,) to the vectors of some rows, float32."""
        prepared = _prepare(query[None], self.manifest.similarity)[0]
        return self._compute_scores(prepared, np.fromiter(rows, dtype=np.int64))

    def rows(self, rows: Iterable[int]) -> list[dict[str, Any]]:
        """Read some rows, in the order of their indices: ``id``, ``text`` and the other columns."""
        offsets, records = self._map(OFFSETS, "<i8", (self.manifest.total,)), []
        with (self.folder / ROWS).open("rb") as stream:
            for row in rows:
                start = int(offsets[row])
                stream.seek(start)
                records.append(json.loads(stream.readline()))
        return records

    def records(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the index and the record of each row that is not deleted, in order."""
        deleted = set(self.manifest.deleted)
        with (self.folder / ROWS).open("rb") as stream:
            for row, line in enumerate(islice(stream, self.manifest.total)):
                if row not in deleted:
                    yield row, json.loads(line)

    def find_rows(self, ids: Iterable[object], column: str = "id") -> dict[str, list[int]]:
        """Find rows by their ids, or the passages of documents by the column ``document``: id -> row indices.

        Ids are compared as text, so that 1 and "1" are the same.
        """
        rows: dict[str, list[int]] = {}
        # Only passages belong to documents; other rows can have a column of this name, too.
        names = set(map(str, ids)) if column == "id" or self.manifest.passages is not None else set()
        for row, record in self.records() if names else ():
            if (name := str(record[column])) in names:
                rows.setdefault(name, []).append(row)
        return rows

    def delete_old_words(self) -> Index:
        """Delete the words that this index has replaced, and return it."""
        for folder in (self.folder / _WORDS).glob("*"):
            if self.manifest.words is None or folder != self.folder / self.manifest.words_folder:
                shutil.rmtree(folder, ignore_errors=True)
        return self

    def _map(self, name: str, dtype: str, shape: tuple[int, ...], offset: int = 0) -> np.ndarray:
        """Map a file into memory. Writing would change a copy: torch warns of arrays that cannot be written."""
        if not np.prod(shape):  # An empty file cannot be mapped.
            return np.zeros(shape, dtype)
        return np.asarray(np.memmap(self.folder / name, dtype, "c", offset, shape))

    def _map_block(self, start: int, size: int) -> np.ndarray:
        """Return the vectors of a block. A large file is mapped block by block, so that memory holds only one."""
        rows, width = min(size, self.manifest.total - start), self.manifest.dimension
        if self.vectors.nbytes <= _MAPPED:
            return self.vectors[start : start + rows]
        return self._map(VECTORS, "<f4", (rows, width), 4 * width * start)

    def _scan(self, queries: np.ndarray, count: int) -> np.ndarray:
        """Return the rows with the highest products in float32, (queries, count), or fewer if there are fewer rows.

        Deleted rows count as -1. Memory holds the scores of a block of rows, never all of them.
        """
        import torch

        query_vectors, size = torch.from_numpy(queries), _BLOCK if len(queries) > 1 else _BLOCK_OF_ONE
        scores = torch.empty((len(queries), 0))
        rows = torch.empty((len(queries), 0), dtype=torch.int64)
        for start in range(0, self.manifest.total, size):
            vectors = self._map_block(start, size)
            # On a CPU, numpy multiplies a matrix by one vector faster than torch, and torch is faster by many.
            if len(queries) == 1:
                products = torch.from_numpy(vectors @ queries[0])[None]
            else:
                products = query_vectors @ torch.from_numpy(vectors).T
            # The deleted rows of this block are a slice, because they ascend.
            first, last = np.searchsorted(self.deleted, (start, start + len(vectors)))
            products[:, self.deleted[first:last] - start] = float("-inf")
            # Sorting takes longer than multiplying, and few rows of a later block are better than the candidates, so
            # only the columns that beat the last candidate of any query are sorted.
            block_rows = torch.arange(len(vectors))
            if scores.shape[1] == count:
                block_rows = (products > scores[:, -1:]).any(dim=0).nonzero()[:, 0]
                products = products[:, block_rows]
            best, columns = products.topk(min(count, len(block_rows)))
            # Merge the best rows of this block with the candidates of all blocks before it.
            scores, rows = torch.cat([scores, best], dim=1), torch.cat([rows, block_rows[columns] + start], dim=1)
            scores, columns = scores.topk(min(count, scores.shape[1]))
            rows = rows.gather(1, columns)
        return rows.masked_fill_(scores == float("-inf"), -1).numpy()

    def _rank(self, query: np.ndarray, candidates: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the scores and the indices of the k best of some rows, computed in float64; -1 is not a row."""
        candidates = np.sort(candidates[candidates >= 0])
        scores = self._compute_scores(query, candidates)
        # The sort is stable and candidates ascend, so that the earlier row comes first.
        best = np.argsort(-scores, kind="stable")[:k]
        return scores[best], candidates[best]

    def _compute_scores(self, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
        products: np.ndarray = self.vectors[rows].astype(np.float64) @ query.astype(np.float64)
        return products.astype(np.float32)

    def _append_rows(self, chunks: Chunks, source: Mapping[str, Any] | None) -> Addition:
        """Append rows to the files, and return the addition, which the manifest does not count yet."""
        pending, digests = self._resume_addition(source)
        sizes = self.manifest.sizes() + Counter(pending.sizes(self.manifest.dimension))
        with ExitStack() as opened:
            streams = {name: opened.enter_context((self.folder / name).open("r+b")) for name in digests}
            # Bytes after the counted ones come from a command that was killed or that added other rows.
            for name, stream in streams.items():
                stream.truncate(sizes[name])
                stream.seek(0, os.SEEK_END)
            for records, vectors, coverage in chunks(pending.rows):
                lines = [(to_json(record) + "\n").encode() for record in records]
                starts = sizes[ROWS] + np.cumsum([0, *map(len, lines)])
                content = {
                    VECTORS: self._check_vectors(vectors, records).tobytes(),
                    ROWS: b"".join(lines),
                    OFFSETS: starts[:-1].astype("<i8").tobytes(),
                }
                for name, added in content.items():
                    streams[name].write(added)
                    digests[name].update(added)
                    sizes[name] += len(added)
                # The data is on disk before the manifest counts it. A kill in between leaves bytes that do not count.
                for stream in streams.values():
                    stream.flush()
                    os.fsync(stream.fileno())
                pending = Addition(
                    pending.source,
                    pending.rows + len(lines),
                    pending.bytes + len(content[ROWS]),
                    pending.coverage + coverage,
                    {name: digest.hexdigest() for name, digest in digests.items()},
                )
                _write_manifest(self.folder, replace(self.manifest, pending=pending))
        return pending

    def _resume_addition(self, source: Mapping[str, Any] | None) -> tuple[Addition, dict[str, Any]]:
        """Return the rows of a source that a killed command wrote, and the digests of their bytes."""
        source = json.loads(to_json(source))  # in the form that the manifest returns
        starts, pending = self.manifest.sizes(), self.manifest.pending
        digests = {name: hashlib.sha256() for name in starts}
        for name in starts:
            (self.folder / name).touch()
        # The state of a SHA-256 cannot be stored, so the bytes are read again. This also shows whether they are intact.
        if pending is not None and source is not None and pending.source == source:
            for name, size in pending.sizes(self.manifest.dimension).items():
                feed_file(digests[name], self.folder / name, starts[name], size)
            damaged = [name for name, digest in digests.items() if digest.hexdigest() != pending.sha256[name]]
            if not damaged:
                return pending, digests
            log.info(f"{damaged[0]} is damaged ({self.folder}): all rows are embedded again")
        return Addition(source), {name: hashlib.sha256() for name in starts}

    def _check_vectors(self, vectors: np.ndarray, records: list[dict[str, Any]]) -> np.ndarray:
        wrong = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if len(wrong):
            message = f"the vector of the row with the id {records[wrong[0]]['id']!r} is not finite"
            raise ModelError(message, "compute it with --precision fp32, or use another model")
        return _prepare(vectors, self.manifest.similarity)

    def _write_words(self) -> Mapping[str, Mapping[str, Any]] | None:
        """Write the BM25 of all rows and return its files, or None if bm25s is not installed, which is logged."""
        folder = self.folder / self.manifest.words_folder
        try:
            words = BM25.build((row, record["text"]) for row, record in self.records())
        except UnavailableError as error:
            log.info(f"the index has no words: {error.message} - {error.remedy}")
            return None
        shutil.rmtree(folder, ignore_errors=True)  # A killed process can have left it.
        words.save(folder)
        sync_folder(folder)
        sync_folder(folder.parent)
        return list_files(folder, [file.name for file in folder.iterdir()])


@contextmanager
def report_damage(folder: Path) -> Iterator[None]:
    """Compare the checksums of an index if the block raises an unexpected error, and report the damaged file.

    Checksums are not compared earlier, because a query reads only a small part of the files.

    Raises:
        DataError: If a file is damaged, or the words were replaced while they were read.
    """
    try:
        yield
    except BertkitError:
        raise
    except Exception as error:
        _read_manifest(folder, verify=True)
        if isinstance(error, FileNotFoundError):  # `search add` has replaced the words.
            raise DataError("the index changed while it was read", "repeat the command", file=folder) from error
        raise


def _prepare(vectors: np.ndarray, similarity: str) -> np.ndarray:
    """Return vectors as float32, for cosine divided by their length; a vector of zeros remains unchanged."""
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    if similarity == "cosine":
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        vectors = (vectors / np.maximum(lengths, 1e-30)).astype(np.float32)
    return vectors


def _resume_build(building: Path, manifest: Manifest, source: Mapping[str, Any] | None) -> Index:
    """Return the index that a killed build of the same rows and model left in a folder, or an empty index."""
    previous = None
    try:
        previous = _read_manifest(building, verify=True) if (building / MANIFEST).exists() else None
    except DataError as error:
        log.info(f"{error.message} ({error.file}): all rows are embedded again")
    if previous is not None and source is not None:
        sources = [addition.source for addition in (*previous.additions, previous.pending) if addition]
        settings = replace(previous, additions=(), pending=None, words=None)
        if sources == [json.loads(to_json(source))] and to_json(asdict(settings)) == to_json(asdict(manifest)):
            return Index(building, previous)
    shutil.rmtree(building, ignore_errors=True)
    return Index(building, manifest)


def _write_manifest(index: Path, manifest: Manifest) -> None:
    """Replace the manifest of an index in one step: from then on, the index has the content that it counts."""
    # `rows` is only a note in the file: it follows from the other fields.
    write_with_checksum(index / MANIFEST, {"format": _VERSION, "rows": manifest.rows, **asdict(manifest)})


def _read_manifest(folder: Path, *, verify: bool) -> Manifest:
    """Read the manifest of an index, and compare the sizes of the files, and their checksums if `verify` is set."""
    file = folder / MANIFEST
    damaged = DataError("the manifest of the index is damaged", "build the index again", file=file)
    content = read_with_checksum(file, damaged, form=("an index", _VERSION))
    if content is None:
        raise _no_index_error(folder)
    # 1. Parse the manifest. Its file names must not lead out of the folder.
    try:
        del content["format"], content["rows"]
        additions = tuple(map(_read_addition, content.pop("additions")))
        pending = content.pop("pending")
        manifest = Manifest(
            additions=additions,
            pending=pending and _read_addition(pending),
            deleted=tuple(content.pop("deleted")),
            **content,
        )
        sizes, words = manifest.sizes(), manifest.words or {}
    except (KeyError, TypeError, AttributeError):
        raise damaged from None
    if any(map(leaves_folder, words)):
        raise damaged
    # 2. Check the row files. They can have more bytes than belong to the index.
    for name, size in sizes.items():
        _check_size(folder / name, size)
    start = Counter[str]()
    for addition in additions if verify else ():
        for name, size in addition.sizes(manifest.dimension).items():
            digest = hashlib.sha256()
            feed_file(digest, folder / name, start[name], size)
            if digest.hexdigest() != addition.sha256.get(name):
                raise _damage_error(folder / name, "the file does not match its checksum")
            start[name] += size
    # 3. Check the word files.
    for name, entry in words.items():
        words_file = folder / manifest.words_folder / name
        _check_size(words_file, entry["size"], exact=True)
        if verify and file_fingerprint(words_file) != entry["sha256"]:
            raise _damage_error(words_file, "the file does not match its checksum")
    return manifest


def _read_addition(content: Mapping[str, Any]) -> Addition:
    return Addition(**{**content, "coverage": Coverage(**content["coverage"])})


def _check_size(file: Path, size: int, *, exact: bool = False) -> None:
    if not file.is_file():
        raise DataError("a file of the index is missing", "restore it, or build the index again", file=file)
    actual = file.stat().st_size
    if actual < size or (exact and actual != size):
        raise _damage_error(file, f"the file has {actual:,} bytes, not {size:,}")


def _damage_error(file: Path, problem: str) -> DataError:
    return DataError(f"{problem}: the index is damaged", "restore it, or build the index again", file=file)


def _no_index_error(folder: Path) -> UsageError:
    if not folder.exists():
        return UsageError("no such index", "build it with `bertkit search build`", file=folder)
    if not folder.is_dir():
        return UsageError("a file, not an index", "name the folder that `bertkit search build` wrote", file=folder)
    return UsageError(f"not an index: it has no {MANIFEST}", "build one with `bertkit search build`", file=folder)
