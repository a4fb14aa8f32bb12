"""Pictures as SVG files that stand alone and can be read on light and on dark pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import cycle
from typing import NamedTuple

WIDTH = 640
_PANEL = 150  # its height
_STYLE = """<style>
text{font:13px system-ui,sans-serif;fill:#57606a}.strong{fill:#1f2328;font-weight:600}.end{text-anchor:end}
.middle{text-anchor:middle}.grid{stroke:#d0d7de}.bar{fill:#afb8c1}.own{fill:#0969da}.dot{fill:#0969da}
.other{fill:#bc4c00}.guide{stroke:#8c959f;stroke-dasharray:4 4;fill:none}
@media (prefers-color-scheme:dark){text{fill:#9198a1}.strong{fill:#f0f6fc}.grid{stroke:#3d444d}.bar{fill:#656c76}
.own,.dot{fill:#4493f8}.other{fill:#f0883e}}
</style>"""


class Bar(NamedTuple):
    """A bar, its value as text, and whether it is bertkit's own."""

    label: str
    value: float
    shown: str
    own: bool = False


class Dot(NamedTuple):
    """A point of one of two series."""

    x: float
    y: float
    hover: str
    first: bool = True


class Interval(NamedTuple):
    """A difference with the ends of its interval, and whether it counts as shown."""

    label: str
    low: float
    middle: float
    high: float
    shown: bool


def bars(groups: Sequence[tuple[str, Sequence[Bar]]], name: str) -> str:
    """Draw groups of horizontal bars; the bars of a group share a scale, groups do not."""
    longest_label = max(len(bar.label) for _, group in groups for bar in group)
    parts, up, left = [], 8, max(100, 8 * longest_label)
    for title, group in groups:
        up += 20
        parts.append(f'<text class="strong" x="0" y="{up}">{escape(title)}</text>')
        up += 8
        longest = max(bar.value for bar in group)
        for bar in group:
            width = max(1.0, max(100, WIDTH - left - 150) * bar.value / longest)
            strong = ' class="strong"' if bar.own else ""
            parts.append(
                f'<text{strong} x="0" y="{up + 15}">{escape(bar.label)}</text>'
                f'<rect class="{"own" if bar.own else "bar"}" x="{left}" y="{up + 3}" width="{width:.1f}" height="16"'
                f' rx="2"/><text{strong} x="{left + width + 8:.1f}" y="{up + 15}">{escape(bar.shown)}</text>'
            )
            up += 24
    return _svg(up + 10, name, parts)


def intervals(rows: Sequence[Interval], *, margin: float, x: str, name: str) -> str:
    """Draw differences with their intervals over one scale, with lines at zero and at minus the margin."""
    left, right, top = 250, WIDTH - 40, 26
    low, high = min([-margin, *(row.low for row in rows)]), max([margin, *(row.high for row in rows)])
    bottom = top + 26 * len(rows) + 6

    def across(value: float) -> float:
        return left + (right - left) * (value - low) / (high - low)

    parts = []
    for mark, style in ((0.0, "grid"), (-margin, "guide")):
        across_mark = f"{across(mark):.1f}"
        parts.append(f'<line class="{style}" x1="{across_mark}" y1="{top}" x2="{across_mark}" y2="{bottom}"/>')
        parts.append(f'<text class="middle" x="{across_mark}" y="{top - 8}">{mark:g}</text>')
    for number, row in enumerate(rows):
        middle, colors = top + 26 * number + 16, ("own", "dot") if row.shown else ("other", "other")
        begin, end = across(row.low), across(row.high)
        hover = f"{row.middle:+.2f}, from {row.low:+.2f} to {row.high:+.2f}"
        parts.append(
            f'<text x="0" y="{middle + 4}">{escape(row.label)}</text>'
            f'<rect class="{colors[0]}" x="{begin:.1f}" y="{middle - 1}" width="{end - begin:.1f}" height="2"/>'
            f'<circle class="{colors[1]}" cx="{across(row.middle):.1f}" cy="{middle}" r="4.5">'
            f"<title>{hover}</title></circle>"
        )
    parts.append(f'<text class="end" x="{right}" y="{bottom + 20}">{escape(x)}</text>')
    return _svg(bottom + 30, name, parts)


def powers_of_ten(low: float, high: float) -> list[float]:
    """Return the powers of ten that enclose a range.

    >>> powers_of_ten(3, 250)
    [1.0, 10.0, 100.0, 1000.0]
    """
    return [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]


def log_scatter(
    dots: Sequence[Dot], *, line: tuple[float, float], x: str, y: str, legend: tuple[str, str], name: str
) -> str:
    """Draw points on logarithmic axes, and the power law of a factor and an exponent through them."""
    left, right, top, bottom = 70, WIDTH - 40, 40, 330
    xs, ys = (powers_of_ten(min(each), max(each)) for each in zip(*((dot.x, dot.y) for dot in dots), strict=True))

    def across(value: float) -> float:
        return left + (right - left) * math.log(value / xs[0]) / math.log(xs[-1] / xs[0])

    def up(value: float) -> float:
        return bottom - (bottom - top) * math.log(value / ys[0]) / math.log(ys[-1] / ys[0])

    parts = []
    for mark in xs:
        place = f"{across(mark):.1f}"
        parts.append(f'<line class="grid" x1="{place}" y1="{top}" x2="{place}" y2="{bottom}"/>')
        parts.append(f'<text class="middle" x="{place}" y="{bottom + 20}">{mark:,.10g}</text>')
    for mark in ys:
        place = f"{up(mark):.1f}"
        parts.append(f'<line class="grid" x1="{left}" y1="{place}" x2="{right}" y2="{place}"/>')
        parts.append(f'<text class="end" x="{left - 8}" y="{up(mark) + 4:.1f}">{mark:,.10g}</text>')
    factor, exponent = line
    ends = [min(dot.x for dot in dots), max(dot.x for dot in dots)]
    path = " ".join(f"{across(end):.1f},{up(factor * end**exponent):.1f}" for end in ends)
    parts.append(f'<polyline class="guide" points="{path}"/>')
    for dot in dots:
        style = "dot" if dot.first else "other"
        place = f'cx="{across(dot.x):.1f}" cy="{up(dot.y):.1f}"'
        parts.append(f'<circle class="{style}" {place} r="4.5"><title>{escape(dot.hover)}</title></circle>')
    for number, (label, style) in enumerate(zip(legend, ("dot", "other"), strict=True)):
        place = left + 10 + 190 * number
        parts.append(f'<circle class="{style}" cx="{place}" cy="28" r="4.5"/>')
        parts.append(f'<text x="{place + 10}" y="32">{escape(label)}</text>')
    parts.append(f'<text x="0" y="14">{escape(y)}</text>')
    parts.append(f'<text class="end" x="{right}" y="{bottom + 42}">{escape(x)}</text>')
    return _svg(bottom + 52, name, parts)


class Way(NamedTuple):
    """A point of a panel: a cost, a score with its interval, and a name if it is written beside the point."""

    cost: float
    score: float
    low: float
    high: float
    hover: str
    label: str
    is_best: bool
    first: bool = True


def panels(groups: Sequence[tuple[str, Sequence[Way]]], *, x: str, name: str) -> str:
    """Draw scores by cost, a panel per group below one another, and in each a line through the best."""
    parts, top = [], 24
    for title, ways in groups:
        parts += _panel(title, sorted(ways), top)
        top += _PANEL + 62
    parts.append(f'<text class="end" x="{WIDTH - 110}" y="{top - 18}">{escape(x)}</text>')
    return _svg(top - 8, name, parts)


def _panel(title: str, ways: Sequence[Way], top: float) -> list[str]:
    left, right, bottom = 70, WIDTH - 110, top + _PANEL
    most, low, high = max(way.cost for way in ways), min(way.low for way in ways), max(way.high for way in ways)

    def across(value: float) -> float:
        return left + (right - left) * value / most

    def up(value: float) -> float:
        return bottom - 20 - (_PANEL - 40) * (value - low) / ((high - low) or 1)

    parts = [f'<text class="strong" x="0" y="{top - 8}">{escape(title)}</text>']
    for share in (0.0, 0.5, 1.0):
        mark, value = f"{across(most * share):.1f}", low + (high - low) * share
        parts.append(f'<line class="grid" x1="{mark}" y1="{top}" x2="{mark}" y2="{bottom}"/>')
        parts.append(f'<text class="middle" x="{mark}" y="{bottom + 18}">{most * share:.3g}</text>')
        parts.append(f'<text class="end" x="{left - 10}" y="{up(value) + 4:.1f}">{value:+.3f}</text>')
    path = " ".join(f"{across(way.cost):.1f},{up(way.score):.1f}" for way in ways if way.is_best)
    parts.append(f'<polyline class="guide" points="{path}"/>')
    heights = cycle((-9, 18, -24, 33))  # above and below by turns, so that names have room
    for way in ways:
        style, place, height = "dot" if way.first else "other", f"{across(way.cost):.1f}", f"{up(way.score):.1f}"
        label = up(way.score) + (next(heights) if way.label else 0)
        parts.append(
            f'<line class="guide" style="stroke-dasharray:none" x1="{place}" y1="{up(way.low):.1f}" x2="{place}"'
            f' y2="{up(way.high):.1f}"/><circle class="{style}" cx="{place}" cy="{height}" r="4.5">'
            f"<title>{escape(way.hover)}</title></circle>"
            f'<text x="{across(way.cost) + 6:.1f}" y="{label:.1f}">{escape(way.label)}</text>'
        )
    return parts


def _svg(height: float, name: str, parts: Sequence[str]) -> str:
    size = f'width="{WIDTH}" height="{height:g}" viewBox="0 0 {WIDTH} {height:g}"'
    title = escape(name)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{title}"><title>{title}</title>'
    return "\n".join([head, _STYLE, *parts, "</svg>"]) + "\n"
