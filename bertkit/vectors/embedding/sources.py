"""Where the rows to embed come from, and how they are split into parts."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bertkit.data.columns import Columns
from bertkit.data.files import read_records
from bertkit.data.rows import canonical_records, is_dropped, placed
from bertkit.errors import DataError
from bertkit.recipe import Data, Row, typed_path
from bertkit.storage.files import to_json
from bertkit.vectors.embedding.units import Unit

T = TypeVar("T")

_ROWS = 4096  # of a part: enough to sort by length, little enough to lose by a kill


@dataclass(frozen=True)
class TextSource:
    """The rows to embed: a file (``-`` for standard input), or one text."""

    file: str | Path | None = None
    text: str | None = None
    data: Data = field(default_factory=Data)
    """How the file is read, and which of its columns are which."""

    @property
    def name(self) -> str:
        """What messages call it."""
        return "--text" if self.file is None else str(self.file)


@dataclass(frozen=True)
class Part:
    """Rows whose vectors are computed together."""

    number: int
    ids: list[Any]
    items: list[Any]
    lines: list[int]

    def digest(self) -> str:
        """Compute a SHA-256 of the rows."""
        return hashlib.sha256(to_json([self.ids, self.items]).encode()).hexdigest()


def read_row_parts(source: TextSource, unit: Unit) -> Iterator[Part]:
    """Yield the rows of a source, a few thousand at a time.

    Raises:
        DataError: a row is wrong.
    """
    rows = _read_rows(source, unit)
    for number in itertools.count():
        part, characters = Part(number, [], [], []), 0
        for line, row_id, item in itertools.islice(rows, _ROWS):
            part.ids.append(row_id)
            part.items.append(item)
            part.lines.append(line)
            # of a target, all words of its row
            read = item[0] if isinstance(item, tuple) else item
            characters += len(read) if isinstance(read, str) else sum(map(len, read))
            if characters > unit.most_characters:
                break
        if not part.ids:
            return
        yield part


def _read_rows(source: TextSource, unit: Unit) -> Iterator[tuple[int, Any, Any]]:
    """Yield line, id (its own, or its number from 0) and what is embedded of each row."""
    if source.file is None:
        yield 1, 0, unit.read({"text": source.text})
        return
    for line, row_id, _, item in read_file_rows(source, source.file, unit.columns, unit.read):
        yield line, row_id, item


def read_file_rows(
    source: TextSource, file: str | Path, columns: Columns, read: Callable[[Row], T]
) -> Iterator[tuple[int, Any, dict[str, Any], T]]:
    """Yield line, id (its own, or its number from 0), raw values and what `read` returns of each row of a file.

    Raises:
        DataError: a row is wrong.
    """
    name, data = source.name, source.data
    if data.columns.get("text", "text") != "text" and "tokens" in columns.given and "tokens" not in data.columns:
        given = tuple("text" if column == "tokens" else column for column in columns.given)
        columns = Columns(given=given, gold="", lists=columns.lists)
    records = _name_column(canonical_records(read_records(typed_path(file), data), data, columns, name))
    number = itertools.count()
    for line, original, row in itertools.islice(records, data.limit):
        with placed(name, line, data, original):
            if is_dropped(original, row, data, columns):
                next(number)
                continue
            own = row.get("id", original.get("id"))
            position = next(number)
            yield line, position if own is None else own, original, read(row)


def _name_column(records: Iterator[T]) -> Iterator[T]:
    """Yield the records; an error that advises to map the column of texts names the shorter option for it."""
    try:
        yield from records
    except DataError as error:
        error.remedy = error.remedy.replace("--set data.columns.text=", "--column ")
        raise
