"""map.html: a page with one point per text at each layer; points are close if their vectors are similar."""

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
"""Maximum number of points on a page. A page of a larger map shows an evenly spaced subset."""
TEXT_LENGTH = 200
"""Maximum number of characters of a text on a page."""
MAX_LABELS = 200
"""Number of most frequent labels with a separate name and color; other labels share one color."""

_LEVELS = 2**16 - 1
_MAX_PANEL_POINTS = 5000
_PANEL_SIZE = 220
_PANELS_PER_ROW = 4
_MAX_LEGEND_LABELS = 8
_UNLABELED_COLOR = "#8b929b"
# Colors that differ for all common types of color vision, on white and on black.
_COLORS = ("#2f7fd1", "#d9591a", "#1d9a6c", "#a05fc4", "#b98a00", "#d1578f", "#2a9db0", "#94684a")
_HUE_STEP = 137.5  # degrees, the golden angle: the hues of consecutive labels are far apart


Span = tuple[int, int]
"""First and last + 1 character of a word."""


class MapPoint(NamedTuple):
    """A text on a map, or a word in it."""

    id: Any
    """Id or index (from 0) of the row."""
    text: str
    label: str | None = None
    span: Span | None = None
    """Characters of the word, or None for a complete text."""


class MapLayer(NamedTuple):
    """Coordinates of the points at a layer."""

    name: str
    """Name such as ``layer 3``; empty for a map without layers."""
    points: np.ndarray
    """Centered coordinates. Shape: (points, 2)."""
    about: str
    """Description next to the slider."""


@dataclass(frozen=True)
class MapPage:
    """Texts on a page in addition to its points."""

    title: str
    notes: Sequence[str] = ()
    """Sentences under the title."""
    table: Sequence[Mapping[str, str]] = field(default_factory=list)
    """A row per layer."""
    about_table: str = ""


class ShownMap(NamedTuple):
    """Numbers of the points and of the shortened texts on a page."""

    points: int
    characters: int
    """Maximum number of characters of a text; longer texts are shortened."""
    shortened: int
    """Number of shortened texts."""


def write_map(file: Path, points: Sequence[MapPoint], layers: Sequence[MapLayer], page: MapPage) -> ShownMap:
    """Write a page that opens from disk, and return counts of its content.

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
    texts, shortened = _pack_texts(shown_points)
    write_page(
        file,
        "map.html.j2",
        scripts=("map.js",),
        page=page,
        facts=facts,
        embedded={"points": _base64(coordinates), "labels": _base64(label_ids.tobytes()), "texts": _base64(texts)},
        shown=len(shown_points),
        total=len(points),
        length=TEXT_LENGTH,
        shortened=shortened,
        data_file=file.with_suffix(".parquet").name,
    )
    return ShownMap(len(shown_points), TEXT_LENGTH, shortened)


def get_color(index: int) -> str:
    """Return the CSS color of a label."""
    if index < len(_COLORS):
        return _COLORS[index]
    return f"hsl({index * _HUE_STEP % 360:.0f} 65% {45 + index // 3 % 3 * 8}%)"


def split_text(text: str, span: Span | None, length: int) -> list[str]:
    """Split a text into the parts before, in and after its word, and shorten it to `length` characters.

    >>> split_text("the apple that I ate", (4, 9), 12)
    ['the ', 'apple', ' th…']
    """
    start, end = span or (0, 0)
    # Center the word in the shortened text, but show its start if the word is too long.
    window_start = min(start, max(0, min((start + end - length) // 2, len(text) - length)))
    window_end = window_start + length
    prefix, suffix = "…" if window_start else "", "…" if window_end < len(text) else ""
    if span is None:
        return [text[window_start:window_end] + suffix]
    word = text[start : min(end, window_end)]
    return [prefix + text[window_start:start], word, text[end:window_end] + suffix]


def draw_layers(points: Sequence[MapPoint], layers: Sequence[MapLayer], *, name: str) -> str:
    """Draw a panel per layer, as the text of an SVG file in the light or dark theme of the reader."""
    indices = sample_evenly(range(len(points)), _MAX_PANEL_POINTS)
    labels, label_ids = _number_labels([points[index] for index in indices])
    panel_height = _PANEL_SIZE + 40
    # Rounded up: 13 layers take 4 rows of 4 panels.
    rows = -(-len(layers) // _PANELS_PER_ROW)
    panels = []
    for index, layer in enumerate(layers):
        panel_x, panel_y = index % _PANELS_PER_ROW * _PANEL_SIZE, index // _PANELS_PER_ROW * panel_height
        scaled_points = _scale_points(layer.points[indices])
        positions = scaled_points / (float(np.abs(scaled_points).max()) or 1.0) * (_PANEL_SIZE / 2 - 8)
        paths = []
        for label_id, label in enumerate(labels):
            # Draw strokes of length zero, whose round ends look like points.
            path = "".join(
                f"M{panel_x + _PANEL_SIZE / 2 + x:.1f} {panel_y + 38 + _PANEL_SIZE / 2 - y:.1f}h0"
                for x, y in positions[label_ids == label_id]
            )
            paths.append((label["color"], path))
        panels.append({"layer": layer, "left": panel_x, "top": panel_y, "paths": paths})
    legend_y, legend_labels = panel_height * rows + 16, labels[:_MAX_LEGEND_LABELS]
    legend = [(label["color"], label["name"], legend_y + 24 * index) for index, label in enumerate(legend_labels)]
    width, height = _PANEL_SIZE * min(len(layers), _PANELS_PER_ROW), panel_height * rows + 24 * len(legend) + 8
    picture = load_template("map.svg.j2", escaped=escape_text)
    return picture.render(name=name, width=width, height=height, panels=panels, legend=legend)


def _scale_points(points: np.ndarray) -> np.ndarray:
    """Scale centered points to a mean squared distance of 1 from the center, so that all layers have one scale."""
    mean_square = float((points**2).sum(axis=1).mean())
    return points / np.sqrt(mean_square) if mean_square > 0 else points


def _quantize_points(layers: Sequence[np.ndarray]) -> tuple[bytes, float]:
    """Return the coordinates of all layers as 16-bit numbers, and the extent. Shape: (layers, points, 2)."""
    # The range from -extent to extent becomes 0 to 65535, and the center 32768. All layers have the same extent, so
    # that the slider does not zoom.
    scaled_points = np.stack([_scale_points(points) for points in layers])
    extent = float(np.abs(scaled_points).max()) or 1.0
    return np.round((scaled_points / extent + 1) / 2 * _LEVELS).astype("<u2").tobytes(), extent


def _number_labels(points: Sequence[MapPoint]) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Return name, color and count of each label, the most frequent first, and the label index of each point."""
    counts = Counter(point.label for point in points if point.label is not None)
    labels = [
        {"name": name, "color": get_color(index), "count": count}
        for index, (name, count) in enumerate(counts.most_common(MAX_LABELS))
    ]
    label_ids = {label["name"]: index for index, label in enumerate(labels)}
    ids = np.array([label_ids.get(point.label, len(labels)) for point in points], dtype="<u2")
    if num_other_points := int((ids == len(labels)).sum()):
        num_other_labels = len(counts) - len(labels)
        name = f"{num_other_labels:,} other label{'s' * (num_other_labels > 1)}" if num_other_labels else "none"
        labels.append({"name": name, "color": _UNLABELED_COLOR, "count": num_other_points})
    return labels, ids


def _pack_texts(points: Sequence[MapPoint]) -> tuple[bytes, int]:
    """Return the compressed texts and their ids, and the number of shortened texts."""
    ids = [point.id if isinstance(point.id, int) else str(point.id) for point in points]
    content = {
        "texts": [split_text(point.text, point.span, TEXT_LENGTH) for point in points],
        "ids": None if ids == list(range(len(ids))) else ids,
    }
    compressed = zlib.compress(json.dumps(content, separators=(",", ":")).encode(), 9)
    return compressed, sum(len(point.text) > TEXT_LENGTH for point in points)


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
