"""Charts as SVG text: lines, points and intervals. Most colors and all fonts come from the style of the page."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from markupsafe import Markup, escape

from bertkit.errors import shorten

WIDTH = 480
COLORS = 6
"""Number of colors of lines, which the style names ``s0`` to ``s5``."""
MAX_DOTS = 200
_NOT_XML = re.compile("[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_NO_GUIDES: Mapping[str, float] = {}

Line = Sequence[tuple[float, float]]
"""Points that are joined, each (x, y)."""


class Point(NamedTuple):
    """A dot, with a whisker from `low` to `high` if these are numbers."""

    x: float
    y: float
    hover: str = ""
    low: float | None = None
    high: float | None = None
    # All lengths are units of the view box, which is 480 wide. The page scales it to its column.
    radius: float = 2.2
    kind: str = ""
    """A further class of the style: ``chosen`` or ``failed``."""


class Span(NamedTuple):
    """A row of a strip: an interval from `low` to `high`, with a mark at `value` if it is a number."""

    label: str
    text: str
    value: float | None
    low: float
    high: float
    is_reference: bool = False
    """Whether it is the row that the others are compared with."""
    dots: Sequence[Point] = ()
    """Values that the interval summarizes; only their `x` counts."""


@dataclass(frozen=True)
class Area:
    """The part of a picture that shows values, from the first to the last ticks; coordinates point down."""

    x_ticks: Sequence[float]
    y_ticks: Sequence[float]
    start: float = 52
    top: float = 26
    end: float = WIDTH - 14
    bottom: float = 236

    def to_x(self, x: float) -> float:
        """Return the x coordinate of a value."""
        low, high = self.x_ticks[0], self.x_ticks[-1]
        return self.start + (x - low) / (high - low) * (self.end - self.start)

    def to_y(self, y: float) -> float:
        """Return the y coordinate of a value."""
        low, high = self.y_ticks[0], self.y_ticks[-1]
        return self.bottom - (y - low) / (high - low) * (self.bottom - self.top)

    def path(self, line: Iterable[Sequence[Any]]) -> str:
        """Return the coordinates of a line, whose points start with x and y."""
        return " ".join(f"{self.to_x(x):.1f},{self.to_y(y):.1f}" for x, y, *_ in line)

    def axes(self, x: str, y: str = "", labels: Sequence[tuple[float, str]] | None = None) -> str:
        """Draw both axes with their names, numbers and horizontal grid lines; `labels` replace the numbers of x."""
        # SVG has its origin at the upper left. The texts below are placed by their baseline.
        x_labels = [(mark, _format_tick(mark)) for mark in self.x_ticks] if labels is None else labels
        elements = [_text(self.to_x(mark), self.bottom + 17, label, "tick middle") for mark, label in x_labels]
        for mark in self.y_ticks:
            height = self.to_y(mark)
            elements.append(f'<path class="grid" d="M{self.start} {height:.1f}H{self.end}"/>')
            elements.append(_text(self.start - 8, height + 4, _format_tick(mark), "tick end"))
        elements.append(_text(0, 13, y, "axis") if y else "")
        return "".join([*elements, _text(self.end, self.bottom + 37, x, "axis end")])

    def dot(self, point: Point) -> str:
        """Draw a dot that shows its text to the pointer, and its whisker."""
        x, y = self.to_x(point.x), self.to_y(point.y)
        whisker = ""
        if point.low is not None and point.high is not None:
            bottom, top = self.to_y(point.low), self.to_y(point.high)
            ends = f"M{x - 4:.1f} {bottom:.1f}h8M{x - 4:.1f} {top:.1f}h8"
            whisker = f'<path class="whisker" d="M{x:.1f} {bottom:.1f}V{top:.1f}{ends}"/>'
        name = f"dot {point.kind}".strip()
        place = f'cx="{x:.1f}" cy="{y:.1f}" r="{point.radius:.1f}"'
        return f'{whisker}<circle class="{name}" {place}><title>{escape_text(point.hover)}</title></circle>'


def line_chart(
    lines: Mapping[str, Sequence[Sequence[Any]]],
    *,
    name: str,
    x: str,
    marked: float | None = None,
    guides: Mapping[str, float] = _NO_GUIDES,
) -> Markup:
    """Draw lines over an x axis that starts at zero, with a dot per point if these are few.

    Args:
        lines: Name -> points, each a `Point` or a pair (x, y).
        name: Description of the picture for screen readers.
        x: Name of the x axis.
        marked: Value of x that is marked as the best.
        guides: Name -> height of a dashed horizontal line.
    """
    # 1. Name the lines in a legend, whose height moves the area down.
    points_by_line = {label: [Point(*point) for point in line] for label, line in lines.items()}
    points = [point for line in points_by_line.values() for point in line]
    classes = {label: f"s{index % COLORS}{' again' * (index >= COLORS)}" for index, label in enumerate(lines)}
    # A guide has its number in the legend, so no line crosses it.
    named = {**(classes if len(lines) > 1 or guides else {}), **{f"{key}: {y:.3f}": "" for key, y in guides.items()}}
    legend, top = _draw_legend(named)
    # 2. Draw the axes, and what is below the lines.
    area = _fit([0, *(point.x for point in points)], [*_list_heights(points), *guides.values()], top)
    elements = [legend, area.axes(x)]
    elements += [f'<path class="guide" d="M{area.start} {area.to_y(y):.1f}H{area.end}"/>' for y in guides.values()]
    if marked is not None:
        at = area.to_x(marked)
        elements.append(f'<path class="guide" d="M{at:.1f} {area.top}V{area.bottom}"/>')
        # The name of the axis ends below its last number, so the mark keeps away from it.
        elements.append(_text(min(at, area.end - 75), area.bottom + 37, "best", "tick middle"))
    # 3. Draw each line in its color, with a dot per point. Many dots would hide a line and make the page large.
    for label, line in points_by_line.items():
        elements.append(f'<g class="{classes[label]}"><polyline class="line" points="{area.path(line)}"/>')
        # A line with one point has no length, so only its dot shows it.
        radius = 5 if len(line) == 1 else 3 if len(line) <= 30 else 1.5
        for point in line if len(line) <= MAX_DOTS else ():
            hover = point.hover or f"{label}: {point.y:.4g} at {x} {point.x:g}"
            elements.append(area.dot(point._replace(hover=hover, radius=radius)))
        elements.append("</g>")
    return _draw_picture(area.bottom + 44, name, elements)


def scatter(
    points: Sequence[Point],
    *,
    name: str,
    x: str,
    y: str,
    guide: Line = (),
    labels: Sequence[tuple[float, str]] | None = None,
) -> Markup:
    """Draw points, and a dashed line through `guide`; with `labels`, the x axis goes from 0 to 1 and has these."""
    ends = [*points, *(Point(*end) for end in guide)]
    area = _fit([end.x for end in ends], _list_heights(ends))
    if labels is not None:
        # The margin keeps points away from the numbers of the y axis.
        area = replace(area, x_ticks=(-0.05, 1.05))
    elements = [area.axes(x, y, labels), *map(area.dot, points)]
    if guide:
        elements.append(f'<polyline class="guide" points="{area.path(guide)}"/>')
    return _draw_picture(area.bottom + 44, name, elements)


def interval_strip(spans: Sequence[Span], *, name: str) -> Markup:
    """Draw a row per span above a common axis: its label and value, and below them its interval and its dots."""
    row, top = 44, 6
    ends = [end for span in spans for end in (span.low, span.high, *(dot.x for dot in span.dots))]
    area = Area(ticks(min(ends), max(ends)), (0, 1), 12, top, WIDTH - 12, top + row * len(spans))
    elements = []
    for mark in area.x_ticks:
        at = area.to_x(mark)
        elements.append(f'<path class="grid" d="M{at:.1f} {area.top}V{area.bottom}"/>')
        elements.append(_text(at, area.bottom + 17, _format_tick(mark), "tick middle"))
    for index, span in enumerate(spans):
        up, label = top + row * index + 30, shorten(span.label, 56 - len(span.text))
        low, high = area.to_x(span.low), area.to_x(span.high)
        elements.append(
            f'<g class="{"own" if span.is_reference else "other"}">'
            f"<title>{escape_text(f'{span.label}: {span.text}')}</title>"
            f"{_text(0, up - 12, label, 'label')}{_text(WIDTH, up - 12, span.text, 'label value')}"
            f'<path class="track" d="M{area.start} {up}H{area.end}"/>'
            f'<path class="span" d="M{low:.1f} {up}H{high:.1f}"/>'
        )
        if span.value is not None:
            elements.append(f'<circle class="mark" cx="{area.to_x(span.value):.1f}" cy="{up}" r="5.5"/>')
        # Three heights by turns, so that equal values do not cover one another.
        for turn, dot in enumerate(span.dots):
            height = (area.bottom - up + 7 * (turn % 3 - 1)) / (area.bottom - area.top)
            elements.append(area.dot(dot._replace(y=height, radius=4)))
        elements.append("</g>")
    return _draw_picture(area.bottom + 24, name, elements)


def difference_strip(zero: str, differences: Iterable[tuple[str, Any]], *, name: str) -> Markup | None:
    """Draw the ``difference`` of each record with its ``interval``, next to zero; None if none has an interval."""
    spans = [Span(zero, "0", 0.0, 0.0, 0.0, is_reference=True)]
    for label, record in differences:
        if record.interval is not None:
            spans.append(Span(label, f"{record.difference:+.4f}", record.difference, *record.interval))
    return interval_strip(spans, name=name) if len(spans) > 1 else None


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round values; the first and the last enclose the range.

    >>> ticks(0.13, 0.88)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    # A single value gets a range around it, because an axis needs two ends.
    if high <= low:
        pad = abs(low) / 2 or 0.5
        low, high = low - pad, high + pad
    raw = (high - low) / count
    size = 10.0 ** math.floor(math.log10(raw))
    # The smallest of 1, 2, 2.5 and 5 times a power of ten that makes no more ticks than requested.
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10, 20) if size * factor >= raw * 0.999)
    # The tiny number keeps a value that is a tick already, in spite of rounding.
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{index * step:.10g}") for index in range(first, last + 1)]


def escape_text(text: str) -> Markup:
    """Return text as an SVG element or attribute holds it; a character that XML cannot hold becomes a space."""
    return escape(_NOT_XML.sub(" ", text))


def _fit(xs: Sequence[float], ys: Sequence[float], top: float = 26) -> Area:
    """Return an area whose axes enclose these values."""
    y_ticks = ticks(min(ys), max(ys), 4)
    # Long numbers of the y axis need more room than the default.
    start = max(Area.start, 12 + max(_text_width(_format_tick(mark)) for mark in y_ticks))
    return Area(ticks(min(xs), max(xs), 6), y_ticks, start, top, bottom=top + 210)


def _list_heights(points: Iterable[Point]) -> list[float]:
    return [y for point in points for y in (point.y, point.low, point.high) if y is not None]


def _draw_legend(classes: Mapping[str, str]) -> tuple[str, float]:
    """Draw the names of lines above an area, in as many rows as they need, and return the top of the area with it."""
    elements, x, up = [], 0.0, 13
    for label, kind in classes.items():
        width = 24 + _text_width(label)
        if x and x + width > WIDTH:
            x, up = 0.0, up + 20
        mark = f'<path class="{"line" if kind else "guide"}" d="M{x:.1f} {up - 4}h14"/>'
        elements.append(f'<g class="{kind}">{mark}{_text(x + 20, up, label, "tick")}</g>')
        x += width + 16
    return "".join(elements), up + (19 if classes else 13)


def _format_tick(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:g}"


def _text_width(text: str) -> float:
    """Return about the width of a text in the largest type that the style gives it, which narrow screens have."""
    return 9.0 * len(text)


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape_text(text)}</text>'


def _draw_picture(height: float, name: str, elements: Sequence[str]) -> Markup:
    head = f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape_text(name)}">'
    return Markup(head + "".join(elements) + "</svg>")
