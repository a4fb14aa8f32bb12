"""Draw the contextual vectors of a file's texts, or of a word in them, as one page with all layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertkit.analysis.layer_vectors import LayerReader
from bertkit.analysis.map import (
    MIN_POINTS,
    MappedLayer,
    Plane,
    check_method,
    describe_layer,
    get_unit,
    layer_rows,
    measure_layers,
    read_layers,
    read_points,
)
from bertkit.data.output import write_records
from bertkit.errors import DataError, UsageError, error_location
from bertkit.modeling.layers import count_layers
from bertkit.progress import stage
from bertkit.recipe.sections import expand_path
from bertkit.reports.map import MapLayer, MapPage, MapPoint, ShownMap, draw_layers, write_map
from bertkit.storage.files import disk_errors, write_text
from bertkit.storage.outputs import (
    check_not_inputs,
    delete_leftover_locks,
    is_written_by_bertkit,
    lock_output,
    was_interrupted,
)
from bertkit.vectors.text_files import TextSource

METHODS = {"pca": "principal components", "umap": "UMAP"}


@dataclass(frozen=True)
class MapSettings:
    """Points of a map, their colors and their layers."""

    unit: str = "text"
    """``text``, or ``target`` for the word that the column ``target`` points to."""
    words: Sequence[str] = ()
    """Words that are points; by default, each text is a point."""
    label: str | None = None
    """Column whose values color the points."""
    layers: str = "all"
    """``all``, ``last``, or numbers such as ``0,3,6``; 0 is the output of the embeddings."""
    reduce: str = "pca"
    seed: int = 42


@dataclass(frozen=True)
class MapResult:
    """Points and layers of a map, and how well the layers separate the labels."""

    points: int
    unit: str
    reduce: str
    labels: dict[str, int]
    """Label -> number of points, the most frequent first."""
    most_frequent: float | None
    """Fraction of the points with the most frequent label: the accuracy of guessing only this label."""
    layers: list[MappedLayer]
    shown: ShownMap
    written: list[str] = field(default_factory=list)


def draw_map(
    reader: LayerReader,
    source: TextSource,
    page: Path,
    settings: MapSettings = MapSettings(),
    *,
    picture: Path | None = None,
    overwrite: bool = False,
) -> MapResult:
    """Draw a map as a page that opens from disk, and write its points next to it.

    Args:
        reader: Encoder.
        source: File with the texts.
        page: HTML file to write.
        settings: Points, colors and layers.
        picture: SVG file to write, with all layers side by side.
        overwrite: Whether existing files are replaced.

    Raises:
        BertkitError: If settings, rows, model or files are wrong; see `bertkit.errors`.
    """
    # 1. Check settings, layers and outputs before the encoder is loaded.
    page, picture = expand_path(page), picture and expand_path(picture)
    for file, ending, option in ((page, ".html", "--output"), (picture, ".svg", "--svg")):
        if file is not None and file.suffix != ending:
            raise UsageError(f"{option} {file} does not end in {ending}", f"name a file such as map{ending}")
    unit = get_unit(settings.unit, settings.words)
    check_method(settings.reduce)
    layers = read_layers(settings.layers, count_layers(reader.embedder.config))
    outputs = [page, page.with_suffix(".parquet"), *([picture] if picture else [])]
    _check_outputs(outputs, source, overwrite=overwrite)

    # 2. Read the points.
    points, rows = read_points(source, settings.unit, settings.words, settings.label)
    labels = [point.label for point in points]
    if len(points) < MIN_POINTS:
        message = f"a map needs at least {MIN_POINTS} points, got {len(points)}"
        raise DataError(message, "give more rows", file=source.name)

    # Lock all outputs first, so that two commands do not mix their files.
    with ExitStack() as locks:
        for file in outputs:
            locks.enter_context(lock_output(file))

        # 3. Compute vectors and planes.
        with error_location(file=source.name):
            vectors = reader.read(rows, unit)
        layers = layers or read_layers(settings.layers, vectors.layers)
        planes, mapped_layers = measure_layers(vectors, layers, labels, settings.reduce, settings.seed)

        # 4. Write the files, the page last.
        with stage(f"writing {page.name}"), disk_errors(page.parent), ExitStack() as cleanup:
            # After an error, delete the other files. Without a page, they would make the same command fail.
            if not overwrite:
                for file in outputs[1:]:
                    cleanup.callback(file.unlink, missing_ok=True)
            write_records(_point_records(points, planes, layers), outputs[1])
            map_layers = [
                MapLayer(f"layer {layer.layer}", plane.points, describe_layer(layer))
                for plane, layer in zip(planes, mapped_layers, strict=True)
            ]
            counts = dict(Counter(label for label in labels if label is not None).most_common())
            majority = max(counts.values()) / sum(counts.values()) if counts else None
            map_page = _describe_page(len(points), settings, Path(reader.model).name, majority, mapped_layers)
            if picture is not None:
                write_text(picture, draw_layers(points, map_layers, name=map_page.title))
            shown_map = write_map(page, points, map_layers, map_page)
            cleanup.pop_all()
    names = list(map(str, outputs))
    return MapResult(len(points), unit, settings.reduce, counts, majority, mapped_layers, shown_map, names)


def _check_outputs(outputs: Sequence[Path], source: TextSource, *, overwrite: bool) -> None:
    """Check that no input and no existing file would be overwritten, except a page that bertkit wrote.

    Raises:
        UsageError: If a file would be overwritten.
    """
    # The page is written last, so a killed command can leave the other files without it.
    page = outputs[0]
    may_replace = overwrite or was_interrupted(page)
    for file in outputs:
        check_not_inputs(file, [("the file to map", expand_path(source.file))] if source.file is not None else [])
        exists = file.exists() or file.is_symlink()
        if exists and not may_replace and not (file == page and is_written_by_bertkit(file)):
            delete_leftover_locks(outputs)
            raise UsageError("the file exists already", "name another file, or replace it with --overwrite", file=file)


def _point_records(
    points: Sequence[MapPoint], planes: Sequence[Plane], layers: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of map.parquet; ``x`` and ``y`` are the coordinates at the last layer."""
    for index, point in enumerate(points):
        x, y = planes[-1].points[index].tolist()
        record = {"id": point.id, "text": point.text, "label": point.label, "x": x, "y": y}
        if point.span is not None:
            record |= {"word": point.text[slice(*point.span)], "start": point.span[0], "end": point.span[1]}
        for layer, plane in zip(layers, planes, strict=True) if len(layers) > 1 else ():
            record |= {f"x_{layer}": float(plane.points[index, 0]), f"y_{layer}": float(plane.points[index, 1])}
        yield record


def _describe_page(
    count: int, settings: MapSettings, model: str, majority: float | None, layers: Sequence[MappedLayer]
) -> MapPage:
    """Return the title, the notes and the table of layers of a page.

    Args:
        count: Number of points.
        settings: Settings of the map.
        model: Name of the model.
        majority: Fraction of the points with the most frequent label, or None without labels.
        layers: Layers of the map.
    """
    points_name = "words in their texts" if settings.unit == "target" else "texts"
    if settings.words:
        points_name = f"occurrences of {' or '.join(settings.words)}"
    method = "first two principal components" if settings.reduce == "pca" else "UMAP"
    notes = [
        f"Vectors of {model}. Point at a dot to read its text; draw a lasso to list the texts inside.",
        f"Each layer has its own {method}, rotated or mirrored to match the layer after it.",
    ]
    if settings.reduce == "umap":
        notes.append("UMAP keeps neighbors together; distances and sizes of groups mean nothing.")
    about_table = ""
    if majority is not None:
        about_table = (
            "The table measures labels in all dimensions, not in the plane. Nearest is the other point with the "
            "highest cosine. The silhouette uses Euclidean distances between vectors of length 1. "
            f"{majority:.1%} of the points have the most frequent label."
        )
    return MapPage(f"{count:,} {points_name}", notes, layer_rows(layers), about_table)
