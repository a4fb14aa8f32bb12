"""The page about the mistakes of a run, with tables that sort and can be searched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertkit.metrics.registry import with_direction
from bertkit.reports import svg
from bertkit.reports.templates import write_page
from bertkit.reports.text import score_text

MAX_ROWS = 2000  # about 1 MB
_MAX_SPANS = 12

SCRIPTS = ("tables.js",)


def write_mistakes(file: Path, result: Any) -> None:
    """Write the page of the wrong rows of a run; `result` as `bertkit.workflows.errors.find_errors` returns it."""
    # A page with all rows of a large run would be too large to open.
    columns = ("row", "confidence", "error", "words", "gold", "predicted", "text")
    rows = [
        (mistake.id, mistake.confidence, mistake.error, mistake.words, mistake.gold, mistake.predicted, mistake.text)
        for mistake in result.mistakes[:MAX_ROWS]
    ]
    # The differences of the first slices from the rest, with their intervals, next to zero.
    groups = [group for group in result.slices if group.interval is not None][:_MAX_SPANS]
    names = (f"{group.by}: {group.value}{' *' if group.is_beyond_chance else ''}" for group in groups)
    pairs = zip(names, groups, strict=True)
    picture = svg.difference_strip("the rest", pairs, name="difference of each slice from the rest")
    scores = [(with_direction(name), score_text(value)) for name, value in result.scores.items()]
    facts = {"page": result, "columns": columns, "rows": rows, "picture": picture, "scores": scores}
    write_page(file, "errors.html.j2", scripts=SCRIPTS, **facts)
