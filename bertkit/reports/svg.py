"""Charts as SVG text: lines, points, bars and intervals; most colors and all fonts come from the page's CSS."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from markupsafe import Markup, escape

T = TypeVar("T")
WIDTH = 480
MAX_DOTS = 200
_NOT_XML = re.compile("[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


class Point(NamedTuple):
    """A dot of a scatter plot, with a whisker from `low` to `high` unless these are None, and perhaps a label."""

    x: float
    y: float
    hover: str
    low: float | None = None
    high: float | None = None
    radius: float = 2.2
    label: str = ""


class Bar(NamedTuple):
    """A bar from zero to `value`, with a whisker from `low` to `high`."""

    label: str
    value: float
    low: float
    high: float
    hover: str


class Span(NamedTuple):
    """A row of an interval strip: a line from `low` to `high` and, unless it is None, a dot at `value`."""

    label: str
    shown: str
    value: float | None
    low: float
    high: float
    own: bool = False


class RunDot(NamedTuple):
    """A run in a strip plot."""

    value: float
    hover: str
    failed: bool = False


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round values; the first and the last enclose the range.

    >>> ticks(0.13, 0.88)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    if high <= low:
        pad = abs(low) / 2 or 0.5
        low, high = low - pad, high + pad
    raw = (high - low) / count
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10, 20) if size * factor >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{number * step:.10g}") for number in range(first, last + 1)]


def thin(items: Sequence[T], max_items: int) -> list[T]:
    """Return at most `max_items` items, evenly spaced, the first and the last among them.

    >>> thin(range(10), 4)
    [0, 3, 6, 9]
    """
    if len(items) <= max_items:
        return list(items)
    return [items[round(number * (len(items) - 1) / (max_items - 1))] for number in range(max_items)]


def line_chart(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    *,
    name: str,
    x: str,
    marked: float | None = None,
    has_legend: bool = True,
) -> Markup:
    """Draw one line per entry, each of at least one point, over x from zero, and a dashed vertical line at `marked`."""
    points = [point for line in lines.values() for point in line]
    area = _area([0, *(point[0] for point in points)], [point[1] for point in points])
    elements = [_axes(area, x)]
    if marked is not None:
        across = area.right(marked)
        elements.append(
            f'<line class="guide" x1="{across:.1f}" y1="{area.top}" x2="{across:.1f}" y2="{area.bottom}"/>'
            f'<text class="tick end" x="{across - 5:.1f}" y="{area.bottom - 7}">best</text>'
        )
    for number, (label, line) in enumerate(lines.items()):
        path = " ".join(f"{area.right(across):.1f},{area.up(up):.1f}" for across, up in line)
        elements.append(f'<g class="s{number}"><polyline class="line" points="{path}"/>')
        radius = 3 if len(line) <= 30 else 1.5
        for across, up in line if len(line) <= MAX_DOTS else ():
            elements.append(_dot(area.right(across), area.up(up), f"{label}: {up:.4g} at {x} {across:g}", radius))
        if has_legend and len(lines) > 1:
            left = area.left + 110 * number
            elements.append(
                f'<rect class="swatch" x="{left}" y="7" width="14" height="3"/>'
                f'<text class="tick" x="{left + 20}" y="13">{_text(label)}</text>'
            )
        elements.append("</g>")
    return _svg(area.height, name, elements)


def scatter(
    points: Sequence[Point],
    *,
    name: str,
    x: str,
    y: str,
    guide: Sequence[tuple[float, float]],
) -> Markup:
    """Draw the points and a dashed line through those of `guide`; the axes enclose all of them."""
    heights = [up for p in points for up in (p.y, p.low, p.high) if up is not None]
    area = _area([p.x for p in points] + [end[0] for end in guide], heights + [end[1] for end in guide])
    elements = [_axes(area, x, y)]
    for point in points:
        across, up = area.right(point.x), area.up(point.y)
        if point.low is not None and point.high is not None:
            elements.append(_whisker(across, area.up(point.low), area.up(point.high)))
        elements.append(_dot(across, up, point.hover, point.radius))
        if point.label:
            side, left = ("end", across - 8) if across > WIDTH / 2 else ("", across + 8)
            elements.append(f'<text class="tick {side}" x="{left:.1f}" y="{up - 6:.1f}">{_text(point.label)}</text>')
    path = " ".join(f"{area.right(across):.1f},{area.up(up):.1f}" for across, up in guide)
    elements.append(f'<polyline class="guide" fill="none" points="{path}"/>')
    return _svg(area.height, name, elements)


def colored_scatter(points: Sequence[tuple[float, float, str, str]], *, name: str) -> Markup:
    """Draw points of x, y, color and hover without axes, at one scale for both directions."""
    xs, ys = [point[0] for point in points], [point[1] for point in points]
    scale = (WIDTH - 12) / (max(max(xs) - min(xs), max(ys) - min(ys)) or 1)
    elements = [
        f'<circle class="dot" cx="{6 + (x - min_x) * scale:.1f}" cy="{6 + (max_y - y) * scale:.1f}" r="1.6"'
        f' fill="{color}"><title>{_text(hover)}</title></circle>'
        for min_x, max_y in [(min(xs), max(ys))]
        for x, y, color, hover in points
    ]
    return _svg(12 + (max(ys) - min(ys)) * scale, name, elements)


def bar_chart(bars: Sequence[Bar], *, name: str, x: str, y: str) -> Markup:
    """Draw bars from zero, side by side, each with its interval."""
    area = _area([0, 1], [0, *(bar.high for bar in bars)], sideways=False)
    slot = (area.end - area.left) / len(bars)
    elements = [_axes(area, x, y)]
    for number, bar in enumerate(bars):
        left, up = area.left + slot * (number + 0.2), area.up(bar.value)
        middle = left + slot * 0.3
        elements.append(
            f"<g><title>{_text(bar.hover)}</title>"
            f'<rect class="bar" x="{left:.1f}" y="{up:.1f}" width="{slot * 0.6:.1f}"'
            f' height="{area.bottom - up:.1f}"/>{_whisker(middle, area.up(bar.low), area.up(bar.high))}'
            f'<text class="tick middle" x="{middle:.1f}" y="{area.bottom + 17}">{_text(bar.label)}</text></g>'
        )
    return _svg(area.height, name, elements)


def interval_strip(spans: Sequence[Span], *, name: str) -> Markup:
    """Draw one row per span above a common axis: its label and value, and its interval below them."""
    row, top = 44, 6
    marks = ticks(min(span.low for span in spans), max(span.high for span in spans))
    area = _Area((marks[0], marks[-1]), (0, 1), 12, WIDTH - 12, top, top + row * len(spans))
    elements = [_upright(area, mark) for mark in marks]
    for number, span in enumerate(spans):
        up, label = top + row * number + 30, _text(_shorten(span.label, 56 - len(span.shown)))
        low, high = area.right(span.low), area.right(span.high)
        elements.append(
            f'<g class="{"own" if span.own else "other"}">'
            f"<title>{_text(f'{span.label}: {span.shown}')}</title>"
            f'<text class="label" x="0" y="{up - 12}">{label}</text>'
            f'<text class="label value" x="{WIDTH}" y="{up - 12}">{_text(span.shown)}</text>'
            f'<line class="track" x1="{area.left}" y1="{up}" x2="{area.end}" y2="{up}"/>'
            f'<line class="span" x1="{low:.1f}" y1="{up}" x2="{high:.1f}" y2="{up}"/>'
        )
        if span.value is not None:
            elements.append(f'<circle class="mark" cx="{area.right(span.value):.1f}" cy="{up}" r="5.5"/>')
        elements.append("</g>")
    return _svg(area.bottom + 24, name, elements)


def strip_plot(
    dots: Sequence[RunDot], *, name: str, mean: float, interval: tuple[float, float] | None, marked: float | None = None
) -> Markup:
    """Draw a dot per run along one axis, the mean with its interval below them, and a dashed line at `marked`."""
    ends = [*(dot.value for dot in dots), mean, *(interval or ()), *(() if marked is None else (marked,))]
    marks = ticks(min(ends), max(ends))
    area = _Area((marks[0], marks[-1]), (0, 1), 12, WIDTH - 12, 6, 106)
    elements = [_upright(area, mark) for mark in marks]
    if marked is not None:
        across = area.right(marked)
        elements.append(
            f'<line class="guide" x1="{across:.1f}" y1="{area.top}" x2="{across:.1f}" y2="{area.bottom}">'
            f"<title>{_text(f'null model: {marked:.4g}')}</title></line>"
        )
    for number, dot in enumerate(dots):
        # three heights by turns, so that equal scores do not cover one another
        shown = _dot(area.right(dot.value), 24 + 15 * (number % 3), dot.hover, 5)
        elements.append(f'<g class="failed">{shown}</g>' if dot.failed else shown)
    low, high = (area.right(end) for end in interval or (mean, mean))
    elements.append(
        f'<g class="own"><title>{_text(f"mean: {mean:.4g}")}</title>'
        f'<line class="span" x1="{low:.1f}" y1="84" x2="{high:.1f}" y2="84"/>'
        f'<circle class="mark" cx="{area.right(mean):.1f}" cy="84" r="5.5"/></g>'
    )
    return _svg(area.bottom + 24, name, elements)


@dataclass(frozen=True)
class _Area:
    """Maps values to coordinates of the picture, whose y axis points down."""

    x: tuple[float, float]
    y: tuple[float, float]
    left: float = 52
    end: float = WIDTH - 14
    top: float = 26
    bottom: float = 236
    height: float = 280
    x_ticks: tuple[float, ...] = ()
    y_ticks: tuple[float, ...] = ()

    def right(self, value: float) -> float:
        return self.left + (value - self.x[0]) / (self.x[1] - self.x[0]) * (self.end - self.left)

    def up(self, value: float) -> float:
        return self.bottom - (value - self.y[0]) / (self.y[1] - self.y[0]) * (self.bottom - self.top)


def _area(xs: Sequence[float], ys: Sequence[float], sideways: bool = True) -> _Area:
    x, y = ticks(min(xs), max(xs), 6), ticks(min(ys), max(ys), 4)
    return _Area((x[0], x[-1]), (y[0], y[-1]), x_ticks=tuple(x if sideways else ()), y_ticks=tuple(y))


def _axes(area: _Area, x: str, y: str = "") -> str:
    elements = [_upright(area, mark, grid=False) for mark in area.x_ticks]
    for mark in area.y_ticks:
        up = area.up(mark)
        elements.append(
            f'<line class="grid" x1="{area.left}" y1="{up:.1f}" x2="{area.end}" y2="{up:.1f}"/>'
            f'<text class="tick end" x="{area.left - 8}" y="{up + 4:.1f}">{_number(mark)}</text>'
        )
    elements.append(f'<text class="axis" x="0" y="13">{_text(y)}</text>' if y else "")
    elements.append(f'<text class="axis end" x="{area.end}" y="{area.bottom + 37}">{_text(x)}</text>')
    return "".join(elements)


def _upright(area: _Area, mark: float, grid: bool = True) -> str:
    across = area.right(mark)
    line = f'<line class="grid" x1="{across:.1f}" y1="{area.top}" x2="{across:.1f}" y2="{area.bottom}"/>'
    text = f'<text class="tick middle" x="{across:.1f}" y="{area.bottom + 17}">{_number(mark)}</text>'
    return line + text if grid else text


def _dot(across: float, up: float, hover: str, radius: float = 3) -> str:
    return (
        f'<circle class="dot" cx="{across:.1f}" cy="{up:.1f}" r="{radius:.1f}"><title>{_text(hover)}</title></circle>'
    )


def _whisker(across: float, low: float, high: float) -> str:
    return (
        f'<path class="whisker" d="M{across:.1f} {low:.1f}V{high:.1f}'
        f'M{across - 4:.1f} {low:.1f}h8M{across - 4:.1f} {high:.1f}h8"/>'
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:g}"


def _shorten(text: str, max_characters: int) -> str:
    return text if len(text) <= max_characters else text[: max_characters - 1] + "…"


def _text(text: str) -> Markup:
    return escape(_NOT_XML.sub(" ", text))


def _svg(height: float, name: str, elements: Sequence[str]) -> Markup:
    head = f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{_text(name)}">'
    return Markup(head + "".join(elements) + "</svg>")
