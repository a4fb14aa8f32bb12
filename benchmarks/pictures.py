"""Pictures as SVG files that stand alone and can be read on light and on dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH = 640
TOP, GAP = 30, 24  # above a panel, for its title, and between panels
STYLE = """<style>
text{font:13px system-ui,sans-serif;fill:#57606a}.title{fill:#1f2328;font-weight:600;font-size:15px}
.strong{fill:#1f2328;font-weight:600}.end{text-anchor:end}.middle{text-anchor:middle}.grid{stroke:#d0d7de}
.guide{stroke:#8c959f;stroke-dasharray:5 4;fill:none}.bar{fill:#afb8c1}.own,.dot,.band,.swatch{fill:#0969da}
.line{fill:none;stroke:#0969da;stroke-width:2}.band{fill-opacity:.18}.other{fill:#bc4c00}
.ring{fill:none;stroke:#1f2328;stroke-width:1.6}.whisker{fill:none;stroke:#57606a;stroke-width:1.3}
.s1 .line{stroke:#bc4c00}.s1 .dot,.s1 .band,.s1 .swatch{fill:#bc4c00}
@media (prefers-color-scheme:dark){text{fill:#9198a1}.title,.strong{fill:#f0f6fc}.grid{stroke:#3d444d}
.guide{stroke:#656c76}.bar{fill:#656c76}.own,.dot,.band,.swatch{fill:#4493f8}.line{stroke:#4493f8}
.other{fill:#f0883e}.ring{stroke:#f0f6fc}.whisker{stroke:#9198a1}
.s1 .line{stroke:#f0883e}.s1 .dot,.s1 .band,.s1 .swatch{fill:#f0883e}}
</style>"""


class Bar(NamedTuple):
    """A bar, its value as text, and whether it is bertkit's own."""

    label: str
    value: float
    shown: str
    own: bool = False


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
    return _stand_alone(WIDTH, up + 10, name, parts)


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
        middle, style = top + 26 * number + 16, "own" if row.shown else "other"
        begin, end = across(row.low), across(row.high)
        hover = f"{row.middle:+.2f}, from {row.low:+.2f} to {row.high:+.2f}"
        parts.append(
            f'<text x="0" y="{middle + 4}">{escape(row.label)}</text>'
            f'<rect class="{style}" x="{begin:.1f}" y="{middle - 1}" width="{end - begin:.1f}" height="2"/>'
            f'<circle class="{style}" cx="{across(row.middle):.1f}" cy="{middle}" r="4.5">'
            f"<title>{hover}</title></circle>"
        )
    parts.append(f'<text class="end" x="{right}" y="{bottom + 20}">{escape(x)}</text>')
    return _stand_alone(WIDTH, bottom + 30, name, parts)


def draw_panels(panels: Sequence[tuple[str, str]], name: str, columns: int = 1) -> str:
    """Put charts of `bertkit.reports.svg` below titles and beside each other, as one picture."""
    parts, height, width = [], 0.0, 0.0
    for number, (title, chart) in enumerate(panels):
        *_, wide, high = map(float, str(chart).partition('viewBox="')[2].split('"')[0].split())
        left, top = (wide + GAP) * (number % columns), number // columns * (high + TOP + GAP)
        height, width = max(height, top + high + TOP + GAP), max(width, left + wide)
        place = f'<svg x="{left:g}" y="{top + TOP:g}" width="{wide:g}" height="{high:g}" overflow="visible" '
        parts.append(f'<text class="title" x="{left:g}" y="{top + 16:g}">{escape(title)}</text>')
        parts.append(str(chart).replace("<svg ", place, 1))
    return _stand_alone(width, height, name, parts)


def _stand_alone(width: float, height: float, name: str, parts: Sequence[str]) -> str:
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    title = escape(name)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{title}"><title>{title}</title>'
    return "\n".join([head, STYLE, *parts, "</svg>"]) + "\n"
