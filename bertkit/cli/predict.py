"""`bertkit predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.cli.options import CheckpointOption, JsonOption, MaxLengthOption, RecipeArgument, SetOption, load


def predict(
    recipe: RecipeArgument,
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE",
            help="Rows to predict: csv, tsv, jsonl, json, parquet, conll, conllu, txt (one text a line), or `-`.",
            show_default=False,
        ),
    ] = None,
    model: CheckpointOption = ...,  # type: ignore[assignment]
    text: Annotated[str | None, typer.Option(help="One text; short for --row text=...", show_default=False)] = None,
    row: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=VALUE",
            help="One row, by canonical columns; repeat a column that is a list.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="File to write: .jsonl, .csv, .tsv or .parquet.",
            show_default="stdout, as JSON lines",
        ),
    ] = None,
    max_length: MaxLengthOption = None,
    changes: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Predict rows: one record a row, in order, with a probability per label."""
    from bertkit.data.output import write_records, writer_for
    from bertkit.errors import UsageError

    one = _one_row(text, row)
    if one is not None and file is not None:
        raise UsageError("a FILE and --text or --row", "give one or the other")
    if output is not None:
        writer_for(output)
    loaded = load(recipe, {"model": model, "training.max_length": max_length}, changes)
    from bertkit.cli import show
    from bertkit.cli.progress import TerminalProgress
    from bertkit.workflows import predict as workflow

    records = workflow.predict(loaded, source=file, row=one, progress=TerminalProgress())
    if output is None:
        show.show_predictions(records, as_json=json)
    else:
        show.show_written(output, write_records(records, output), as_json=json)


def _one_row(text: str | None, assignments: list[str] | None) -> dict[str, Any] | None:
    from bertkit.errors import UsageError

    row: dict[str, Any] = {} if text is None else {"text": text}
    for assignment in assignments or []:
        column, equals, value = assignment.partition("=")
        if not equals:
            raise UsageError(f"--row {assignment} is not column=value", "write e.g. --row text='Good.'")
        before = row.get(column, [])
        row[column] = [*([before] if isinstance(before, str) else before), value] if column in row else value
    return row or None
