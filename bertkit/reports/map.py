"""map.html: one page with a dot per text, near one another where texts are similar, in the color of its cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bertkit.reports import svg
from bertkit.reports.templates import load_template

MAX_DOTS = 5000
_HUE_STEP = 137.5  # degrees, the golden angle: the hues of neighboring numbers are far apart


class Dot(NamedTuple):
    """A text on a map, and the number of its group; -1 for none."""

    x: float
    y: float
    group: int
    hover: str


def write_map(file: Path, dots: Sequence[Dot], groups: Mapping[int, str], *, title: str) -> None:
    """Write a page that opens from disk: at most ``MAX_DOTS`` dots, evenly chosen, and what their groups are called."""
    shown = svg.thin(dots, MAX_DOTS)
    picture = svg.colored_scatter(
        [(dot.x, dot.y, color_of(dot.group), f"{groups.get(dot.group, 'none')}: {dot.hover}") for dot in shown],
        name=title,
    )
    page = load_template("map.html.j2").render(
        title=title,
        picture=picture,
        shown=len(shown),
        total=len(dots),
        groups=[(color_of(number), name) for number, name in groups.items()],
    )
    file.write_text(page, encoding="utf-8", errors="xmlcharrefreplace")


def color_of(group: int) -> str:
    """Return the color of a group in CSS; gray for none."""
    return "#9aa0a6" if group < 0 else f"hsl({group * _HUE_STEP % 360:.0f} 65% {45 + group // 3 % 3 * 8}%)"
