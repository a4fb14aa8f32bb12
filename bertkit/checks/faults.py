"""Rows that cannot be used: what training would refuse, all of it at once."""

from __future__ import annotations

from collections.abc import Sequence

from bertkit.checks import EXAMPLES, Finding
from bertkit.data.rows import NO_TEXT, Place
from bertkit.errors import DataError, shorten

_LONG = 160


def describe_faults(faults: Sequence[DataError]) -> list[Finding]:
    """Describe the faults of rows, those of one column with one remedy in one finding."""
    groups: dict[tuple[str | None, str, bool], list[DataError]] = {}
    for fault in faults:
        groups.setdefault((fault.column, fault.remedy, fault.what == NO_TEXT), []).append(fault)
    findings = []
    for (column, remedy, is_empty), alike in groups.items():
        count = "1 row" if len(alike) == 1 else f"{len(alike):,} rows, the first"
        where = f" (column {column!r})" if column else ""
        findings.append(
            Finding(
                "fail",
                "rows",
                "empty_texts" if is_empty else "unreadable_rows",
                f"{count}: {shorten(alike[0].what, _LONG)}{where} - {shorten(remedy, _LONG)}",
                tuple(Place(str(fault.file), fault.row) for fault in alike[:EXAMPLES]),
                len(alike),
            )
        )
    return findings or [Finding("good", "rows", "unreadable_rows", "every row can be read")]


def describe_refusal(error: DataError, group: str, name: str) -> Finding:
    """Describe an error that is about a split as a whole."""
    places = (Place(error.file, error.row),) if error.file and error.row else ()
    remedy = f" - {error.remedy}" if error.remedy else ""
    return Finding("fail", group, name, f"{shorten(error.what, _LONG)}{shorten(remedy, _LONG)}", places)
