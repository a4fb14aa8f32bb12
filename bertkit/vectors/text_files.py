"""Files of texts for `embed`, `search`, `cluster` and `dedup`, and the vectors of their rows."""

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
from bertkit.data.remote import find_source, name_source
from bertkit.data.rows import add_row_location, canonical_records, find_drop_reason
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
"""Indices of rows."""

# Rows per part of an output: enough to batch texts of similar length, and few enough to compute again after a kill.
_ROWS = 4096
# Texts that are embedded at a time: enough to batch texts of similar length, and few enough to stay in memory.
_CHUNK = 16_384


class TextRow(NamedTuple):
    """A row of a file, with its text, which can be empty."""

    line: int
    """Line in a text file, or row in a table, from 1."""
    record: dict[str, Any]
    text: str


def read_text_rows(records: Iterable[Record], column: str, file: Path | str) -> Iterator[TextRow]:
    """Yield the rows of a file with the text of a column; a missing value is an empty text.

    Raises:
        DataError: If a row lacks the column, or its value is not a text.
    """
    for record in records:
        yield TextRow(*record, get_text(record, column, file))


def get_text(record: Record, column: str, file: Path | str, option: str = "--column") -> str:
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
    """A file in any format that `predict` reads, and the column with its texts; it can be read several times."""

    path: Path
    column: str = "text"
    data: DataConfig = field(default_factory=DataConfig)

    @classmethod
    def open(cls, file: str | Path, column: str = "text", data: DataConfig | None = None) -> TextFile:
        """Find a file.

        Raises:
            UsageError: If it is standard input.
        """
        if str(file) == "-":
            raise UsageError("the rows are read more than once, and standard input only once", "name a file")
        return cls(find_source(file), column, data or DataConfig())

    @cached_property
    def name(self) -> str:
        """Path of the file, or its address if it was copied from one."""
        return name_source(self.path)

    @cached_property
    def _size_and_time(self) -> tuple[int, int]:
        status = self.path.stat()
        return status.st_size, status.st_mtime_ns

    def __iter__(self) -> Iterator[TextRow]:
        """Yield the rows in the order of the file.

        Raises:
            DataError: If a value is not a text, or the file changes while it is read.
        """
        records = itertools.islice(read_records(self.path, self.data), self.data.limit)
        for row in read_text_rows(records, self.column, self.name):
            yield row._replace(text=row.text.strip())
        # Size and time are those at the end of the first pass. If the file changes later, an index means another row.
        before, now = self._size_and_time, self.path.stat()
        if before != (now.st_size, now.st_mtime_ns):
            raise DataError("the file changed while it was read", "repeat the command", file=self.name)


@dataclass(frozen=True)
class TextSource:
    """The rows to embed: a file (``-`` for standard input), or one text."""

    file: str | Path | None = None
    text: str | None = None
    data: DataConfig = field(default_factory=DataConfig)
    """Format of the file and names of its columns."""

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
        """Compute a SHA-256 of the rows, by which a resumed command finds the parts that are complete."""
        return hashlib.sha256(to_json([self.ids, self.items]).encode()).hexdigest()


def read_row_parts(source: TextSource, unit: Unit) -> Iterator[Part]:
    """Yield the rows of a source in parts of a few thousand, or fewer if their texts are long.

    Raises:
        DataError: If a row is not valid.
    """
    rows = _read_rows(source, unit)
    while True:
        part, characters = Part([], []), 0
        for row_id, item in itertools.islice(rows, _ROWS):
            part.ids.append(row_id)
            part.items.append(item)
            # An item is a text, a list of words, or a list of words with the index of the target word.
            content = item[0] if isinstance(item, tuple) else item
            characters += len(content) if isinstance(content, str) else sum(map(len, content))
            if characters > unit.max_characters:
                break
        if not part.ids:
            return
        yield part


def _read_rows(source: TextSource, unit: Unit) -> Iterator[tuple[Any, Any]]:
    """Yield the id of each row, or its index if it has no id, and the item to embed."""
    if source.file is None:
        yield 0, unit.read({"text": source.text})
        return
    for _, row_id, _, item in read_file_rows(source, source.file, unit.columns, unit.read):
        yield row_id, item


def read_file_rows(
    source: TextSource, file: str | Path, columns: ColumnSpec, read: Callable[[Row], T]
) -> Iterator[tuple[int, Any, dict[str, Any], T]]:
    """Yield the line, the id, the raw values and the result of `read` for each row of a file.

    A row without an id gets its index, from 0.

    Raises:
        DataError: If a row is not valid.
    """
    name, data = source.name, source.data
    # A column that the user names for texts replaces the column of words, which would be read first.
    if data.columns.get("text", "text") != "text" and "tokens" in columns.inputs and "tokens" not in data.columns:
        names = tuple("text" if column == "tokens" else column for column in columns.inputs)
        columns = ColumnSpec(inputs=names, gold="", lists=columns.lists)
    records = _name_column(canonical_records(read_records(find_source(file), data), data, columns, name))
    indices = itertools.count()
    for line, original, row in itertools.islice(records, data.limit):
        with add_row_location(name, line, data, original):
            # A dropped row counts, so that indices are the same as in the file.
            index = next(indices)
            if find_drop_reason(original, row, data, columns):
                continue
            row_id = row.get("id", original.get("id"))
            yield line, index if row_id is None else row_id, original, read(row)


def _name_column(records: Iterator[T]) -> Iterator[T]:
    """Yield the records; replace the option for the column of texts in the remedies of errors by ``--column``."""
    try:
        yield from records
    except DataError as error:
        error.remedy = error.remedy.replace("--set data.columns.text=", "--column ")
        raise


@dataclass(frozen=True)
class VectorSource:
    """Source of the vectors of texts: a model that computes them, or files of vectors."""

    model: str | None = None
    files: tuple[Path, ...] = ()
    """One file of vectors per file of texts, in the same order."""
    prompt: str | None = None
    """Name of one of the model's prompts."""
    prefix: str | None = None
    """Text of a prompt, instead of a named prompt."""

    @cached_property
    def embedder(self) -> Embedder | None:
        """The model, not yet loaded, or None if vectors are read from files.

        Raises:
            UsageError: If a model and files are both given, or neither.
            BertkitError: If the model cannot be used.
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
        """Return the properties that comparable vectors share, or None if the files do not state them."""
        if self.embedder is not None:
            return self.embedder.describe()
        descriptions = [read_description(file) for file in self.files]
        return next((description for description in descriptions if description is not None), None)

    def read(self, texts: Iterable[str], rows: Rows, totals: Sequence[int]) -> Matrix:
        """Return the vectors of texts, (texts, dimension).

        Args:
            texts: Texts that a model reads.
            rows: Indices of the texts among the rows of all files, from 0, which select vectors of files.
            totals: Number of rows of each file.

        Raises:
            DataError: If a value is not finite, or the number of vectors in a file is not its number of rows.
        """
        if self.embedder is None:
            pairs = zip(self.files, totals, strict=True)
            return np.concatenate([read_vectors(file, total) for file, total in pairs])[rows]
        chunks, remaining = [], iter(texts)
        while chunk := list(itertools.islice(remaining, _CHUNK)):
            chunks.append(self.embedder.encode(chunk))
            check_finite(chunks[-1], self.model)
        return np.concatenate(chunks) if chunks else np.zeros((0, 0), dtype=np.float32)
