"""Numbers and names as the text of pages, cards and tables."""

from __future__ import annotations

import math
import re
from typing import Any

ONE_SEED = "One seed per model: p and intervals do not cover other seeds, which may reverse the result (see --seeds)."
"""Note on tests between single runs."""


def is_finite(*values: object) -> bool:
    """Return whether all values are finite numbers."""
    return all(isinstance(value, int | float) and math.isfinite(value) for value in values)


def score_text(value: Any) -> str:
    """Format a score, or a range of two, for the report and the card.

    >>> score_text(0.85714), score_text([0.56, 0.6]), score_text(float("nan")), score_text(None)
    ('0.8571', '0.5600 – 0.6000', 'n/a', 'n/a')
    """
    if isinstance(value, list | tuple):
        return " – ".join(score_text(end) for end in value) if is_finite(*value) else "n/a"
    if not is_finite(value):
        return "n/a"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:,.2f}"


def cell_text(value: object) -> str:
    """Format a cell of a table: a score, a range, a count or a text.

    >>> cell_text(0.5), cell_text((0.25, 1.0)), cell_text(1024), cell_text("a"), cell_text(None)
    ('0.5000', '0.2500 – 1.0000', '1,024', 'a', 'n/a')
    """
    if isinstance(value, int):
        return f"{value:,}"
    return value if isinstance(value, str) else score_text(value)


def duration_text(seconds: float | None) -> str:
    """Format a duration in its two largest units; a dash for an unknown one.

    >>> duration_text(8.25), duration_text(204), duration_text(7512), duration_text(None)
    ('8.2 s', '3 min 24 s', '2 h 05 min', '-')
    """
    if seconds is None:
        return "-"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def p_text(p: float | None) -> str:
    """Return a p-value with three decimals, or ``<0.001``.

    >>> p_text(0.0412), p_text(0.0004), p_text(None)
    ('0.041', '<0.001', 'n/a')
    """
    return "n/a" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def escape_markdown(value: object) -> str:
    r"""Write a value on one line of Markdown, escaped so that it neither opens a tag nor ends a table cell.

    >>> print(escape_markdown("<b>a|b</b>"))
    &lt;b>a\|b&lt;/b>
    """
    text = " ".join(str(value).split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\|`*\[\]])", r"\\\1", text)
