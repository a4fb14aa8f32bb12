"""Files of texts, as `embed`, `search`, `cluster` and `dedup` read them, and the vectors of their rows."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from bertkit.data.columns import ColumnSpec
from bertkit.data.files import read_records
from bertkit.data.remote import find_source
from bertkit.data.rows import add_row_location, canonical_records, is_dropped
from bertkit.data.text import Record, excerpt
from bertkit.errors import DataError, UsageError, did_you_mean
from bertkit.recipe.records import DataConfig
from bertkit.recipe.sections import Row
from bertkit.storage.files import to_json
from bertkit.vectors.embedder import Embedder
from bertkit.vectors.units import Unit
from bertkit.vectors.vector_files import Matrix, check_finite, read_description, read_vectors

T = TypeVar("T")

Rows = np.ndarray[Any, np.dtype[np.int64]]

_ROWS = 4096  # per part: enough to sort by length, few enough to compute again after a kill
# Texts that are embedded at a time: enough to sort by length, few enough to keep next to their vectors.
_CHUNK = 16_384


class TextRow(NamedTuple):
    """A row of a file: its line or row number from 1, all of its columns, and its text, which may be empty."""

    line: int
    record: dict[str, Any]
    text: str


def read_text_rows(records: Iterable[Record], column: str, file: Path | str) -> Iterator[TextRow]:
    """Yield the rows of a file with the text of a column; a missing value is an empty text.

    Raises:
        DataError: If a row lacks the column, or its value is not a text.
    """
    for record in records:
        yield TextRow(*record, text_of(record, column, file))


def text_of(record: Record, column: str, file: Path | str, option: str = "--column") -> str:
    """Return the text of a column of a row; a missing value is an empty text.

    Raises:
        DataError: If the row lacks the column, or its value is not a text; the remedy names `option`.
    """
    line, values = record
    if column not in values:
        raise DataError(f"no column {column!r}", f"{did_you_mean(column, values)}; name it with {option}", file=file)
    text = values[column]
    if text is not None and not isinstance(text, str):
        message = f"not a text: {excerpt(str(text))}"
        raise DataError(message, f"name another {option}", file=file, row=line, column=column)
    return text or ""


@dataclass(frozen=True)
class TextFile:
    """A file in any format that `predict` reads, and the column with its texts."""

    path: Path
    column: str = "text"
    data: DataConfig = field(default_factory=DataConfig)

    @classmethod
    def open(cls, file: str | Path, column: str = "text", data: DataConfig | None = None) -> TextFile:
        """Return a file that can be read more than once.

        Raises:
            UsageError: If it is standard input.
        """
        if str(file) == "-":
            raise UsageError("the rows are read more than once, and standard input only once", "name a file")
        return cls(find_source(file), column, data or DataConfig())

    @cached_property
    def _stamp(self) -> tuple[int, int]:
        status = self.path.stat()
        return status.st_size, status.st_mtime_ns

    def __iter__(self) -> Iterator[TextRow]:
        """Yield the rows in the order of the file.

        Raises:
            DataError: If a value is not a text, or the file changes while it is read.
        """
        records = itertools.islice(read_records(self.path, self.data), self.data.limit)
        for row in read_text_rows(records, self.column, self.path):
            yield row._replace(text=row.text.strip())
        before, now = self._stamp, self.path.stat()
        if before != (now.st_size, now.st_mtime_ns):
            raise DataError("the file changed while it was read", "repeat the command", file=self.path)


@dataclass(frozen=True)
class TextSource:
    """The rows to embed: a file (``-`` for standard input), or one text."""

    file: str | Path | None = None
    text: str | None = None
    data: DataConfig = field(default_factory=DataConfig)
    """How the file is read, and which of its columns are which."""

    @property
    def name(self) -> str:
        """Name for messages."""
        return "--text" if self.file is None else str(self.file)


@dataclass(frozen=True)
class Part:
    """Rows whose vectors are computed together."""

    ids: list[Any]
    items: list[Any]

    def digest(self) -> str:
        """Compute a SHA-256 of the rows."""
        return hashlib.sha256(to_json([self.ids, self.items]).encode()).hexdigest()


def read_row_parts(source: TextSource, unit: Unit) -> Iterator[Part]:
    """Yield the rows of a source, a few thousand at a time.

    Raises:
        DataError: a row is wrong.
    """
    rows = _read_rows(source, unit)
    while True:
        part, characters = Part([], []), 0
        for row_id, item in itertools.islice(rows, _ROWS):
            part.ids.append(row_id)
            part.items.append(item)
            # A target has all words of its row.
            read = item[0] if isinstance(item, tuple) else item
            characters += len(read) if isinstance(read, str) else sum(map(len, read))
            if characters > unit.max_characters:
                break
        if not part.ids:
            return
        yield part


def _read_rows(source: TextSource, unit: Unit) -> Iterator[tuple[Any, Any]]:
    """Yield the id of each row (its own, or its index) and the item to embed."""
    if source.file is None:
        yield 0, unit.read({"text": source.text})
        return
    for _, row_id, _, item in read_file_rows(source, source.file, unit.columns, unit.read):
        yield row_id, item


def read_file_rows(
    source: TextSource, file: str | Path, columns: ColumnSpec, read: Callable[[Row], T]
) -> Iterator[tuple[int, Any, dict[str, Any], T]]:
    """Yield line, id (its own, or its number from 0), raw values and what `read` returns of each row of a file.

    Raises:
        DataError: a row is wrong.
    """
    name, data = source.name, source.data
    if data.columns.get("text", "text") != "text" and "tokens" in columns.inputs and "tokens" not in data.columns:
        names = tuple("text" if column == "tokens" else column for column in columns.inputs)
        columns = ColumnSpec(inputs=names, gold="", lists=columns.lists)
    records = _name_column(canonical_records(read_records(find_source(file), data), data, columns, name))
    number = itertools.count()
    for line, original, row in itertools.islice(records, data.limit):
        with add_row_location(name, line, data, original):
            if is_dropped(original, row, data, columns):
                next(number)
                continue
            row_id = row.get("id", original.get("id"))
            position = next(number)
            yield line, position if row_id is None else row_id, original, read(row)


def _name_column(records: Iterator[T]) -> Iterator[T]:
    """Yield the records; an error that advises to map the column of texts names the shorter option for it."""
    try:
        yield from records
    except DataError as error:
        error.remedy = error.remedy.replace("--set data.columns.text=", "--column ")
        raise


@dataclass(frozen=True)
class VectorSource:
    """Where the vectors of texts come from: a model that computes them, or files that have them already."""

    model: str | None = None
    files: tuple[Path, ...] = ()
    """One file of vectors per file of texts, in the same order."""
    prompt: str | None = None
    """Name of one of the model's prompts."""
    prefix: str | None = None
    """A prompt in full, instead of a named one."""

    @cached_property
    def embedder(self) -> Embedder | None:
        """The model, not yet loaded, or None if vectors are read from files.

        Raises:
            UsageError: both are given, or none.
            BertkitError: the model cannot be used.
        """
        if (self.model is None) != bool(self.files):
            message = "no vectors" if self.model is None else "--model and --vectors"
            raise UsageError(message, "name a --model, or a file with --vectors")
        if self.model is None:
            if self.prompt is not None or self.prefix is not None:
                raise UsageError("a prompt without --model", "a prompt belongs to a model that reads texts")
            return None
        embedder = Embedder(self.model, prompt=self.prompt, prefix=self.prefix)
        # Reject a wrong folder or prompt before torch is imported.
        _ = embedder.modules
        return embedder

    @property
    def prompt_text(self) -> str:
        """Prompt that a model reads before each text."""
        return self.embedder.prompt_text if self.embedder else ""

    def describe(self) -> dict[str, Any] | None:
        """Return the properties that comparable vectors share, or None if files do not have them."""
        if self.embedder is not None:
            return self.embedder.describe()
        descriptions = [read_description(file) for file in self.files]
        return next((description for description in descriptions if description is not None), None)

    def read(self, texts: Iterable[str], rows: Rows, totals: Sequence[int]) -> Matrix:
        """Return the vectors of texts, (texts, dimension).

        Args:
            texts: Texts for a model.
            rows: Their rows among the rows of all files, counted from 0, to select vectors of files.
            totals: Number of rows of each file.

        Raises:
            DataError: a number is not finite, or a file has not one vector per row.
        """
        if self.embedder is None:
            pairs = zip(self.files, totals, strict=True)
            return np.concatenate([read_vectors(file, total) for file, total in pairs])[rows]
        chunks, remaining = [], iter(texts)
        while chunk := list(itertools.islice(remaining, _CHUNK)):
            chunks.append(self.embedder.encode(chunk))
            check_finite(chunks[-1], self.model)
        return np.concatenate(chunks) if chunks else np.zeros((0, 0), dtype=np.float32)
