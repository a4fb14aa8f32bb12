"""Rows with canonical columns: raw columns are mapped, checked and named here, once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.data.csv_files import Record, looks_like_data
from bertkit.errors import DataError
from bertkit.recipe import Data, Row, assignment, closest


@dataclass(frozen=True)
class Columns:
    """The canonical columns that a task family reads; an optional one counts where a recipe maps it."""

    given: tuple[str, ...]
    """What the model is given, such as ``text``."""
    gold: str
    """The answer, such as ``label``; empty where rows need not have one."""
    optional: tuple[str, ...] = ()


@dataclass(frozen=True)
class Split:
    """The rows of one split, each with its line (or row number) in the source."""

    name: str
    source: str
    rows: list[Row]
    lines: list[int]

    def fingerprint(self) -> str:
        """Give a SHA-256 over the canonical rows: equal rows give equal fingerprints, whatever file they came from."""
        digest = hashlib.sha256()
        for row in self.rows:
            digest.update(json.dumps(row, sort_keys=True, ensure_ascii=False, default=str).encode())
        return digest.hexdigest()


def canonical_records(
    records: Iterable[Record], data: Data, columns: Columns, source: str
) -> Iterator[tuple[int, dict[str, Any], Row]]:
    """Give (line, raw values, row with canonical columns) for each record.

    Raises:
        DataError: a column is missing; it lists the columns there are.
    """
    names: dict[str, str] | None = None
    for line, values in records:
        if names is None:
            names = map_columns(list(values), data, columns, source)
        yield line, values, {canonical: values[actual] for canonical, actual in names.items()}


def map_columns(there: list[str], data: Data, columns: Columns, source: str) -> dict[str, str]:
    """Map canonical to actual columns; an optional one counts when the recipe maps it.

    Raises:
        DataError: a wanted column is not there, two canonical columns share one, or the header is a row of data.
    """
    optional = [name for name in (*columns.optional, "id") if name in data.columns]
    gold = [columns.gold] if columns.gold else []
    wanted = {name: data.columns.get(name, name) for name in (*columns.given, *optional, *gold)}
    for canonical, actual in wanted.items():
        if actual not in there:
            raise _missing_column(canonical, actual, there, source)
    twice = {actual for actual in wanted.values() if list(wanted.values()).count(actual) > 1}
    if twice:
        both = " and ".join(name for name, actual in wanted.items() if actual in twice)
        raise DataError(
            f"{both} are the same column {min(twice)!r}",
            "map them to two columns in data.columns",
            file=source,
        )
    return wanted


def read_split(
    name: str,
    records: Iterable[Record],
    data: Data,
    columns: Columns,
    read: Callable[[Row], Row],
    source: str | Path,
) -> Split:
    """Read the rows of a split through a task family's ``read``.

    Raises:
        DataError: rows are wrong; the first is described, the others of the same kind are counted and listed.
    """
    rows: list[Row] = []
    lines: list[int] = []
    faults: list[DataError] = []
    for line, _, row in canonical_records(records, data, columns, str(source)):
        if data.limit is not None and len(rows) >= data.limit:
            break
        try:
            blank = next((column for column in row if column != columns.gold and is_blank(row[column])), None)
            if blank is not None and data.empty_text == "drop":
                continue
            if blank is not None and data.empty_text == "refuse":
                raise DataError("no text", "fill it in, or --set data.empty_text=drop (or keep)", column=blank)
            rows.append(read(row))
            lines.append(line)
        except DataError as error:
            error.file, error.row = str(source), line
            error.column = data.columns.get(error.column or "", error.column)
            faults.append(error)
    if faults:
        raise first_of(faults)
    if not rows:
        raise DataError(f"the {name} split has no rows", "give it some", file=source)
    return Split(name, str(source), rows, lines)


def is_blank(value: Any) -> bool:
    """Tell whether a value is text without a visible character.

    >>> is_blank("  "), is_blank("NA"), is_blank(0)
    (True, False, False)
    """
    return isinstance(value, str) and not value.strip()


def first_of(faults: list[DataError]) -> DataError:
    """Give the first fault, with the lines of the others of its kind."""
    first = faults[0]
    alike = [str(fault.row) for fault in faults[1:] if fault.what == first.what]
    if alike:
        shown = ", ".join(alike[:10]) + (", ..." if len(alike) > 10 else "")
        first.what += f" (also in line{'s' if len(alike) > 1 else ''} {shown})"
    return first


def _missing_column(canonical: str, actual: str, there: list[str], source: str) -> DataError:
    if looks_like_data(there):
        return DataError(
            f"no header: the first line looks like data ({', '.join(map(repr, there[:4]))[:120]})",
            f"name the columns: --set 'data.header=[{', '.join(['text', 'label', 'c', 'd', 'e'][: len(there)])}]'",
            file=source,
            row=1,
        )
    near = closest(actual, there)
    return DataError(
        f"no column {actual!r}; there are {', '.join(map(repr, there))}",
        f"--set {assignment(f'data.columns.{canonical}', _guess(near, there))}",
        file=source,
    )


def _guess(near: str, there: list[str]) -> str:
    return near.removeprefix("did you mean ").split(" or ")[0].rstrip("?") if near.startswith("did") else "COLUMN"
