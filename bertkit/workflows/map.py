"""Draw the contextual vectors of a file's texts, or of a word in them, as one page with all layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.data.output import write_records
from bertkit.errors import DataError, UsageError, located
from bertkit.insight.layer_vectors import LayerReader
from bertkit.insight.map import (
    LEAST_POINTS,
    Labeling,
    MappedLayer,
    Occurrence,
    Plane,
    check_method,
    describe_layer,
    find_labels,
    layer_rows,
    measure_layers,
    most_frequent_share,
    read_layers,
    read_occurrences,
    unit_of,
)
from bertkit.modeling.layers import count_layers
from bertkit.progress import stage
from bertkit.recipe import typed_path
from bertkit.storage.files import disk_errors, write_text
from bertkit.storage.outputs import claimed, is_own, refuse_inputs, sweep_locks, was_interrupted
from bertkit.vectors.text_files import TextSource

if TYPE_CHECKING:
    from bertkit.reports.map import MapLayer, MapPoint, ShownMap

METHODS = {"pca": "principal components", "umap": "UMAP"}


@dataclass(frozen=True)
class MapSettings:
    """What is drawn."""

    unit: str = "text"
    """``text``, or ``target`` for the word that the column ``target`` points to."""
    words: Sequence[str] = ()
    """Only these words are points."""
    label: str | None = None
    """Column whose values color the points."""
    clusters: int | None = None
    """The number of clusters that color them instead, found at the last layer that is drawn."""
    layers: str = "all"
    """``all``, ``last``, or numbers such as ``0,3,6``; 0 is the output of the embeddings."""
    reduce: str = "pca"
    seed: int = 42


@dataclass(frozen=True)
class MapFiles:
    """Where a map is written."""

    page: Path
    picture: Path | None = None
    """An SVG file with all layers side by side."""
    fresh: bool = False
    """Whether files that are there are replaced."""

    @property
    def points(self) -> Path:
        """The Parquet file beside the page."""
        return self.page.with_suffix(".parquet")

    @property
    def all(self) -> list[Path]:
        """Every file that is written."""
        return [self.page, self.points, *([self.picture] if self.picture else [])]


@dataclass(frozen=True)
class MapResult:
    """What was drawn, and how well labels lie apart."""

    points: int
    unit: str
    reduce: str
    labels: dict[str, int]
    """Label, or name of a cluster -> how many points have it, the most frequent first."""
    are_clusters: bool
    most_frequent: float | None
    """Share of the most frequent label, which is what guessing reaches; None for clusters."""
    layers: list[MappedLayer]
    shown: ShownMap
    written: list[str] = field(default_factory=list)


def draw_map(
    reader: LayerReader, source: TextSource, files: MapFiles, settings: MapSettings = MapSettings()
) -> MapResult:
    """Draw a map as a page that opens from disk, and write its points beside it.

    Args:
        reader: the encoder.
        source: the file with the texts.
        files: what is written.
        settings: what is drawn.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    # Settings, layers, outputs and points are checked before the encoder is loaded.
    files = replace(files, page=typed_path(files.page), picture=files.picture and typed_path(files.picture))
    _check_settings(files, settings)
    layers = read_layers(settings.layers, count_layers(reader.embedder.config))
    _check_outputs(files, source)
    points = read_occurrences(source, settings.unit, settings.words, settings.label)
    if len(points) < (least := max(LEAST_POINTS, settings.clusters or 0)):
        found = f"{len(points)} point{'s' * (len(points) > 1)}"
        raise DataError(f"{found}, and a map needs {least}", "give more rows", file=source.name)
    # All files are claimed before the work, so that two maps do not mix their files.
    with ExitStack() as held:
        for file in files.all:
            held.enter_context(claimed(file))
        unit = unit_of(settings.unit, settings.words)
        with located(file=source.name):
            vectors = reader.read([point.row for point in points], unit)
        layers = layers or read_layers(settings.layers, vectors.layers)
        # Clusters are those of the last layer, and all layers show them: colors must mean the same in each picture.
        labeling = find_labels(points, vectors.at(layers[-1]), settings.clusters, settings.seed)
        planes, measured = measure_layers(vectors, layers, labeling, settings.reduce, settings.seed)
        with stage(f"writing {files.page.name}"), disk_errors(files.page.parent), ExitStack() as unfinished:
            if not files.fresh:  # what stands beside no page would be in the way of the same command
                for file in files.all[1:]:
                    unfinished.callback(file.unlink, missing_ok=True)
            write_records(_point_records(points, planes, layers, labeling), files.points)
            shown = _write_pages(
                files, points, planes, measured, labeling, _title(points, settings, reader.model, unit)
            )
            unfinished.pop_all()
        return MapResult(
            points=len(points),
            unit=unit,
            reduce=settings.reduce,
            labels=labeling.counts(),
            are_clusters=settings.clusters is not None,
            most_frequent=None if labeling.are_clusters else most_frequent_share(labeling.labels),
            layers=measured,
            shown=shown,
            written=[str(file) for file in files.all],
        )


def _check_settings(files: MapFiles, settings: MapSettings) -> None:
    """Check what needs no model and no rows."""
    for file, ending, option in ((files.page, ".html", "--output"), (files.picture, ".svg", "--picture")):
        if file is not None and file.suffix != ending:
            raise UsageError(f"{option} {file}", f"its name ends in {ending}")
    unit_of(settings.unit, settings.words)
    if settings.label is not None and settings.clusters is not None:
        raise UsageError("--label and --clusters", "points have one color: leave one of them out")
    read_layers(settings.layers, None)
    check_method(settings.reduce)


def _check_outputs(files: MapFiles, source: TextSource) -> None:
    """Check that nothing that is read, or that is there already, would be overwritten; the page is written last."""
    replaces = files.fresh or was_interrupted(files.page)
    for file in files.all:
        refuse_inputs(file, [("the file to map", typed_path(source.file))] if source.file is not None else [])
        is_kept = file.exists() or file.is_symlink()
        if is_kept and not replaces and not (file == files.page and is_own(file)):
            sweep_locks(files.all)
            what = "the file exists already, and is kept as it is"
            raise UsageError(what, "name another file, or replace it with --fresh", file=file)


def _point_records(
    points: Sequence[Occurrence], planes: Sequence[Plane], layers: Sequence[int], labeling: Labeling
) -> Iterator[dict[str, Any]]:
    """Yield the rows of map.parquet: ``x`` and ``y`` are those of the last layer."""
    for number, (point, label) in enumerate(zip(points, labeling.labels, strict=True)):
        x, y = planes[-1].points[number].tolist()
        record = {"id": point.id, "text": point.text, "label": label, "x": x, "y": y}
        if point.span is not None:
            record |= {"word": point.text[slice(*point.span)], "start": point.span[0], "end": point.span[1]}
        for layer, plane in zip(layers, planes, strict=True) if len(layers) > 1 else ():
            record |= {f"x_{layer}": float(plane.points[number, 0]), f"y_{layer}": float(plane.points[number, 1])}
        yield record


def _write_pages(
    files: MapFiles,
    points: Sequence[Occurrence],
    planes: Sequence[Plane],
    measured: Sequence[MappedLayer],
    labeling: Labeling,
    page: tuple[str, list[str]],
) -> ShownMap:
    from bertkit.reports.map import MapLayer, MapPage, MapPoint, draw_layers, write_map

    drawn: list[MapPoint] = [
        MapPoint(point.id, point.text, number, point.span)
        for point, number in zip(points, labeling.numbers.tolist(), strict=True)
    ]
    layers: list[MapLayer] = [
        MapLayer(f"layer {one.layer}", plane.points, describe_layer(one))
        for plane, one in zip(planes, measured, strict=True)
    ]
    title, notes = page
    if files.picture is not None:
        write_text(files.picture, draw_layers(drawn, layers, labeling.names, name=title))
    table = layer_rows(measured, are_clusters=labeling.are_clusters)
    return write_map(files.page, drawn, layers, labeling.names, MapPage(title, notes, table, _about_table(labeling)))


def _about_table(labeling: Labeling) -> str:
    share = most_frequent_share(labeling.labels)
    if share is None or labeling.are_clusters:
        return ""
    return (
        "Labels are compared in all dimensions, not in the plane. Nearest is the other point with the highest cosine. "
        "The silhouette has Euclidean distances of vectors with length 1. "
        f"The most frequent label is that of {share:.1%} of the points."
    )


def _title(points: Sequence[Occurrence], settings: MapSettings, model: str, unit: str) -> tuple[str, list[str]]:
    """Return the title of a page, and the sentences under it."""
    what = "texts"
    if unit == "target":
        found = Counter(point.text[slice(*point.span)].casefold() for point in points if point.span)
        words = list(settings.words) or list(found)
        what = f"occurrences of {' or '.join(words)}" if len(words) <= 4 else "words in their texts"
    notes = [f"Vectors of {Path(model).name}, one point each. Point at one to read it; a lasso lists what is inside."]
    if settings.reduce == "pca":
        notes.append(
            "Each layer has its own first two principal components, rotated or mirrored to match the layer after it."
        )
    else:
        notes.append("Each layer has its own UMAP, rotated or mirrored to match the layer after it. It keeps neighbors "
                     "together; distances and sizes of groups mean nothing.")  # fmt: skip
    return f"{len(points):,} {what}", notes
