"""Maps of contextual vectors: points, projection of each layer to a plane, and separation of labels."""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from bertkit.analysis.layer_vectors import LayerVectors
from bertkit.data.rows import is_blank
from bertkit.errors import DataError, UnavailableError, UsageError, did_you_mean, install_command
from bertkit.metrics.intervals import wilson_interval
from bertkit.metrics.linear import draw_rows
from bertkit.progress import get_progress, log, stage
from bertkit.recipe.sections import Row
from bertkit.reports.map import MapPoint, Span
from bertkit.tokens.words import read_target, read_target_word, read_words
from bertkit.vectors.near_vectors import find_nearest
from bertkit.vectors.text_files import TextSource, read_file_rows
from bertkit.vectors.units import UNITS
from bertkit.vectors.vector_files import to_unit_length

# --- Points ---


def get_unit(unit: str, words: Sequence[str]) -> str:
    """Return the unit of a vector: ``text``, or ``target`` for a word in its text.

    Raises:
        UsageError: If a word is empty.
    """
    if any(is_blank(word) for word in words):
        raise UsageError("--word without a word", "write e.g. --word apple")
    return "target" if words else unit


def read_points(
    source: TextSource, unit: str = "text", words: Sequence[str] = (), label: str | None = None
) -> tuple[list[MapPoint], list[Row]]:
    """Read the points of a map from a file.

    Args:
        source: The file.
        unit: ``text``, or ``target`` for the word that the column ``target`` points to.
        words: Words to draw, in any case; empty for all points. With the unit ``text``, each occurrence of a word is a
            point; with ``target``, each target that is one of the words. Without a label, points are labeled by their
            word if there are several words.
        label: Column of the labels; an empty cell is not a label.

    Returns:
        The points, and for each point a row for `LayerReader.read` with the columns ``text``, ``text`` and ``target``,
        or ``tokens`` and ``target``.

    Raises:
        DataError: If a row is invalid, or no row has the column or any of the words.
    """
    assert source.file is not None
    # Longer words come first, because a regular expression uses the first alternative that matches.
    alternatives = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    pattern = re.compile(rf"(?<!\w)(?:{alternatives})(?!\w)", re.IGNORECASE)
    read = _read_target if unit == "target" else partial(_find_words, pattern=pattern) if words else _read_complete_text
    columns = UNITS["word" if words and unit == "text" else unit].columns
    map_points, inputs, found_words = list[MapPoint](), list[Row](), set[str | None]()
    for line, row_id, original, points in read_file_rows(source, source.file, columns, read):
        row_label = _read_label(original, label, source.name, line)
        for text, span, row in points:
            matched = text[slice(*span)].strip() if span else ""
            word = next((word for word in words if re.fullmatch(re.escape(word), matched, re.IGNORECASE)), None)
            # A target can be another word.
            if word is not None or not words:
                found_words.add(word)
                point_label = word if label is None and len(words) > 1 else row_label
                map_points.append(MapPoint(row_id, text, point_label, span))
                inputs.append(row)
    missing = [word for word in words if word not in found_words]
    if not map_points and missing:
        message = f"no row has the word {' or '.join(map(repr, missing))}"
        raise DataError(message, "check its spelling: complete words are matched, ignoring case", file=source.name)
    if not map_points:
        raise DataError("no rows", "add rows", file=source.name)
    for word in missing:
        log.info(f"no row has the word {word!r}")
    return map_points, inputs


_Points = list[tuple[str, Span | None, Row]]


def _read_complete_text(row: Row) -> _Points:
    text = UNITS["text"].read(row)
    return [(text, None, {"text": text})]


def _find_words(row: Row, pattern: re.Pattern[str]) -> _Points:
    is_list = "tokens" in row or isinstance(row["text"], (list, tuple))
    text = " ".join(read_words(row.get("tokens", row.get("text")))) if is_list else UNITS["text"].read(row)
    spans = [match.span() for match in pattern.finditer(text)]
    return [(text, span, {"text": text, "target": list(span)}) for span in spans]


def _read_target(row: Row) -> _Points:
    words, target = read_target_word(row)
    if "tokens" not in row:
        start, end = read_target(row["target"], count=2)
        return [(row["text"], (start, end), row)]
    start = sum(len(word) + 1 for word in words[:target])
    return [(" ".join(words), (start, start + len(words[target])), {"tokens": words, "target": target})]


def _read_label(original: dict[str, Any], label: str | None, file: str, line: int) -> str | None:
    if label is None:
        return None
    if label not in original:
        message = f"no column {label!r}"
        raise DataError(message, f"{did_you_mean(label, original)}; name it with --label", file=file, row=line)
    value = original[label]
    return None if value is None or is_blank(value) else str(value)


# --- Planes ---

MIN_POINTS = 3
"""Minimum points of a map: the arrangement of two points shows nothing."""

_UMAP_NEIGHBORS = 15  # default of the paper


class Plane(NamedTuple):
    """Points in a plane, centered."""

    points: np.ndarray
    """(points, 2), float64."""
    explained: tuple[float, float] | None
    """Fraction of the variance that each principal component explains, or None for UMAP."""


def project(vectors: np.ndarray, method: str = "pca", seed: int = 42) -> Plane:
    """Project vectors, scaled to length 1, to a plane, in which distances then correspond to cosines.

    Args:
        vectors: (points, dimension), at least two.
        method: ``pca``, or ``umap`` (McInnes et al. 2018), which preserves neighbors but not distances.
        seed: Seed of UMAP.

    Raises:
        UnavailableError: If the package umap-learn is not installed.
    """
    vectors = to_unit_length(np.asarray(vectors, dtype=np.float32))
    return _pca(vectors) if method == "pca" else Plane(_umap(vectors, seed), None)


def check_method(method: str) -> None:
    """Check that the package of a projection method is installed.

    Raises:
        UnavailableError: If it is not installed.
    """
    if method == "umap" and importlib.util.find_spec("umap") is None:
        message = "--projection umap needs the package umap-learn"
        raise UnavailableError(message, f"`{install_command('map')}`, or --projection pca")


def align(planes: Sequence[Plane]) -> list[Plane]:
    """Rotate or mirror each plane except the last so that its points are as near as possible to the next plane's.

    Otherwise, points would jump between layers, because principal components have no sign and can swap their order.
    The solution of the orthogonal Procrustes problem (Schönemann 1966) keeps the distances within a plane.
    """
    aligned = list(planes)
    for index in range(len(aligned) - 2, -1, -1):
        points, target = aligned[index].points, aligned[index + 1].points
        # The singular vectors of points.T @ target, (2, 2), give the rotation that brings the points nearest to target.
        left_vectors, _, right_vectors = np.linalg.svd(points.T @ target)
        aligned[index] = aligned[index]._replace(points=points @ (left_vectors @ right_vectors))
    return aligned


def _pca(vectors: np.ndarray) -> Plane:
    """Compute the first two principal components; missing components of few vectors are zeros."""
    from sklearn.decomposition import PCA

    model = PCA(min(2, *vectors.shape), svd_solver="covariance_eigh")
    # If all vectors are equal, the fractions of the variance are 0 / 0.
    with np.errstate(invalid="ignore", divide="ignore"):
        points = model.fit_transform(vectors.astype(np.float64))
    missing = 2 - points.shape[1]
    first, second = np.pad(np.nan_to_num(model.explained_variance_ratio_), (0, missing)).tolist()
    return Plane(np.pad(points, ((0, 0), (0, missing))), (first, second))


def _umap(vectors: np.ndarray, seed: int) -> np.ndarray:
    # UMAP warns that a seed disables threads, and numba warns of other things.
    with warnings.catch_warnings(action="ignore"):
        try:
            from umap import UMAP
        except ImportError as error:
            raise UnavailableError(f"umap-learn cannot be used: {error}", f"`{install_command('map')}`") from None
        reducer = UMAP(n_neighbors=min(_UMAP_NEIGHBORS, len(vectors) - 1), metric="cosine", random_state=seed)
        points = np.asarray(reducer.fit_transform(vectors), dtype=np.float64)
    return np.asarray(points - points.mean(axis=0))


# --- Separation of labels ---

MAX_COMPARED = 4000
"""Maximum points to compare with each other; larger sets are sampled."""


@dataclass(frozen=True)
class Separation:
    """Separation of the labels at a layer."""

    points: int
    """Number of compared points with a label."""
    silhouette: float | None
    """Mean silhouette of the labels (Rousseeuw 1987) by Euclidean distance, from -1 to 1.

    It is undefined (None) for one label, or for one label per point.
    """
    nearest: float | None
    """Fraction of points whose nearest other point, by cosine, has the same label; None as for `silhouette`."""
    interval: tuple[float, float] | None
    """The 95% interval of `nearest` (Wilson)."""


def choose_points(labels: Sequence[str | None], seed: int = 42) -> np.ndarray:
    """Return the indices of the points to compare, ascending: the points with a label, or a sample of them."""
    labeled = np.flatnonzero([label is not None for label in labels])
    return np.asarray(labeled[draw_rows(len(labeled), MAX_COMPARED, seed)])


def separate(vectors: np.ndarray, labels: Sequence[str]) -> Separation:
    """Compute the separation of labels.

    Args:
        vectors: (points, dimension); they are scaled to length 1.
        labels: Labels, one per point.
    """
    count, label_count = len(labels), len(set(labels))
    # The silhouette is undefined for a single label, or if all labels differ.
    if not 2 <= label_count < count:
        return Separation(count, None, None, None)
    from sklearn.metrics import silhouette_score

    vectors = to_unit_length(np.asarray(vectors, dtype=np.float32))
    id_by_label = {label: label_id for label_id, label in enumerate(dict.fromkeys(labels))}
    label_ids = np.array([id_by_label[label] for label in labels])
    nearest, _ = find_nearest(vectors, vectors, np.arange(count))
    matches = int((label_ids[nearest] == label_ids).sum())
    silhouette = float(silhouette_score(vectors, label_ids))
    return Separation(count, silhouette, matches / count, wilson_interval(matches, count))


# --- Layers ---


@dataclass(frozen=True)
class MappedLayer:
    """Measurements of a layer."""

    layer: int
    explained: tuple[float, float] | None
    """Fraction of the variance of each axis, or None for UMAP."""
    separation: Separation | None
    """Separation of the labels in all dimensions, or None if no point has a label."""


def read_layers(choice: str, count: int | None) -> list[int]:
    """Return the indices of the layers to draw, ascending, or an empty list for ``all`` or ``last`` of unknown layers.

    >>> read_layers("0,3", 6), read_layers("last", 6)
    ([0, 3], [6])

    Raises:
        UsageError: If the choice is not valid, or the layer does not exist.
    """
    if choice in ("all", "last"):
        return [] if count is None else list(range(count + 1))[-1 if choice == "last" else 0 :]
    try:
        layers = sorted({int(layer) for layer in choice.split(",")})
    except ValueError:
        raise UsageError(f"--layers {choice}", "all, last, or numbers such as 0,3,6") from None
    missing_layer = next((layer for layer in layers if layer < 0 or (count is not None and layer > count)), None)
    if missing_layer is not None:
        last = "" if count is None else f" to {count}"
        raise UsageError(f"--layers {choice}: no layer {missing_layer}", f"0 (the embeddings){last}")
    return layers


def measure_layers(
    vectors: LayerVectors, layers: Sequence[int], labels: Sequence[str | None], method: str, seed: int
) -> tuple[list[Plane], list[MappedLayer]]:
    """Compute the aligned plane of each layer, and the separation of labels at each layer.

    Args:
        vectors: Vectors of all layers.
        layers: Indices of the layers to draw.
        labels: Label of each point, or None.
        method: Method of `project`.
        seed: Seed of UMAP, and of the points that are compared.
    """
    planes, mapped_layers = [], []
    sample = choose_points(labels, seed)
    sampled_labels = [str(labels[index]) for index in sample.tolist()]
    with stage("drawing layers", len(layers)):
        for count, layer in enumerate(layers, 1):
            layer_vectors = vectors.at(layer)
            planes.append(project(layer_vectors, method, seed))
            separation = separate(layer_vectors[sample], sampled_labels) if sampled_labels else None
            mapped_layers.append(MappedLayer(layer, planes[-1].explained, separation))
            get_progress().update(count, {"layer": layer})
    return align(planes), mapped_layers


def describe_layer(layer: MappedLayer) -> str:
    """Return the measurements of a layer as one line."""
    parts = [] if layer.explained is None else [f"{sum(layer.explained):.0%} of variance"]
    if layer.separation is not None and layer.separation.silhouette is not None:
        parts.append(f"Euclidean silhouette {layer.separation.silhouette:.2f}")
    return ", ".join(parts)


def layer_rows(layers: Sequence[MappedLayer]) -> list[dict[str, str]]:
    """Return measurements as rows of a table."""
    rows = []
    for layer in layers:
        row = {"layer": str(layer.layer)}
        if layer.explained is not None:
            row |= {"1st component": f"{layer.explained[0]:.1%}", "2nd component": f"{layer.explained[1]:.1%}"}
        if layer.separation is not None:
            labels = layer.separation
            row["silhouette (Euclidean)"] = "n/a" if labels.silhouette is None else f"{labels.silhouette:.3f}"
            row["nearest has the label"] = "n/a" if labels.nearest is None else f"{labels.nearest:.4f}"
            row["95% interval"] = "n/a" if labels.interval is None else "{:.4f} to {:.4f}".format(*labels.interval)
        rows.append(row)
    return rows
