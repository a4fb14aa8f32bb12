"""The page about the mistakes of a run, or the rows where two runs differ: tables that sort and can be searched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertkit.reports import svg
from bertkit.reports.templates import name_model, write_page

MAX_ROWS = 2000  # of a table; a page of them has about 1 MB
_MAX_SPANS = 12

SCRIPTS = ("tables.js",)


@dataclass(frozen=True)
class ErrorTable:
    """A table of answers on the page."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    """Cells: texts, or numbers to sort by."""
    total: int
    """How many rows there are; more than are shown, perhaps."""


def write_mistakes(file: Path, result: Any) -> None:
    """Write the page of what a run gets wrong; `result` as `bertkit.workflows.errors.find_errors` returns it."""
    columns = ("row", "confidence", "error", "words", "gold", "predicted", "text")
    rows = [
        (one.id, one.confidence, one.error, one.words, one.gold, one.predicted, one.text)
        for one in result.mistakes[:MAX_ROWS]
    ]
    table = ErrorTable("mistakes", "What it gets wrong", columns, rows, len(result.mistakes))
    _write_tables(file, result, f"{result.recipe}: mistakes of {name_model(result.run)}", [table])


def write_disagreement(file: Path, result: Any) -> None:
    """Write the page of where two runs differ; `result` as `bertkit.workflows.errors.find_disagreement` returns it."""
    names = [name_model(run) for run in (result.first, result.second)]
    if names[0] == names[1]:
        names = [f"{name} ({side})" for name, side in zip(names, ("first", "second"), strict=True)]
    named = replace(result, first=names[0], second=names[1])
    tables = []
    for name, worse, pairs in (
        ("second", named.second, named.only_second_wrong),
        ("first", named.first, named.only_first_wrong),
    ):
        columns = ("row", "confidence", "words", "gold", named.first, named.second, "text")
        side = name == "second"
        rows = [
            (one.id, (one, other)[side].confidence, one.words, one.gold, one.predicted, other.predicted, one.text)
            for one, other in pairs[:MAX_ROWS]
        ]
        tables.append(ErrorTable(name, f"Only {worse} is wrong, or more so", columns, rows, len(pairs)))
    _write_tables(file, named, f"{named.recipe}: {named.first} and {named.second}", tables)


def _write_tables(file: Path, found: Any, title: str, tables: Sequence[ErrorTable]) -> None:
    # The differences of the first slices from the rest, with their intervals, beside zero.
    drawn = [one for one in found.slices if one.interval is not None][:_MAX_SPANS]
    names = (f"{one.by}: {one.value}{' *' if one.is_beyond_chance else ''}" for one in drawn)
    pairs = zip(names, drawn, strict=True)
    picture = svg.difference_strip("the rest", pairs, name="difference of each slice from the rest")
    facts = {"page": found, "title": title, "tables": tables, "picture": picture}
    write_page(file, "insight/errors.html.j2", scripts=SCRIPTS, **facts)
