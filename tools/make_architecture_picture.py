"""Draw the packages of bertkit in layers, with their sizes and imports, for docs/architecture.md.

The layers come from pyproject.toml, the sentences from the packages' docstrings, and the arrows from imports. An
arrow is omitted if a longer path leads to the same package.
"""

from __future__ import annotations

import ast
import re
import textwrap
import tomllib
from collections.abc import Mapping
from html import escape
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "bertkit"
PICTURE = ROOT / "docs" / "images" / "architecture.svg"

WIDTH, BOX, HEIGHT, GAP = 960, 290, 62, 34
STYLE = (
    "text { font: 11.5px system-ui, sans-serif; fill: #1f2933 } .room { font-weight: 600; font-size: 15px } "
    "rect { fill: #f5f7fa; stroke: #9aa5b1 } path { fill: none; stroke: #9aa5b1 } .page { fill: #fff; stroke: none }"
)


def read_layers() -> list[list[str]]:
    """Return the packages of each layer, from the top, without the two modules below all packages."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lines = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    layers = [[name.strip().removeprefix("bertkit.") for name in line.split("|")] for line in lines]
    return [layer for layer in layers if (PACKAGE / layer[0]).is_dir()]


def read_imports(room: str) -> set[str]:
    """Return the packages that a package imports, including imports in functions and for types."""
    names = set[str]()
    for file in (PACKAGE / room).rglob("*.py"):
        names.update(re.findall(r"^ *from bertkit\.(\w+)", file.read_text(encoding="utf-8"), re.MULTILINE))
    return {name for name in names if (PACKAGE / name).is_dir()} - {room}


def without_detours(imports: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the imports of each package that none of its other imports leads to."""

    def reached(room: str) -> set[str]:
        return imports[room].union(*map(reached, imports[room]))

    return {room: names - set[str]().union(*map(reached, names)) for room, names in imports.items()}


def draw() -> str:
    """Return the picture as SVG."""
    layers = read_layers()
    places = dict[str, tuple[float, float]]()
    for row, layer in enumerate(layers):
        x = (WIDTH - len(layer) * BOX - (len(layer) - 1) * GAP) / 2
        places |= {room: (x + column * (BOX + GAP), 12 + row * (HEIGHT + GAP)) for column, room in enumerate(layer)}
    height = 24 + len(layers) * (HEIGHT + GAP) - GAP
    arrows = without_detours({room: read_imports(room) for room in places})
    parts = [_arrow(places[room], places[name]) for room in places for name in sorted(arrows[room])]
    parts += [_box(room, *place) for room, place in places.items()]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
    title = f"<title>The {len(places)} packages of bertkit, in layers</title>"
    page = f'<rect class="page" width="{WIDTH}" height="{height}"/>'
    return "\n".join([f"{head}>{title}<style>{STYLE}</style>", page, *parts, "</svg>\n"])


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    x, y = start[0] + BOX / 2, start[1] + HEIGHT
    to_x, to_y = end[0] + BOX / 2, end[1]
    return f'<path d="M{x:g} {y:g} C{x:g} {y + GAP:g} {to_x:g} {to_y - GAP:g} {to_x:g} {to_y:g}"/>'


def _box(room: str, x: float, y: float) -> str:
    files = list((PACKAGE / room).rglob("*.py"))
    docstring = str(ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text(encoding="utf-8"))))
    lines = textwrap.wrap(docstring.split("\n")[0], 43, max_lines=2, placeholder=" ...")
    texts = [f'<text class="room" x="{x + 10:g}" y="{y + 20:g}">{room}/</text>']
    texts.append(f'<text x="{x + BOX - 10:g}" y="{y + 20:g}" text-anchor="end">{len(files)} modules</text>')
    texts += [f'<text x="{x + 10:g}" y="{y + 38 + 15 * row:g}">{escape(line)}</text>' for row, line in enumerate(lines)]
    return f'<rect x="{x:g}" y="{y:g}" width="{BOX}" height="{HEIGHT}" rx="5"/>' + "".join(texts)


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
    print(f"{PICTURE}: written")
