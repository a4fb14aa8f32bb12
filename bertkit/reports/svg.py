"""Charts as SVG: lines, dots and intervals. Most colors and all fonts come from the style of the page."""

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
"""Number of line colors; their classes are ``s0`` to ``s5``."""
MAX_DOTS = 200  # per line
_NOT_XML = re.compile("[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_NO_GUIDES: Mapping[str, float] = {}

Line = Sequence[tuple[float, float]]
"""Points of a line, each (x, y)."""


class Dot(NamedTuple):
    """A dot, with a whisker from `low` to `high` if these are numbers."""

    x: float
    y: float
    hover: str = ""
    low: float | None = None
    high: float | None = None
    radius: float = 2.2
    """Radius in units of the view box, which is 480 wide and scaled to its column."""
    kind: str = ""
    """Additional class of the style: ``chosen`` or ``failed``."""


class Span(NamedTuple):
    """A row of a strip: an interval from `low` to `high`, with a mark at `value` if it is not None."""

    label: str
    text: str
    value: float | None
    low: float
    high: float
    is_reference: bool = False
    """Whether the other rows are compared with this row."""
    dots: Sequence[Dot] = ()
    """Values that the interval summarizes; only their `x` counts."""


@dataclass(frozen=True)
class Area:
    """The part of a picture that shows values, from the first to the last ticks. In SVG, y grows downwards."""

    x_ticks: Sequence[float]
    y_ticks: Sequence[float]
    start: float = 52
    top: float = 26
    end: float = WIDTH - 14
    bottom: float = 236

    def to_x(self, value: float) -> float:
        """Return the x coordinate of a value."""
        low, high = self.x_ticks[0], self.x_ticks[-1]
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def to_y(self, value: float) -> float:
        """Return the y coordinate of a value."""
        low, high = self.y_ticks[0], self.y_ticks[-1]
        return self.bottom - (value - low) / (high - low) * (self.bottom - self.top)

    def draw_path(self, line: Iterable[Sequence[Any]]) -> str:
        """Return the coordinates of a line; each point starts with x and y."""
        return " ".join(f"{self.to_x(x):.1f},{self.to_y(y):.1f}" for x, y, *_ in line)

    def draw_axes(self, x: str, y: str = "", labels: Sequence[tuple[float, str]] | None = None) -> str:
        """Draw both axes with their names, numbers and horizontal grid lines; `labels` replace the numbers of x."""
        # Texts are placed by their baseline.
        x_labels = [(tick, _format_tick(tick)) for tick in self.x_ticks] if labels is None else labels
        elements = [_text(self.to_x(tick), self.bottom + 17, label, "tick middle") for tick, label in x_labels]
        for tick in self.y_ticks:
            tick_y = self.to_y(tick)
            elements.append(f'<path class="grid" d="M{self.start} {tick_y:.1f}H{self.end}"/>')
            elements.append(_text(self.start - 8, tick_y + 4, _format_tick(tick), "tick end"))
        elements.append(_text(0, 13, y, "axis") if y else "")
        return "".join([*elements, _text(self.end, self.bottom + 37, x, "axis end")])

    def draw_dot(self, dot: Dot) -> str:
        """Draw a dot with its text, which the pointer shows, and its whisker."""
        x, y = self.to_x(dot.x), self.to_y(dot.y)
        whisker = ""
        if dot.low is not None and dot.high is not None:
            bottom, top = self.to_y(dot.low), self.to_y(dot.high)
            caps = f"M{x - 4:.1f} {bottom:.1f}h8M{x - 4:.1f} {top:.1f}h8"
            whisker = f'<path class="whisker" d="M{x:.1f} {bottom:.1f}V{top:.1f}{caps}"/>'
        classes = f"dot {dot.kind}".strip()
        circle = f'cx="{x:.1f}" cy="{y:.1f}" r="{dot.radius:.1f}"'
        return f'{whisker}<circle class="{classes}" {circle}><title>{escape_text(dot.hover)}</title></circle>'


def line_chart(
    lines: Mapping[str, Sequence[Sequence[Any]]],
    *,
    name: str,
    x: str,
    best_x: float | None = None,
    guides: Mapping[str, float] = _NO_GUIDES,
) -> Markup:
    """Draw lines over an x axis that starts at zero, with a dot per point of short lines.

    Args:
        lines: Name -> points, each a `Dot` or a pair (x, y).
        name: Description of the picture for screen readers.
        x: Name of the x axis.
        best_x: Value of x that is marked as the best.
        guides: Name -> y value of a dashed horizontal line.
    """
    # 1. Draw the legend, whose height moves the area down. It has the values of guides, so that no line crosses a text.
    dots_by_line = {label: [Dot(*point) for point in line] for label, line in lines.items()}
    dots = [dot for line in dots_by_line.values() for dot in line]
    classes = {label: f"s{index % COLORS}{' again' * (index >= COLORS)}" for index, label in enumerate(lines)}
    line_entries = classes if len(lines) > 1 or guides else {}
    legend, top = _draw_legend({**line_entries, **{f"{label}: {y:.3f}": "" for label, y in guides.items()}})
    # 2. Draw the axes, the guides and the mark of the best value, which the lines cover.
    area = _fit_area([0, *(dot.x for dot in dots)], [*_list_y_values(dots), *guides.values()], top)
    elements = [legend, area.draw_axes(x)]
    elements += [f'<path class="guide" d="M{area.start} {area.to_y(y):.1f}H{area.end}"/>' for y in guides.values()]
    if best_x is not None:
        mark_x = area.to_x(best_x)
        elements.append(f'<path class="guide" d="M{mark_x:.1f} {area.top}V{area.bottom}"/>')
        # Keep the text to the left of the name of the axis.
        elements.append(_text(min(mark_x, area.end - 75), area.bottom + 37, "best", "tick middle"))
    # 3. Draw each line in its color, with a dot per point. Many dots would hide the line and make the page large.
    for label, line in dots_by_line.items():
        elements.append(f'<g class="{classes[label]}"><polyline class="line" points="{area.draw_path(line)}"/>')
        # A line of one point has no length, so only its dot is visible.
        radius = 5 if len(line) == 1 else 3 if len(line) <= 30 else 1.5
        for dot in line if len(line) <= MAX_DOTS else ():
            hover = dot.hover or f"{label}: {dot.y:.4g} at {x} {dot.x:g}"
            elements.append(area.draw_dot(dot._replace(hover=hover, radius=radius)))
        elements.append("</g>")
    return _draw_picture(area.bottom + 44, name, elements)


def scatter(
    dots: Sequence[Dot],
    *,
    name: str,
    x: str,
    y: str,
    guide: Line = (),
    labels: Sequence[tuple[float, str]] | None = None,
) -> Markup:
    """Draw dots, and a dashed line through `guide`. If given, `labels` are the labels of an x axis from 0 to 1."""
    all_dots = [*dots, *(Dot(*point) for point in guide)]
    area = _fit_area([dot.x for dot in all_dots], _list_y_values(all_dots))
    if labels is not None:
        # The margin separates dots from the numbers of the y axis.
        area = replace(area, x_ticks=(-0.05, 1.05))
    elements = [area.draw_axes(x, y, labels), *map(area.draw_dot, dots)]
    if guide:
        elements.append(f'<polyline class="guide" points="{area.draw_path(guide)}"/>')
    return _draw_picture(area.bottom + 44, name, elements)


def interval_strip(spans: Sequence[Span], *, name: str) -> Markup:
    """Draw a row per span above a common axis: its label and value, and below them its interval and its dots."""
    row_height, top = 44, 6
    values = [value for span in spans for value in (span.low, span.high, *(dot.x for dot in span.dots))]
    area = Area(ticks(min(values), max(values)), (0, 1), 12, top, WIDTH - 12, top + row_height * len(spans))
    elements = []
    for tick in area.x_ticks:
        x = area.to_x(tick)
        elements.append(f'<path class="grid" d="M{x:.1f} {area.top}V{area.bottom}"/>')
        elements.append(_text(x, area.bottom + 17, _format_tick(tick), "tick middle"))
    for index, span in enumerate(spans):
        y, label = top + row_height * index + 30, shorten(span.label, 56 - len(span.text))
        low, high = area.to_x(span.low), area.to_x(span.high)
        elements.append(
            f'<g class="{"own" if span.is_reference else "other"}">'
            f"<title>{escape_text(f'{span.label}: {span.text}')}</title>"
            f"{_text(0, y - 12, label, 'label')}{_text(WIDTH, y - 12, span.text, 'label value')}"
            f'<path class="track" d="M{area.start} {y}H{area.end}"/>'
            f'<path class="span" d="M{low:.1f} {y}H{high:.1f}"/>'
        )
        if span.value is not None:
            elements.append(f'<circle class="mark" cx="{area.to_x(span.value):.1f}" cy="{y}" r="5.5"/>')
        # Draw the dots at three heights in turn, so that equal values do not cover each other.
        for dot_index, dot in enumerate(span.dots):
            height = (area.bottom - y + 7 * (dot_index % 3 - 1)) / (area.bottom - area.top)
            elements.append(area.draw_dot(dot._replace(y=height, radius=4)))
        elements.append("</g>")
    return _draw_picture(area.bottom + 24, name, elements)


def difference_strip(zero_label: str, differences: Iterable[tuple[str, Any]], *, name: str) -> Markup | None:
    """Draw the ``difference`` of each record with its ``interval`` next to zero, or return None without intervals."""
    spans = [Span(zero_label, "0", 0.0, 0.0, 0.0, is_reference=True)]
    for label, record in differences:
        if record.interval is not None:
            spans.append(Span(label, f"{record.difference:+.4f}", record.difference, *record.interval))
    return interval_strip(spans, name=name) if len(spans) > 1 else None


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round values, whose first and last enclose the range.

    >>> ticks(0.13, 0.88)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    # Widen a single value to a range, because an axis needs two ends.
    if high <= low:
        pad = abs(low) / 2 or 0.5
        low, high = low - pad, high + pad
    min_step = (high - low) / count
    power = 10.0 ** math.floor(math.log10(min_step))
    # Take the smallest of 1, 2, 2.5 and 5 times a power of ten that makes no more ticks than requested.
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10, 20) if power * factor >= min_step * 0.999)
    # The tolerance keeps a value that is already a tick despite rounding errors.
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{index * step:.10g}") for index in range(first, last + 1)]


def escape_text(text: str) -> Markup:
    """Escape a text for an SVG element or attribute, and replace characters that XML does not allow by spaces."""
    return escape(_NOT_XML.sub(" ", text))


def _fit_area(xs: Sequence[float], ys: Sequence[float], top: float = 26) -> Area:
    """Return an area whose axes enclose these values."""
    y_ticks = ticks(min(ys), max(ys), 4)
    # Long numbers of the y axis need more space than the default.
    start = max(Area.start, 12 + max(_estimate_width(_format_tick(tick)) for tick in y_ticks))
    return Area(ticks(min(xs), max(xs), 6), y_ticks, start, top, bottom=top + 210)


def _list_y_values(dots: Iterable[Dot]) -> list[float]:
    return [y for dot in dots for y in (dot.y, dot.low, dot.high) if y is not None]


def _draw_legend(classes: Mapping[str, str]) -> tuple[str, float]:
    """Draw the names of lines in as many rows as they need.

    Returns:
        The legend, and the top of the area below it.
    """
    elements, x, y = [], 0.0, 13
    for label, css_class in classes.items():
        width = 24 + _estimate_width(label)
        if x and x + width > WIDTH:
            x, y = 0.0, y + 20
        mark = f'<path class="{"line" if css_class else "guide"}" d="M{x:.1f} {y - 4}h14"/>'
        elements.append(f'<g class="{css_class}">{mark}{_text(x + 20, y, label, "tick")}</g>')
        x += width + 16
    return "".join(elements), y + (19 if classes else 13)


def _format_tick(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:g}"


def _estimate_width(text: str) -> float:
    """Estimate the width of a text in the largest font of the style, which narrow screens use."""
    return 9.0 * len(text)


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape_text(text)}</text>'


def _draw_picture(height: float, name: str, elements: Sequence[str]) -> Markup:
    head = f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape_text(name)}">'
    return Markup(head + "".join(elements) + "</svg>")
