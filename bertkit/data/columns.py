"""The columns of a source: what is said where one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from bertkit.data.formats import format_of
from bertkit.data.formats.csv import looks_like_data
from bertkit.data.text import Record, source_column
from bertkit.errors import DataError, closest
from bertkit.recipe import Data, assignment


def missing_column(canonical: str, actual: str, source_names: list[str], source: str, data: Data) -> DataError:
    """Build the error for a column that a source does not have; it says what the source has instead."""
    if looks_like_data(source_names):
        return no_header(source_names, source)
    if source_names == [source_column("text", data)] and _has_lines(source, data):
        what = f"no column {actual!r}: each line is one text, and there are no other columns"
        return DataError(what, "if tabs separate columns: --set data.format=tsv", file=source)
    near = closest(actual, source_names)
    guess = near.removeprefix("did you mean ").split(" or ")[0].rstrip("?") if near.startswith("did") else "COLUMN"
    return DataError(
        f"no column {actual!r}; there are {', '.join(map(repr, source_names))}",
        f"--set {assignment(f'data.columns.{canonical}', guess)}",
        file=source,
    )


def names_recur(first: dict[str, Any], records: Iterator[Record]) -> bool:
    """Tell whether a column's name is one of its values in the first rows, as that of a label would be."""
    rows = [first]
    with suppress(DataError):
        rows += [row for _, row in islice(records, 100)]
    return any(row.get(name) == name for row in rows for name in first)


def no_header(source_names: list[str], source: str) -> DataError:
    """Build the error for a file whose first line is a row and names no columns."""
    example = ", ".join(["text", "label", "c", "d", "e"][: len(source_names)])
    return DataError(
        f"no header: the first line looks like data ({', '.join(map(repr, source_names[:4]))[:120]})",
        f"name the columns: --set 'data.header=[{example}]'",
        file=source,
        row=1,
    )


def _has_lines(source: str, data: Data) -> bool:
    """Tell whether a source is read as one text per line."""
    found = format_of(source)[0]
    return (found.NAME if found and data.format == "auto" else data.format) in ("txt", "lines")
