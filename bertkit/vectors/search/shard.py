"""One shard of an index: rows and their vectors, appended chunk by chunk, later mapped into memory."""

from __future__ import annotations

import hashlib
import io
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import IO, Any, BinaryIO, Self

import numpy as np

from bertkit.errors import DataError, ModelError, ResourceError
from bertkit.metrics import Numbers
from bertkit.progress import log
from bertkit.storage.disk import map_npy
from bertkit.storage.files import to_json
from bertkit.storage.fingerprints import feed_file, list_files, read_signed, write_signed
from bertkit.vectors.search.manifest import (
    ENDS,
    IDS,
    ROUNDED,
    ROWS,
    SHARD_FILES,
    VECTORS,
    ShardInfo,
)
from bertkit.vectors.search.passages import Coverage

JOURNAL = "journal.json"
_DTYPES = {VECTORS: "<f4", ROUNDED: "<u2", ENDS: "<i8", IDS: "<u8"}


class JournaledFiles(ABC):
    """Files that are appended to together; a context manager.

    After each commit a journal has how much of each file counts, with its SHA-256. A kill leaves files that are longer
    than that; the next process of the same origin truncates them and goes on.

    Args:
        folder: used by these files only, and locked by this process.
        headers: name of a file -> the bytes before its content, which no journal counts.
        origin: what identifies the content, as a JSON value; content of another origin is overwritten, of None any.
        anew: what happens where a file is damaged.
    """

    def __init__(self, folder: Path, headers: Mapping[str, int], origin: Any, anew: str) -> None:
        self.folder, self.headers, self.origin, self.anew = folder, headers, origin, anew

    def __enter__(self) -> Self:
        """Open the files, and truncate them to what the last commit counts."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._digests = {name: hashlib.sha256() for name in self.headers}
        journal = self._read_journal()
        self._resume(journal)
        self._opened = ExitStack()
        self._streams: dict[str, BinaryIO] = {}
        sizes = self._sizes(journal) if journal else dict.fromkeys(self.headers, 0)
        for name, header in self.headers.items():
            (self.folder / name).touch()
            self._streams[name] = self._opened.enter_context((self.folder / name).open("r+b"))
            self._streams[name].truncate(header + sizes[name])
            self._streams[name].seek(0, os.SEEK_END)
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files."""
        self._opened.close()

    @abstractmethod
    def _sizes(self, journal: Mapping[str, Any]) -> dict[str, int]:
        """Return how many bytes of each file a journal counts, without headers."""

    @abstractmethod
    def _resume(self, journal: Mapping[str, Any]) -> None:
        """Take over what a journal says; an empty one begins anew."""

    def _append_bytes(self, name: str, content: bytes) -> None:
        self._streams[name].write(content)
        self._digests[name].update(content)

    def _write_journal(self, content: Mapping[str, Any]) -> None:
        # Data before the journal: a kill between them leaves files longer than it says, which the next process
        # truncates. In the other order, the journal could count what is not on disk.
        for stream in self._streams.values():
            stream.flush()
            os.fsync(stream.fileno())
        digests = {name: digest.hexdigest() for name, digest in self._digests.items()}
        write_signed(self.folder / JOURNAL, {"origin": self.origin, **content, "digests": digests})

    def _read_journal(self) -> dict[str, Any]:
        """Return the journal if it is of the same origin and what it counts is whole, else an empty one."""
        try:
            journal = read_signed(self.folder / JOURNAL, ResourceError(f"{JOURNAL} is damaged", file=self.folder))
            if journal is None or self.origin is None or journal["origin"] != self.origin:
                return {}
            for name, size in self._sizes(journal).items():
                feed_file(self._digests[name], self.folder / name, self.headers[name], size)
                if self._digests[name].hexdigest() != journal["digests"][name]:
                    raise ResourceError(f"{name} is damaged", file=self.folder)
            return journal
        except (ResourceError, OSError, KeyError) as error:
            log.info(f"{error}: {self.anew}")
            self._digests = {name: hashlib.sha256() for name in self.headers}
            return {}


class ShardWriter(JournaledFiles):
    """Appends rows with their vectors to a new shard; a context manager.

    Args:
        folder: used by this shard only, and locked by this process.
        dimension: of the vectors.
        similarity: cosine or dot; for cosine, vectors are divided by their length.
        origin: what identifies ``rows`` and vectors; an unfinished shard of another origin is overwritten, and of
            None any.
    """

    def __init__(self, folder: Path, dimension: int, similarity: str, origin: Mapping[str, Any] | None = None) -> None:
        self.similarity = similarity
        widths = {VECTORS: dimension, ROUNDED: dimension}
        self.columns = {name: (dtype, widths.get(name)) for name, dtype in _DTYPES.items()}
        headers = {name: _write_header(io.BytesIO(), *column, 0) for name, column in self.columns.items()}
        known = None if origin is None else json.loads(to_json(origin))
        super().__init__(folder, {**headers, ROWS: 0}, known, "all rows are embedded anew")

    def _sizes(self, journal: Mapping[str, Any]) -> dict[str, int]:
        sizes = {ROWS: int(journal["end"])}
        for name, (dtype, width) in self.columns.items():
            sizes[name] = np.dtype(dtype).itemsize * (width or 1) * journal["rows"]
        return sizes

    def _resume(self, journal: Mapping[str, Any]) -> None:
        self.rows: int = journal.get("rows", 0)
        self.coverage = Coverage(**journal.get("coverage", {}))
        self._end: int = journal.get("end", 0)  # of the rows, in bytes
        self._longest: float = journal.get("longest", 0.0)
        self._rounding: float = journal.get("rounding", 0.0)

    def append(self, records: Sequence[Mapping[str, Any]], vectors: Numbers, coverage: Coverage) -> None:
        """Append rows, each with its ``id`` and ``text``, and their vectors (rows, dimension); then flush to disk.

        Raises:
            ModelError: a vector has a number that is not finite.
        """
        bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if len(bad):
            what = f"the vector of the row with the id {records[bad[0]]['id']!r} is not finite"
            raise ModelError(what, "compute it with --precision fp32, or use another model")
        vectors = prepare(vectors, self.similarity)
        # Both are kept: bf16 is scanned, float32 ranks; and how far rounding moved a vector is the bound of the proof.
        rounded = round_to_bf16(vectors)
        lines = [(to_json(record) + "\n").encode() for record in records]
        ends = self._end + np.cumsum([len(line) for line in lines])
        self._append_bytes(VECTORS, vectors.tobytes())
        self._append_bytes(ROUNDED, rounded.tobytes())
        self._append_bytes(ROWS, b"".join(lines))
        self._append_bytes(ENDS, ends.astype("<i8").tobytes())
        self._append_bytes(IDS, np.array([hash_id(record["id"]) for record in records], "<u8").tobytes())
        self.rows, self.coverage, self._end = self.rows + len(lines), self.coverage + coverage, int(ends[-1])
        self._longest = max(self._longest, float(np.linalg.norm(vectors, axis=1).max()))
        self._rounding = max(self._rounding, float(np.linalg.norm(vectors - widen(rounded), axis=1).max()))
        lengths = {"longest": self._longest, "rounding": self._rounding}
        self._write_journal({"rows": self.rows, "coverage": asdict(self.coverage), "end": self._end, **lengths})

    def finish(self) -> ShardInfo:
        """Complete the files and return what the manifest says of them."""
        for name, column in self.columns.items():
            _write_header(self._streams[name], *column, self.rows)
        for stream in self._streams.values():
            stream.flush()
        files = list_files(self.folder, SHARD_FILES)
        source = None if self.origin is None else self.origin["rows"]
        return ShardInfo(self.folder.name, self.rows, self._longest, self._rounding, files, source)


class Shard:
    """A shard on disk, whose files are mapped into memory when they are first read."""

    def __init__(self, folder: Path, info: ShardInfo) -> None:
        self.folder, self.info = folder, info

    @cached_property
    def vectors(self) -> Numbers:
        """The vectors, float32 of shape (rows, dimension)."""
        return self._map_file(VECTORS)

    @cached_property
    def rounded(self) -> Numbers:
        """The vectors in bf16, as the upper halves of their float32 numbers: uint16 of shape (rows, dimension)."""
        return self._map_file(ROUNDED)

    @cached_property
    def ids(self) -> Numbers:
        """The hash of each row's id."""
        return self._map_file(IDS)

    @cached_property
    def _ends(self) -> Numbers:
        return self._map_file(ENDS)

    def read_rows(self, numbers: Iterable[int]) -> list[dict[str, Any]]:
        """Read the rows of some numbers, counted from 0 in this shard."""
        records = []
        with (self.folder / ROWS).open("rb") as stream:
            for number in numbers:
                start = int(self._ends[number - 1]) if number else 0
                stream.seek(start)
                records.append(json.loads(stream.read(int(self._ends[number]) - start)))
        return records

    def _map_file(self, name: str) -> Numbers:
        try:
            mapped: Numbers = map_npy(self.folder / name)
        except ValueError:
            mapped = np.zeros(0)
        if mapped.dtype != _DTYPES[name] or len(mapped) != self.info.rows or not mapped.flags.c_contiguous:
            raise DataError("a file of the index is damaged", "build the index again", file=self.folder / name)
        return mapped


def prepare(vectors: Numbers, similarity: str) -> Numbers:
    """Return vectors as float32, for cosine divided by their length; a vector of zeros stays one."""
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    if similarity == "cosine":
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        vectors = (vectors / np.maximum(lengths, 1e-30)).astype(np.float32)
    return vectors


def round_to_bf16(vectors: Numbers) -> Numbers:
    """Round float32 to the nearest bf16, to even where two are as near; return the upper halves as uint16."""
    bits = np.ascontiguousarray(vectors, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widen(rounded: Numbers) -> Numbers:
    """Return bf16 numbers, given as uint16, as float32."""
    return (rounded.astype(np.uint32) << 16).view(np.float32)


def hash_id(identifier: object) -> int:
    """Return 64 bits of a hash of an id; 1 and "1" are the same id."""
    return int.from_bytes(hashlib.blake2b(str(identifier).encode(), digest_size=8).digest(), "little")


def _write_header(stream: IO[bytes], dtype: str, width: int | None, rows: int) -> int:
    """Write the header of an npy file and return its length, which is the same for any number of rows."""
    stream.seek(0)
    shape = (rows,) if width is None else (rows, width)
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.tell()
