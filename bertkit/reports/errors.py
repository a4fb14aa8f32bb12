"""The page about the mistakes of a run, with tables that can be sorted and searched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertkit.metrics.registry import with_direction
from bertkit.reports import svg
from bertkit.reports.templates import write_page
from bertkit.reports.text import score_text

MAX_ROWS = 2000  # about 1 MB
_MAX_DRAWN_SLICES = 12


def write_mistakes(file: Path, result: Any) -> None:
    """Write the page about the wrong rows of a run; `result` is what `bertkit.workflows.errors.find_errors` returns."""
    columns = ("row", "confidence", "error", "words", "gold", "predicted", "text")
    rows = [
        (mistake.id, mistake.confidence, mistake.error, mistake.words, mistake.gold, mistake.predicted, mistake.text)
        for mistake in result.mistakes[:MAX_ROWS]
    ]
    slices = [group for group in result.slices if group.interval is not None][:_MAX_DRAWN_SLICES]
    names = (f"{group.by}: {group.value}{' *' if group.is_beyond_chance else ''}" for group in slices)
    pairs = zip(names, slices, strict=True)
    picture = svg.difference_strip("the rest", pairs, name="difference of each slice from the rest")
    scores = [(with_direction(name), score_text(value)) for name, value in result.scores.items()]
    values = {"page": result, "columns": columns, "rows": rows, "picture": picture, "scores": scores}
    write_page(file, "errors.html.j2", scripts=("tables.js",), **values)
