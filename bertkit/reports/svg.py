"""Charts as SVG text: lines, points, bars and intervals; most colors and all fonts come from the page's CSS."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from bertkit.errors import shorten
from bertkit.reports.canvas import (
    WIDTH,
    Area,
    draw_axes,
    draw_dot,
    draw_picture,
    draw_upright,
    draw_whisker,
    escape_text,
    fit_area,
    text_width,
    ticks,
)

Line = Sequence[tuple[float, float]]
"""Points that are joined, each (across, up)."""
MAX_DOTS = 200
_LINE = 16  # between two lines of text


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


def line_chart(
    lines: Mapping[str, Line], *, name: str, x: str, marked: float | None = None, has_legend: bool = True
) -> Markup:
    """Draw one line per entry, each of at least one point, over x from zero, and a dashed vertical line at `marked`."""
    points = [point for line in lines.values() for point in line]
    area = fit_area([0, *(point[0] for point in points)], [point[1] for point in points])
    elements = [draw_axes(area, x)]
    if marked is not None:
        across = area.right(marked)
        elements.append(
            f'<line class="guide" x1="{across:.1f}" y1="{area.top}" x2="{across:.1f}" y2="{area.bottom}"/>'
            f'<text class="tick middle" x="{min(across, area.end - 75):.1f}" y="{area.bottom + 37}">best</text>'
        )
    left = area.left  # of the legend, which stands above the lines
    for number, (label, line) in enumerate(lines.items()):
        path = " ".join(f"{area.right(across):.1f},{area.up(up):.1f}" for across, up in line)
        elements.append(f'<g class="s{number}"><polyline class="line" points="{path}"/>')
        radius = 5 if len(line) == 1 else 3 if len(line) <= 30 else 1.5
        for across, up in line if len(line) <= MAX_DOTS else ():
            elements.append(draw_dot(area.right(across), area.up(up), f"{label}: {up:.4g} at {x} {across:g}", radius))
        if has_legend and len(lines) > 1:
            elements.append(
                f'<rect class="swatch" x="{left}" y="7" width="14" height="3"/>'
                f'<text class="tick" x="{left + 20}" y="13">{escape_text(label)}</text>'
            )
            left += text_width(label) + 40
        elements.append("</g>")
    return draw_picture(area.height, name, elements)


def scatter(
    points: Sequence[Point], *, name: str, x: str, y: str, guide: Line, more_guides: Sequence[Line] = ()
) -> Markup:
    """Draw the points and a dashed line through those of each guide; the axes enclose points and the first guide."""
    heights = [up for p in points for up in (p.y, p.low, p.high) if up is not None]
    area = fit_area([p.x for p in points] + [end[0] for end in guide], heights + [end[1] for end in guide])
    elements = [draw_axes(area, x, y)]
    labeled: list[tuple[float, float]] = []
    for point in points:
        across, up = area.right(point.x), area.up(point.y)
        if point.low is not None and point.high is not None:
            elements.append(draw_whisker(across, area.up(point.low), area.up(point.high)))
        elements.append(draw_dot(across, up, point.hover, point.radius))
        if point.label:
            side, left = ("end", across - 8) if across > WIDTH / 2 else ("", across + 8)
            height = _find_height(up - 6, (at for before, at in labeled if abs(before - across) < WIDTH / 3))
            labeled.append((across, height))
            elements.append(
                f'<text class="tick {side}" x="{left:.1f}" y="{height:.1f}">{escape_text(point.label)}</text>'
            )
    for line in (guide, *more_guides):
        path = " ".join(f"{area.right(across):.1f},{area.up(up):.1f}" for across, up in line)
        elements.append(f'<polyline class="guide" fill="none" points="{path}"/>')
    return draw_picture(area.height, name, elements)


def _find_height(wanted: float, taken: Iterable[float]) -> float:
    """Return the height of a label, moved down until it covers none of the others."""
    for height in sorted(taken):
        if abs(height - wanted) < _LINE:
            wanted = height + _LINE
    return wanted


def bar_chart(bars: Sequence[Bar], *, name: str, x: str, y: str) -> Markup:
    """Draw bars from zero, side by side, each with its interval."""
    area = fit_area([0, 1], [0, *(bar.high for bar in bars)], sideways=False)
    slot = (area.end - area.left) / len(bars)
    elements = [draw_axes(area, x, y)]
    for number, bar in enumerate(bars):
        left, up = area.left + slot * (number + 0.2), area.up(bar.value)
        middle = left + slot * 0.3
        elements.append(
            f"<g><title>{escape_text(bar.hover)}</title>"
            f'<rect class="bar" x="{left:.1f}" y="{up:.1f}" width="{slot * 0.6:.1f}"'
            f' height="{area.bottom - up:.1f}"/>{draw_whisker(middle, area.up(bar.low), area.up(bar.high))}'
            f'<text class="tick middle" x="{middle:.1f}" y="{area.bottom + 17}">{escape_text(bar.label)}</text></g>'
        )
    return draw_picture(area.height, name, elements)


def interval_strip(spans: Sequence[Span], *, name: str) -> Markup:
    """Draw one row per span above a common axis: its label and value, and its interval below them."""
    row, top = 44, 6
    marks = ticks(min(span.low for span in spans), max(span.high for span in spans))
    area = Area((marks[0], marks[-1]), (0, 1), 12, WIDTH - 12, top, top + row * len(spans))
    elements = [draw_upright(area, mark) for mark in marks]
    for number, span in enumerate(spans):
        up, label = top + row * number + 30, escape_text(shorten(span.label, 56 - len(span.shown)))
        low, high = area.right(span.low), area.right(span.high)
        elements.append(
            f'<g class="{"own" if span.own else "other"}">'
            f"<title>{escape_text(f'{span.label}: {span.shown}')}</title>"
            f'<text class="label" x="0" y="{up - 12}">{label}</text>'
            f'<text class="label value" x="{WIDTH}" y="{up - 12}">{escape_text(span.shown)}</text>'
            f'<line class="track" x1="{area.left}" y1="{up}" x2="{area.end}" y2="{up}"/>'
            f'<line class="span" x1="{low:.1f}" y1="{up}" x2="{high:.1f}" y2="{up}"/>'
        )
        if span.value is not None:
            elements.append(f'<circle class="mark" cx="{area.right(span.value):.1f}" cy="{up}" r="5.5"/>')
        elements.append("</g>")
    return draw_picture(area.bottom + 24, name, elements)


def difference_strip(zero: str, differences: Iterable[tuple[str, Any]], *, name: str) -> Markup | None:
    """Draw the ``difference`` of each record with its ``interval``, beside zero; None where none has an interval."""
    spans = [Span(zero, "0", 0.0, 0.0, 0.0, own=True)]
    for label, found in differences:
        if found.interval is not None:
            spans.append(Span(label, f"{found.difference:+.4f}", found.difference, *found.interval))
    return interval_strip(spans, name=name) if len(spans) > 1 else None


def strip_plot(
    dots: Sequence[RunDot], *, name: str, mean: float, interval: tuple[float, float] | None, marked: float | None = None
) -> Markup:
    """Draw a dot per run along one axis, the mean with its interval below them, and a dashed line at `marked`."""
    ends = [*(dot.value for dot in dots), mean, *(interval or ()), *(() if marked is None else (marked,))]
    marks = ticks(min(ends), max(ends))
    area = Area((marks[0], marks[-1]), (0, 1), 12, WIDTH - 12, 6, 106)
    elements = [draw_upright(area, mark) for mark in marks]
    if marked is not None:
        across = area.right(marked)
        elements.append(
            f'<line class="guide" x1="{across:.1f}" y1="{area.top}" x2="{across:.1f}" y2="{area.bottom}">'
            f"<title>{escape_text(f'null model: {marked:.4g}')}</title></line>"
        )
    for number, dot in enumerate(dots):
        # three heights by turns, so that equal scores do not cover one another
        shown = draw_dot(area.right(dot.value), 24 + 15 * (number % 3), dot.hover, 5)
        elements.append(f'<g class="failed">{shown}</g>' if dot.failed else shown)
    low, high = (area.right(end) for end in interval or (mean, mean))
    elements.append(
        f'<g class="own"><title>{escape_text(f"mean: {mean:.4g}")}</title>'
        f'<line class="span" x1="{low:.1f}" y1="84" x2="{high:.1f}" y2="84"/>'
        f'<circle class="mark" cx="{area.right(mean):.1f}" cy="84" r="5.5"/></g>'
    )
    return draw_picture(area.bottom + 24, name, elements)
