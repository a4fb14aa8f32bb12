"""`bertkit predict`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated, Any

import typer

from bertkit.cli.options import (
    CheckpointOption,
    JsonOption,
    MaxLengthOption,
    RecipeArgument,
    RecordsOption,
    SetOption,
    ZeroShotOption,
    load,
    load_tasks,
    names_several,
)
from bertkit.cli.output import print_file, print_records
from bertkit.cli.progress import TerminalProgress

NAME = "predict"
ORDER = 4
EXAMPLE = 'bertkit predict cola --model runs/cola --text "The dog chased old the bird."'

EscapeOption = Annotated[
    bool,
    typer.Option(
        "--escape-formulas",
        help="Put a ' before text that a spreadsheet would take for a formula (.csv and .tsv).",
    ),
]


def command(
    recipe: RecipeArgument,
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE",
            help="Rows to predict: csv, tsv, jsonl, json, parquet, conll, conllu, txt (one text per line), "
            "or `-` for stdin.",
            show_default=False,
        ),
    ] = None,
    model: CheckpointOption = ...,  # type: ignore[assignment]
    text: Annotated[
        str | None,
        typer.Option(help="Predict one text; short for --row text=TEXT.", metavar="TEXT", show_default=False),
    ] = None,
    row: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=VALUE",
            help="Predict one row: one --row per canonical column, several for a column that is a list.",
            show_default=False,
        ),
    ] = None,
    output: RecordsOption = None,
    escape_formulas: EscapeOption = False,
    max_length: MaxLengthOption = None,
    zero_shot: ZeroShotOption = False,
    changes: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Predict rows with a fine-tuned checkpoint.

    The output is one record per row, in the order of the rows, with the probability of each label.
    """
    from bertkit.errors import UsageError

    single_row = _parse_row(text, row)
    if single_row is not None and file is not None:
        raise UsageError("a FILE and --text or --row", "give one or the other")
    if escape_formulas and output is None:
        raise UsageError("--escape-formulas without --output", "name a .csv or .tsv file with --output")
    settings = {"model": model, "training.max_length": max_length, "task": "zero_shot" if zero_shot else None}
    rows: dict[str, Any] = {"source": file, "row": single_row, "progress": TerminalProgress()}
    predict, predict_to_file = _predictors(recipe, settings, changes)
    if output is None:
        print_records("predictions", predict(**rows), as_json=json)
        return
    count = predict_to_file(output=output, escape_formulas=escape_formulas, **rows)
    print_file(output, count, as_json=json)


def _predictors(
    recipe: str, settings: dict[str, Any], changes: list[str] | None
) -> tuple[Callable[..., Iterable[dict[str, Any]]], Callable[..., int]]:
    """Return the functions that predict with a recipe: to be printed, and to a file."""
    from bertkit.errors import UsageError

    if names_several(recipe):
        if settings.pop("task"):
            raise UsageError("--zero-shot with a recipe of several tasks", "name the recipe of one task")
        from bertkit.workflows.steps.predict_several import predict_several, predict_several_to_file

        several = load_tasks(recipe, settings, changes)
        return partial(predict_several, several), partial(predict_several_to_file, several)
    loaded = load(recipe, settings, changes)
    from bertkit.workflows.predict import predict, predict_to_file

    return partial(predict, loaded), partial(predict_to_file, loaded)


def _parse_row(text: str | None, assignments: list[str] | None) -> dict[str, Any] | None:
    """Return the row of --text and of the --row assignments; a column that is assigned repeatedly is a list."""
    from bertkit.errors import UsageError

    row: dict[str, Any] = {} if text is None else {"text": text}
    for assignment in assignments or []:
        column, equals, value = assignment.partition("=")
        if not equals:
            raise UsageError(f"--row {assignment} is not column=value", "write e.g. --row text='Good.'")
        before = row.get(column, [])
        row[column] = [*([before] if isinstance(before, str) else before), value] if column in row else value
    return row or None
