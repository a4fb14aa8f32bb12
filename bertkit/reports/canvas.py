"""What charts in SVG are drawn with: an area that maps values to coordinates, axes, dots, whiskers and texts."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH = 480
_NOT_XML = re.compile("[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


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
    # The least of 1, 2, 2.5 and 5 times a power of ten that makes no more ticks than asked for.
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10, 20) if size * factor >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{number * step:.10g}") for number in range(first, last + 1)]


@dataclass(frozen=True)
class Area:
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
        """Return where a value is on the x axis."""
        return self.left + (value - self.x[0]) / (self.x[1] - self.x[0]) * (self.end - self.left)

    def up(self, value: float) -> float:
        """Return where a value is on the y axis."""
        return self.bottom - (value - self.y[0]) / (self.y[1] - self.y[0]) * (self.bottom - self.top)


def fit_area(xs: Sequence[float], ys: Sequence[float], sideways: bool = True) -> Area:
    """Return an area whose axes enclose these values; without `sideways`, the x axis has no ticks."""
    x, y = ticks(min(xs), max(xs), 6), ticks(min(ys), max(ys), 4)
    left = max(Area.left, 12 + max(text_width(_number(mark)) for mark in y))
    return Area((x[0], x[-1]), (y[0], y[-1]), left, x_ticks=tuple(x if sideways else ()), y_ticks=tuple(y))


def draw_axes(area: Area, x: str, y: str = "") -> str:
    """Draw the ticks of both axes with their numbers, the lines of the y axis, and the names."""
    elements = [draw_upright(area, mark, grid=False) for mark in area.x_ticks]
    for mark in area.y_ticks:
        up = area.up(mark)
        elements.append(
            f'<line class="grid" x1="{area.left}" y1="{up:.1f}" x2="{area.end}" y2="{up:.1f}"/>'
            f'<text class="tick end" x="{area.left - 8}" y="{up + 4:.1f}">{_number(mark)}</text>'
        )
    elements.append(f'<text class="axis" x="0" y="13">{escape_text(y)}</text>' if y else "")
    elements.append(f'<text class="axis end" x="{area.end}" y="{area.bottom + 37}">{escape_text(x)}</text>')
    return "".join(elements)


def draw_upright(area: Area, mark: float, grid: bool = True) -> str:
    """Draw a tick of the x axis with its number, and a line above it unless `grid` is false."""
    across = area.right(mark)
    line = f'<line class="grid" x1="{across:.1f}" y1="{area.top}" x2="{across:.1f}" y2="{area.bottom}"/>'
    text = f'<text class="tick middle" x="{across:.1f}" y="{area.bottom + 17}">{_number(mark)}</text>'
    return line + text if grid else text


def draw_dot(across: float, up: float, hover: str, radius: float = 3) -> str:
    """Draw a dot that shows a text to the pointer."""
    place = f'cx="{across:.1f}" cy="{up:.1f}" r="{radius:.1f}"'
    return f'<circle class="dot" {place}><title>{escape_text(hover)}</title></circle>'


def draw_whisker(across: float, low: float, high: float) -> str:
    """Draw an upright interval."""
    return (
        f'<path class="whisker" d="M{across:.1f} {low:.1f}V{high:.1f}'
        f'M{across - 4:.1f} {low:.1f}h8M{across - 4:.1f} {high:.1f}h8"/>'
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:g}"


def text_width(text: str) -> float:
    """Return about how wide a text is in the largest type that the page's CSS gives it, that of narrow screens."""
    return 9.0 * len(text)


def escape_text(text: str) -> Markup:
    """Return text as it stands in an SVG element or attribute; what XML cannot hold becomes a space."""
    return escape(_NOT_XML.sub(" ", text))


def draw_picture(height: float, name: str, elements: Sequence[str]) -> Markup:
    """Return the whole picture; its name is for those who cannot see it."""
    head = f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape_text(name)}">'
    return Markup(head + "".join(elements) + "</svg>")
