"""The page of ranked encoders: scores with intervals, what each costs, and score against speed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import Markup

from bertkit.errors import shorten
from bertkit.reports import svg
from bertkit.reports.insight.errors import SCRIPTS
from bertkit.reports.templates import name_model, write_page

SCORE_NAMES = {"h_score": "H-score", "logme": "LogME", "knn": "kNN", "linear_probe": "linear probe"}
_MOST_CHARACTERS = 28  # of a name in the picture


def write_ranking(file: Path, ranking: Any) -> None:
    """Write the page of a ranking; `ranking` as `bertkit.workflows.rank.rank` returns it."""
    notes = ranking.notes
    for one in ranking.encoders:
        notes = [note.replace(one.model, name_model(one.model)) for note in notes]
    spans = [
        svg.Span(name_model(one.model), f"{score:.4f}", score, one.interval[0], one.interval[1], own=one.is_like_first)
        for one in ranking.encoders
        for score in [one.scores[ranking.by]]
    ]
    write_page(
        file,
        "insight/rank.html.j2",
        scripts=SCRIPTS,
        page=ranking,
        size=size_text,
        notes=notes,
        columns=[SCORE_NAMES[name] for name in ranking.encoders[0].scores],
        by=SCORE_NAMES[ranking.by],
        frontier=draw_frontier(ranking),
        strip=svg.interval_strip(spans, name=f"{SCORE_NAMES[ranking.by]} of each encoder"),
    )


def draw_frontier(ranking: Any) -> Markup:
    """Draw the score of each encoder against its speed; a line joins those that no other beats in both."""
    points = [
        svg.Point(
            one.cost.tokens_per_second,
            one.scores[ranking.by],
            f"{name_model(one.model)}: {one.scores[ranking.by]:.4f}, {one.cost.tokens_per_second:,.0f} tokens/s",
            low=one.interval[0],
            high=one.interval[1],
            radius=4.5 if one.is_efficient else 3,
            label=short_name(name_model(one.model)),
        )
        for one in ranking.encoders
    ]
    efficient = sorted(
        (point.x, point.y) for point, one in zip(points, ranking.encoders, strict=True) if one.is_efficient
    )
    return svg.scatter(points, name="score against speed", x="tokens/s", y=SCORE_NAMES[ranking.by], guide=efficient)


def short_name(model: str) -> str:
    """Return the last part of a path or hub name, shortened.

    >>> short_name("answerdotai/ModernBERT-base"), short_name("runs/mlm/")
    ('ModernBERT-base', 'mlm')
    """
    name = model.rstrip("/").rpartition("/")[2] or model
    return shorten(name, _MOST_CHARACTERS)


def size_text(count: int | None, unit: str = "") -> str:
    """Return a number of parameters or bytes in millions.

    >>> size_text(22_713_216), size_text(4_400), size_text(137_478_144, " MB"), size_text(None)
    ('22.7M', '0.004M', '137 MB', 'n/a')
    """
    if count is None:
        return "n/a"
    millions = count / 1e6
    if unit:
        return f"{millions:,.0f}{unit}"
    return f"{millions:,.1f}M" if millions >= 0.1 else f"{millions:.3f}M"
