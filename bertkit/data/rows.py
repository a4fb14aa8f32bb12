"""Rows with canonical columns: raw columns are mapped, checked and named here, once."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bertkit.data.formats.csv import Record, looks_like_data
from bertkit.errors import DataError, closest
from bertkit.recipe import Data, Row, assignment

log = logging.getLogger("bertkit")

_encode = json.JSONEncoder(sort_keys=True, ensure_ascii=False, default=str).encode


@dataclass(frozen=True)
class Columns:
    """The canonical columns that a task family reads; an optional one counts where a recipe maps it."""

    given: tuple[str, ...]
    """What the model is given, such as ``text``."""
    gold: str
    """The answer, such as ``label``; empty where rows need not have one."""
    optional: tuple[str, ...] = ()
    blank: tuple[str, ...] = ()
    """Those that may be blank text."""
    lists: tuple[str, ...] = ()
    """Those that hold several values, which may come from several columns of the source."""
    text_instead: Mapping[str, str] = field(default_factory=dict)
    """Given column -> the column that may stand in for it in rows to predict, such as plain text for its words."""
    text_always: bool = False
    """Whether it may stand in for it in labelled rows too."""

    @property
    def names(self) -> list[str]:
        """All canonical columns that a recipe may map."""
        gold = [self.gold] if self.gold else []
        return list(dict.fromkeys([*self.given, *self.optional, *self.text_instead.values(), *gold, "id"]))


@dataclass(frozen=True)
class Split:
    """The rows of one split, each with its line (or row number) in the source."""

    name: str
    source: str
    rows: list[Row]
    lines: list[int]

    def fingerprint(self) -> str:
        """Give a SHA-256 over the canonical rows: equal rows give equal fingerprints, whatever file they came from."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256()
        for row in self.rows:
            feed_row(digest, row)
        return digest.hexdigest()


def canonical_records(
    records: Iterable[Record], data: Data, columns: Columns, source: str
) -> Iterator[tuple[int, dict[str, Any], Row]]:
    """Give (line, raw values, row with canonical columns) for each record.

    Raises:
        DataError: a column is missing; it lists the columns there are.
    """
    names: dict[str, list[str]] | None = None
    for line, values in records:
        if names is None:
            names = map_columns(list(values), data, columns, source)
        row = {
            canonical: [values[name] for name in actual] if len(actual) > 1 else values[actual[0]]
            for canonical, actual in names.items()
        }
        yield line, values, row


def map_columns(there: list[str], data: Data, columns: Columns, source: str) -> dict[str, list[str]]:
    """Map each canonical column to the actual ones it is made of; an optional one counts when the recipe maps it.

    In rows to predict, ``id`` may be missing, and a column may stand in for another (`Columns.text_instead`).

    Raises:
        DataError: a wanted column is not there, two canonical columns share one, or the header is a row of data.
    """
    optional = [name for name in (*columns.optional, "id") if name in data.columns]
    gold = [columns.gold] if columns.gold else []
    wanted = {name: _actual(name, data) for name in dict.fromkeys((*columns.given, *optional, *gold))}
    _make_do(wanted, there, data, columns)
    for canonical, actual in wanted.items():
        if len(actual) > 1 and canonical not in columns.lists:
            raise DataError(f"{canonical} is one column, not {len(actual)}", "name one in data.columns", file=source)
        for name in actual:
            if name not in there:
                raise _missing_column(canonical, name, there, source)
    named = [name for actual in wanted.values() for name in actual]
    twice = {name for name in named if named.count(name) > 1}
    if twice:
        both = " and ".join(name for name, actual in wanted.items() if twice & set(actual))
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
    read: Callable[[Row], Row | None],
    source: str | Path,
) -> Split:
    """Read the rows of a split through a task family's ``read``.

    Raises:
        DataError: rows are wrong; the first is described, the others of the same kind are counted and listed.
    """
    rows: list[Row] = []
    lines: list[int] = []
    faults: list[DataError] = []
    seen: dict[str, int] = {}
    left_out = 0
    for line, _, row in canonical_records(records, data, columns, str(source)):
        if data.limit is not None and len(rows) >= data.limit:
            break
        try:
            with placed(source, line, data):
                if is_dropped(row, data, columns):
                    continue
                known = read(row)
                if known is None:
                    left_out += 1
                    continue
                first = seen.setdefault(str(known["id"]), line) if "id" in known else line
                if first != line:
                    raise DataError(f"the id {known['id']!r} is that of line {first} too", "give each row its own")
                rows.append(known)
                lines.append(line)
        except DataError as error:
            faults.append(error)
    if faults:
        raise first_of(faults)
    if left_out:
        log.info(f"{left_out:,} rows of {source} have no labels: they are left out")
    if not rows:
        raise DataError(f"the {name} split has no rows", "give it some", file=source)
    return Split(name, str(source), rows, lines)


@contextmanager
def placed(source: str | Path, line: int, data: Data) -> Iterator[None]:
    """Say in every DataError where in the source the row is, and what the source calls the column."""
    try:
        yield
    except DataError as error:
        error.file, error.row = str(source), line
        error.column = " ".join(_actual(error.column, data)) if error.column else None
        raise


def feed_row(digest: Any, row: Row) -> None:
    """Feed a canonical row to a digest, the same bytes whatever file it came from."""
    digest.update(_encode(row).encode())


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


def is_dropped(row: Row, data: Data, columns: Columns) -> bool:
    """Tell whether a row has a blank text that is to be dropped; refuse one that is not."""
    if data.empty_text == "keep":
        return False
    may_be_blank = (columns.gold, *columns.blank)
    blank = next((column for column in row if column not in may_be_blank and is_blank(row[column])), None)
    if blank is not None and data.empty_text == "refuse":
        raise DataError("no text", "fill it in, or --set data.empty_text=drop (or keep)", column=blank)
    return blank is not None


def _actual(canonical: str, data: Data) -> list[str]:
    """Give the source's columns that a canonical one is made of."""
    mapped = data.columns.get(canonical, canonical)
    return [mapped] if isinstance(mapped, str) else mapped


def _make_do(wanted: dict[str, list[str]], there: list[str], data: Data, columns: Columns) -> None:
    """Do without an id in rows to predict, and with what may stand in for a column that is not there."""
    if not columns.gold and not set(wanted.get("id", ())) <= set(there):
        del wanted["id"]
    if columns.gold and not columns.text_always:
        return
    for name, instead in columns.text_instead.items():
        if not set(wanted[name]) <= set(there) and set(_actual(instead, data)) <= set(there):
            del wanted[name]
            wanted[instead] = _actual(instead, data)


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
