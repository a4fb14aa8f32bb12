"""The rows of a file with a text each, as `search`, `cluster` and `dedup` read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.data.text import Record, excerpt
from bertkit.errors import DataError, closest


class TextRow(NamedTuple):
    """A row of a file: its line or row number from 1, all of its columns, and its text, which may be empty."""

    line: int
    record: dict[str, Any]
    text: str


def read_text_rows(records: Iterable[Record], column: str, file: Path | str) -> Iterator[TextRow]:
    """Yield the rows of a file with the text of a column; where there is no value, the text is empty.

    Raises:
        DataError: a row lacks the column, or has something other than a text there.
    """
    for record in records:
        yield TextRow(*record, text_of(record, column, file))


def text_of(record: Record, column: str, file: Path | str, option: str = "--column") -> str:
    """Return the text of a column of a row; empty where there is no value.

    Raises:
        DataError: the row lacks the column, or has something other than a text there; `option` names another.
    """
    line, values = record
    if column not in values:
        raise DataError(f"no column {column!r}", f"{closest(column, values)}; name it with {option}", file=file)
    text = values[column]
    if text is not None and not isinstance(text, str):
        what = f"not a text: {excerpt(str(text))}"
        raise DataError(what, f"name another {option}", file=file, row=line, column=column)
    return text or ""
