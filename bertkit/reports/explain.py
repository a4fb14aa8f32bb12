"""A page with explained rows: each word in the color of what it adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertkit.reports.templates import write_page

METHODS = {"integrated_gradients": "integrated gradients", "occlusion": "masked one by one"}
_CLOSING = frozenset(".,;:!?)]}%’”")


def write_explanations(file: Path, records: Sequence[Mapping[str, Any]], *, model: str) -> None:
    """Write a page that opens from disk with what `bertkit explain --json` lists."""
    complete = all(explained["is_complete"] for record in records for explained in record["explanations"])
    facts: dict[str, Any] = {"model": model, "rows": records, "complete": complete}
    facts |= {"methods": METHODS, "closing": _CLOSING}
    write_page(file, "explain.html.j2", **facts)
