"""Pictures as SVG files that stand alone and can be read on light and on dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH = 640
STYLE = """<style>
text{font:13px system-ui,sans-serif;fill:#57606a}.strong{fill:#1f2328;font-weight:600}.value{text-anchor:end}
.middle{text-anchor:middle}.grid,.track{stroke:#d0d7de}.bar{fill:#afb8c1}.span{stroke-width:3}
rect.own,.own .mark{fill:#0969da}.other .mark{fill:#bc4c00}.own .span{stroke:#0969da}.other .span{stroke:#bc4c00}
@media (prefers-color-scheme:dark){text{fill:#9198a1}.strong{fill:#f0f6fc}.grid,.track{stroke:#3d444d}
.bar{fill:#656c76}rect.own,.own .mark{fill:#4493f8}.other .mark{fill:#f0883e}.own .span{stroke:#4493f8}
.other .span{stroke:#f0883e}}
</style>"""


class Bar(NamedTuple):
    """A bar, its value as text, and whether it is bertkit's own."""

    label: str
    value: float
    shown: str
    own: bool = False


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
    head = f'<svg viewBox="0 0 {WIDTH} {up + 10}" role="img" aria-label="{escape(name)}">'
    return stand_alone("\n".join([head, *parts, "</svg>"]))


def stand_alone(picture: str) -> str:
    """Return a picture with its style, as the content of a file."""
    head, _, rest = picture.partition(">")
    return f'{head} xmlns="http://www.w3.org/2000/svg" width="{WIDTH}">\n{STYLE}\n{rest}\n'
