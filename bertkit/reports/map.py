"""map.html: one page with a point per text, near one another where vectors are similar, layer by layer."""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertkit.metrics.reliability import sample_evenly
from bertkit.reports.svg import escape_text
from bertkit.reports.templates import load_template, write_page

MAX_POINTS = 50_000
"""Maximum number of points on a page; from more points, an evenly spaced subset is shown."""
TEXT_LENGTH = 200
"""Maximum number of characters of a text on a page."""
MAX_LABELS = 200
"""Maximum number of labels with a separate name and color, the most frequent ones; the others share one."""

_LEVELS = 2**16 - 1
_PICTURE_POINTS = 5000  # per panel of a picture
_PANEL = 220  # its width and height
_PER_ROW = 4
_MAX_LISTED = 8  # labels below a picture
_NO_LABEL = "#8b929b"
# These colors differ for all common kinds of color vision, on white and on black.
_COLORS = ("#2f7fd1", "#d9591a", "#1d9a6c", "#a05fc4", "#b98a00", "#d1578f", "#2a9db0", "#94684a")
_HUE_STEP = 137.5  # degrees, the golden angle: the hues of neighboring numbers are far apart

_SCRIPTS = ("map.js",)


Span = tuple[int, int]
"""First and last + 1 character of a word."""


class MapPoint(NamedTuple):
    """A text on a map, or a word in it."""

    id: Any
    """Id of its row, or the index of the row from 0."""
    text: str
    label: str | None = None
    span: Span | None = None
    """Place of the word, or None for a complete text."""


class MapLayer(NamedTuple):
    """Coordinates of the points at a layer."""

    name: str
    """Name such as ``layer 3``; empty for a map without layers."""
    points: np.ndarray
    """Centered coordinates, (points, 2)."""
    about: str
    """Description next to the slider."""


@dataclass(frozen=True)
class MapPage:
    """Text on a page in addition to its points."""

    title: str
    notes: Sequence[str] = ()
    """Sentences under the title."""
    table: Sequence[Mapping[str, str]] = field(default_factory=list)
    """A row per layer."""
    about_table: str = ""


class ShownMap(NamedTuple):
    """Facts about the part of a map that is on its page."""

    points: int
    characters: int
    """Maximum number of characters of a text; longer texts are shortened."""
    shortened: int
    """Number of shortened texts."""


def write_map(file: Path, points: Sequence[MapPoint], layers: Sequence[MapLayer], page: MapPage) -> ShownMap:
    """Write a page that opens from disk, and return facts about its content.

    Args:
        file: File to write.
        points: Points to show, at least one.
        layers: Layers to show, at least one; the page opens at the last.
        page: Title, notes and table of the page.
    """
    indices = sample_evenly(range(len(points)), MAX_POINTS)
    shown_points = [points[index] for index in indices]
    coordinates, extent = _quantize_points([layer.points[indices] for layer in layers])
    labels, label_ids = _number_labels(shown_points)
    facts = {
        "count": len(shown_points),
        "extent": extent,
        "layers": [{"name": layer.name, "about": layer.about} for layer in layers],
        "labels": labels,
    }
    packed, shortened = _pack_texts(shown_points)
    write_page(
        file,
        "map.html.j2",
        scripts=_SCRIPTS,
        page=page,
        facts=facts,
        embedded={"points": _base64(coordinates), "labels": _base64(label_ids.tobytes()), "texts": _base64(packed)},
        shown=len(shown_points),
        total=len(points),
        length=TEXT_LENGTH,
        shortened=shortened,
        complete=file.with_suffix(".parquet").name,
    )
    return ShownMap(len(shown_points), TEXT_LENGTH, shortened)


def get_color(index: int) -> str:
    """Return the color of a label in CSS."""
    if index < len(_COLORS):
        return _COLORS[index]
    return f"hsl({index * _HUE_STEP % 360:.0f} 65% {45 + index // 3 % 3 * 8}%)"


def split_text(text: str, span: Span | None, length: int) -> list[str]:
    """Split a text into the parts before, in and after its word; more than `length` characters are shortened.

    >>> split_text("the apple that I ate", (4, 9), 12)
    ['the ', 'apple', ' th…']
    """
    start, end = span or (0, 0)
    # Center the word in the shortened text, but keep its beginning: the window ends with the text at the latest,
    # and starts with the word at the latest.
    first = min(start, max(0, min((start + end - length) // 2, len(text) - length)))
    last = first + length
    before, after = "…" if first else "", "…" if last < len(text) else ""
    if span is None:
        return [text[first:last] + after]
    return [before + text[first:start], text[start : min(end, last)], text[end:last] + after]


def draw_layers(points: Sequence[MapPoint], layers: Sequence[MapLayer], *, name: str) -> str:
    """Draw a panel per layer side by side, as the text of an SVG file that follows the reader's theme."""
    indices = sample_evenly(range(len(points)), _PICTURE_POINTS)
    labels, label_ids = _number_labels([points[index] for index in indices])
    listed = labels[:_MAX_LISTED]
    # Rounded up: 13 layers take 4 rows of 4 panels.
    rows = -(-len(layers) // _PER_ROW)
    width, height = _PANEL * min(len(layers), _PER_ROW), (_PANEL + 40) * rows + 24 * len(listed) + 8
    panels = []
    for index, layer in enumerate(layers):
        edge, top = index % _PER_ROW * _PANEL, index // _PER_ROW * (_PANEL + 40)
        scaled = _scale_points(layer.points[indices])
        places = scaled / (float(np.abs(scaled).max()) or 1.0) * (_PANEL / 2 - 8)
        paths = []
        for label_id, label in enumerate(labels):
            # Draw strokes of length zero, whose round ends appear as points.
            path = "".join(
                f"M{edge + _PANEL / 2 + x:.1f} {top + 38 + _PANEL / 2 - y:.1f}h0"
                for x, y in places[label_ids == label_id]
            )
            paths.append((label["color"], path))
        panels.append({"layer": layer, "left": edge, "top": top, "paths": paths})
    first = (_PANEL + 40) * rows + 16
    legend = [(label["color"], label["name"], first + 24 * index) for index, label in enumerate(listed)]
    picture = load_template("map.svg.j2", escaped=escape_text)
    return picture.render(name=name, width=width, height=height, panels=panels, legend=legend)


def _scale_points(points: np.ndarray) -> np.ndarray:
    """Return centered points whose mean squared distance from the center is 1, so that layers have one scale."""
    mean_square = float((points**2).sum(axis=1).mean())
    return points / np.sqrt(mean_square) if mean_square > 0 else points


def _quantize_points(layers: Sequence[np.ndarray]) -> tuple[bytes, float]:
    """Return the coordinates, (layers, points, 2), as 16-bit numbers from -extent to extent, and the extent."""
    # All layers have the same extent, so the slider does not zoom. From -extent to extent, a coordinate becomes 0
    # to 65535, and the center 32768.
    scaled = np.stack([_scale_points(points) for points in layers])
    extent = float(np.abs(scaled).max()) or 1.0
    return np.round((scaled / extent + 1) / 2 * _LEVELS).astype("<u2").tobytes(), extent


def _number_labels(points: Sequence[MapPoint]) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Return names, colors and counts of labels, the most frequent first, and the index of each point's label."""
    counts = Counter(point.label for point in points if point.label is not None)
    labels = [
        {"name": name, "color": get_color(index), "count": count}
        for index, (name, count) in enumerate(counts.most_common(MAX_LABELS))
    ]
    label_ids = {label["name"]: index for index, label in enumerate(labels)}
    ids = np.array([label_ids.get(point.label, len(labels)) for point in points], dtype="<u2")
    rest, other_labels = int((ids == len(labels)).sum()), len(counts) - len(labels)
    if rest:
        name = f"{other_labels:,} other label{'s' * (other_labels > 1)}" if other_labels else "none"
        labels.append({"name": name, "color": _NO_LABEL, "count": rest})
    return labels, ids


def _pack_texts(points: Sequence[MapPoint]) -> tuple[bytes, int]:
    """Return the texts and their ids, compressed, and how many texts are shortened."""
    ids = [point.id if isinstance(point.id, int) else str(point.id) for point in points]
    content = {
        "texts": [split_text(point.text, point.span, TEXT_LENGTH) for point in points],
        "ids": None if ids == list(range(len(ids))) else ids,
    }
    packed = zlib.compress(json.dumps(content, separators=(",", ":")).encode(), 9)
    return packed, sum(len(point.text) > TEXT_LENGTH for point in points)


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
