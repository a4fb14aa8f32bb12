"""The texts of a file, read as often as needed and never kept, and vectors for them: computed, or read from a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bertkit.data.files import read_records
from bertkit.data.text import excerpt
from bertkit.errors import DataError, UsageError, closest
from bertkit.progress import SILENT, Progress, stage
from bertkit.recipe import Data, typed_path

if TYPE_CHECKING:
    from bertkit.vectors.embedder import Embedder

Vectors = np.ndarray[Any, np.dtype[np.float32]]
Rows = np.ndarray[Any, np.dtype[np.int64]]

VECTOR_ENDINGS = (".parquet", ".npy", ".safetensors", ".jsonl")
_CHUNK = 16_384  # texts that are embedded at a time: many to sort by length, few beside their vectors


class TextRow(NamedTuple):
    """A row of a file: its line or row number from 1, all of its columns, and its text, which may be empty."""

    line: int
    record: dict[str, Any]
    text: str


@dataclass(frozen=True)
class TextFile:
    """A file in any format that `predict` reads, and the column with its texts."""

    path: Path
    column: str = "text"

    @classmethod
    def open(cls, file: str | Path, column: str = "text") -> TextFile:
        """Return a file that can be read more than once.

        Raises:
            UsageError: it is standard input.
        """
        if str(file) == "-":
            raise UsageError("the rows are read more than once, and standard input only once", "name a file")
        return cls(typed_path(file), column)

    @cached_property
    def _stamp(self) -> tuple[int, int]:
        status = self.path.stat()
        return status.st_size, status.st_mtime_ns

    def __iter__(self) -> Iterator[TextRow]:
        """Yield the rows in the order of the file.

        Raises:
            DataError: a row without the column, or with something other than a text; the file has changed meanwhile.
        """
        for line, record in read_records(self.path, Data()):
            if self.column not in record:
                hint = f"{closest(self.column, record)}; name it with --column"
                raise DataError(f"no column {self.column!r}", hint, file=self.path)
            text = record[self.column]
            if text is not None and not isinstance(text, str):
                what = f"not a text: {excerpt(str(text))}"
                raise DataError(what, "name another --column", file=self.path, row=line, column=self.column)
            yield TextRow(line, record, (text or "").strip())
        before, now = self._stamp, self.path.stat()
        if before != (now.st_size, now.st_mtime_ns):
            raise DataError("the file changed while it was read", "repeat the command", file=self.path)


@dataclass(frozen=True)
class VectorSource:
    """Where the vectors of texts come from: a model that computes them, or files that have them already."""

    model: str | None = None
    files: tuple[Path, ...] = ()
    """One file of vectors per file of texts, in the same order."""
    prompt: str | None = None

    @cached_property
    def embedder(self) -> Embedder | None:
        """The model, not yet loaded; None where vectors are read from files.

        Raises:
            UsageError: both are given, or none.
            BertkitError: the model cannot be used.
        """
        from bertkit.vectors.embedder import Embedder

        if (self.model is None) != bool(self.files):
            what = "no vectors" if self.model is None else "--model and --vectors"
            raise UsageError(what, "name a --model, or a file with --vectors")
        if self.model is None:
            if self.prompt is not None:
                raise UsageError("--prompt without --model", "a prompt belongs to a model that reads texts")
            return None
        embedder = Embedder(self.model, prompt=self.prompt)
        _ = embedder.modules  # what is wrong with the folder or the prompt is said before torch is imported
        return embedder

    def read(self, texts: Iterable[str], rows: Rows, totals: Sequence[int], progress: Progress = SILENT) -> Vectors:
        """Return the vectors of texts, (texts, dimension).

        Args:
            texts: what a model reads, in chunks.
            rows: the numbers of their rows among those of all files, from 0, by which vectors of files are chosen.
            totals: the number of rows of each file.
            progress: shows how far it is.

        Raises:
            DataError: a number is not finite, or a file has not one vector per row.
        """
        if self.embedder is None:
            return np.concatenate(
                [read_vectors(file, total, progress=progress) for file, total in zip(self.files, totals, strict=True)]
            )[rows]
        chunks, remaining = [], iter(texts)
        while chunk := list(islice(remaining, _CHUNK)):
            chunks.append(self.embedder.encode(chunk, progress=progress))
            refuse_not_finite(chunks[-1], self.model)
        return np.concatenate(chunks) if chunks else np.zeros((0, 0), dtype=np.float32)


def read_vectors(file: Path, rows: int, column: str = "embedding", progress: Progress = SILENT) -> Vectors:
    """Read the vectors of `rows` rows, one per row and in their order, as float32.

    A Parquet or JSON lines file has them in a column, npy and safetensors files are one array.

    Raises:
        UsageError: the file has another ending.
        DataError: it has no vectors, or not one per row, or a number that is not finite.
    """
    if file.suffix not in VECTOR_ENDINGS:
        raise UsageError(
            f"{file}: unknown ending {file.suffix!r}", f"vectors are read from {', '.join(VECTOR_ENDINGS)}"
        )
    if not file.is_file():
        raise DataError("no such file", "name the file that `bertkit embed` wrote", file=file)
    with stage(progress, "reading vectors"):
        try:
            vectors = _READERS[file.suffix](file, column)
        except (ValueError, OSError, KeyError) as error:
            raise DataError(f"the vectors cannot be read: {error}", "write the file again", file=file) from None
    if vectors.ndim != 2 or vectors.dtype.kind != "f":
        what = f"an array of {vectors.dtype} with {vectors.ndim} axes, not rows of floating-point numbers"
        raise DataError(what, "write float32 or float16 vectors, one per row", file=file)
    if len(vectors) != rows:
        raise DataError(f"{len(vectors):,} vectors for {rows:,} rows", "give one per row, in the same order", file=file)
    refuse_not_finite(vectors, file)
    return vectors.astype(np.float32, copy=False)


def refuse_not_finite(vectors: Vectors, source: object) -> None:
    """Check that all numbers are finite.

    Raises:
        DataError: one is not; it has the row.
    """
    wrong = np.flatnonzero(~np.isfinite(vectors.sum(axis=1, dtype=np.float64)))
    if len(wrong):
        what = "a vector with a number that is not finite"
        raise DataError(what, "compute the vectors again", file=source, row=int(wrong[0]) + 1)


def to_unit_length(vectors: Vectors) -> Vectors:
    """Return vectors of length 1, so that their products are cosines; a vector of zeros stays as it is."""
    lengths: Vectors = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.maximum(lengths, 1e-12)).astype(np.float32, copy=False)


def _read_parquet(file: Path, column: str) -> np.ndarray[Any, Any]:
    from pyarrow import parquet

    names = parquet.read_schema(file).names
    _check_column(file, column, names)
    array = parquet.read_table(file, columns=[column])[column].combine_chunks()
    if array.null_count:
        raise ValueError("a row without a vector")
    values: np.ndarray[Any, Any] = array.flatten().to_numpy(zero_copy_only=False)
    if len(values) % max(len(array), 1):
        raise ValueError("they differ in length")
    return values.reshape(len(array), -1)


def _read_jsonl(file: Path, column: str) -> np.ndarray[Any, Any]:
    vectors = []
    with file.open(encoding="utf-8") as lines:
        for record in map(json.loads, filter(str.strip, lines)):
            _check_column(file, column, list(record))
            vectors.append(np.array(record[column], dtype=np.float32))
    return np.stack(vectors)


def _read_npy(file: Path, _: str) -> np.ndarray[Any, Any]:
    vectors: np.ndarray[Any, Any] = np.load(file, allow_pickle=False, mmap_mode="r")
    return vectors


def _read_safetensors(file: Path, column: str) -> np.ndarray[Any, Any]:
    from safetensors.numpy import load_file

    tensors = load_file(file)
    if len(tensors) == 1:
        return next(iter(tensors.values()))
    _check_column(file, column, list(tensors))
    return tensors[column]


def _check_column(file: Path, column: str, names: list[str]) -> None:
    if column not in names:
        raise DataError(f"no vectors in a column {column!r}", closest(column, names), file=file)


_READERS = {".parquet": _read_parquet, ".jsonl": _read_jsonl, ".npy": _read_npy, ".safetensors": _read_safetensors}
