"""`bertkit map`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from bertkit.cli.completion import complete_column
from bertkit.cli.options import (
    ColumnOption,
    EncoderOption,
    FirstRowsOption,
    PrecisionOption,
    RowsFileArgument,
    SeedOption,
    TextLengthOption,
    TextSettingsOption,
    flag,
    option,
    output_option,
    read_data_options,
)
from bertkit.cli.output import print_line, print_notes, print_result, print_table, print_text

if TYPE_CHECKING:
    from bertkit.workflows.map import MapResult

ORDER = 45
EXAMPLE = "bertkit map reviews.csv --column review --model demo --label stars --output reviews.html"

_MAX_LABELS = 12

LabelOption = Annotated[str | None, option("Column that colors the points.", "COLUMN", autocompletion=complete_column)]


def command(
    file: RowsFileArgument,
    model: EncoderOption = ...,  # type: ignore[assignment]
    output: Annotated[
        Path, output_option("Page to write (.html); the points are written next to it (.parquet).", "FILE")
    ] = Path("map.html"),
    column: ColumnOption = "text",
    word: Annotated[
        list[str] | None,
        option("Word whose occurrences to draw instead of texts, in any case; repeatable.", "WORD"),
    ] = None,
    unit: Annotated[
        Literal["text", "target"],
        option("Unit of a point: text, or target (the word that column `target` marks).", "UNIT"),
    ] = "text",
    label: LabelOption = None,
    layers: Annotated[str, option("Layers of the slider: all, last, or indices such as 0,3,6.", "LAYERS")] = "all",
    projection: Annotated[
        Literal["pca", "umap"], option("Projection of the vectors to two dimensions: pca or umap.", "METHOD")
    ] = "pca",
    svg: Annotated[Path | None, option("Picture to write of all layers next to each other (.svg).", "FILE")] = None,
    limit: FirstRowsOption = None,
    max_length: TextLengthOption = None,
    precision: PrecisionOption = "auto",
    seed: SeedOption = 42,
    changes: TextSettingsOption = None,
    overwrite: Annotated[bool, flag("--overwrite", "Replace existing files.")] = False,
) -> None:
    """Draw texts, or the occurrences of a word, as points on a page with a slider over the layers.

    Prints for each layer the fraction of the variance that the page shows, and how well all dimensions separate the
    labels.
    """
    from bertkit.analysis.layer_vectors import LayerReader
    from bertkit.vectors.text_files import TextSource
    from bertkit.workflows.map import MapSettings, draw_map

    # --limit comes before --set, so that data.limit in --set wins, as in other commands.
    limits = [] if limit is None else [f"data.limit={limit}"]
    source = TextSource(file, None, read_data_options(column, [*limits, *(changes or [])]))
    settings = MapSettings(unit, tuple(word or ()), label, layers, projection, seed)
    reader = LayerReader(model, max_length, precision)
    result = draw_map(reader, source, output, settings, picture=svg, overwrite=overwrite)
    print_result(result, print_map)


def print_map(result: MapResult) -> None:
    """Print the number of points, the labels, and how well each layer separates them."""
    from bertkit.analysis.map import layer_rows
    from bertkit.workflows.map import METHODS

    unit = "texts" if result.unit == "text" else "words in their texts"
    print_text(f"{result.points:,} {unit} by {METHODS[result.reduce]}")
    labels = list(result.labels.items())[:_MAX_LABELS]
    print_notes(f"{name}: {count:,} ({count / result.points:.1%})" for name, count in labels)
    if len(result.labels) > _MAX_LABELS:
        print_text(f"  ... {len(result.labels) - _MAX_LABELS:,} more with --json")
    title = "layers"
    if result.most_frequent is not None:
        # A layer separates the labels only if its score is above this baseline.
        title = f"layers; baseline (most frequent label): {result.most_frequent:.4f}"
    print_table(title, layer_rows(result.layers))
    compared_points = next((layer.separation.points for layer in result.layers if layer.separation), result.points)
    if compared_points < result.points:
        print_text(f"  labels are compared on {compared_points:,} of the points")
    if result.shown.points < result.points:
        print_text(f"  the page shows {result.shown.points:,} of the points")
    if result.shown.shortened:
        print_text(f"  the page cuts {result.shown.shortened:,} texts after {result.shown.characters} characters")
    for file in result.written:
        print_line(f"{file}: written")
