"""Pictures as SVG files that stand alone and can be read on light and on dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH = 640
STYLE = """<style>
text{font:13px system-ui,sans-serif;fill:#57606a}.strong{fill:#1f2328;font-weight:600}.end{text-anchor:end}
.middle{text-anchor:middle}.grid{stroke:#d0d7de}.guide{stroke:#8c959f;stroke-dasharray:5 4}
.bar{fill:#afb8c1}.own{fill:#0969da}.other{fill:#bc4c00}
@media (prefers-color-scheme:dark){text{fill:#9198a1}.strong{fill:#f0f6fc}.grid{stroke:#3d444d}
.guide{stroke:#656c76}.bar{fill:#656c76}.own{fill:#4493f8}.other{fill:#f0883e}}
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


def _stand_alone(width: float, height: float, name: str, parts: Sequence[str]) -> str:
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    title = escape(name)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{title}"><title>{title}</title>'
    return "\n".join([head, STYLE, *parts, "</svg>"]) + "\n"
