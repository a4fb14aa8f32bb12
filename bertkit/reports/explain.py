"""A page with explained rows: the color of a word shows how much it adds to the prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertkit.reports.templates import write_page

METHODS = {"integrated_gradients": "integrated gradients", "occlusion": "masked one by one"}
_NO_SPACE_BEFORE = frozenset(".,;:!?)]}%’”")


def write_explanations(file: Path, records: Sequence[Mapping[str, Any]], *, model: str) -> None:
    """Write a page that opens from disk with the records of `bertkit explain --json`."""
    is_complete = all(explanation["is_complete"] for record in records for explanation in record["explanations"])
    values: dict[str, Any] = {"methods": METHODS, "no_space_before": _NO_SPACE_BEFORE, "is_complete": is_complete}
    write_page(file, "explain.html.j2", model=model, rows=records, **values)
