"""`bertkit eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bertkit.cli.options import (
    CheckpointOption,
    DataOption,
    JsonOption,
    LimitOption,
    MaxLengthOption,
    RecipeArgument,
    SetOption,
    load,
)


def evaluate(
    recipe: RecipeArgument,
    model: CheckpointOption,
    data: DataOption = None,
    split: Annotated[
        str | None,
        typer.Option(help="Split to score; `all` rows of a file.", show_default="validation splits"),
    ] = None,
    max_length: MaxLengthOption = None,
    limit: LimitOption = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder to write the predictions to.", metavar="DIR", show_default=False),
    ] = None,
    changes: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Score a checkpoint without training: bertkit's own or any Hugging Face one."""
    settings = {"model": model, "data.source": data, "data.limit": limit, "training.max_length": max_length}
    loaded = load(recipe, settings, changes)
    from bertkit.cli import show
    from bertkit.cli.progress import TerminalProgress
    from bertkit.workflows import evaluate as workflow

    results = workflow.evaluate(loaded, split=split, output=output, progress=TerminalProgress())
    show.show_results(results, as_json=json)
