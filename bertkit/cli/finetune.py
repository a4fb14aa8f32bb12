"""`bertkit finetune`."""

from __future__ import annotations

from typing import Annotated

import typer

from bertkit.cli.options import (
    DataOption,
    JsonOption,
    LimitOption,
    MaxLengthOption,
    ModelOption,
    OutputOption,
    RecipeArgument,
    SetOption,
    load,
)


def finetune(
    recipe: RecipeArgument,
    model: ModelOption = None,
    data: DataOption = None,
    output: OutputOption = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the training rows.", show_default=False)] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Highest learning rate.", show_default=False)] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows per optimizer step.", show_default=False)] = None,
    max_length: MaxLengthOption = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all randomness.", show_default=False)] = None,
    limit: LimitOption = None,
    changes: SetOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, say what would happen, train nothing.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Move an old run in the folder aside and start anew.")] = False,
    json: JsonOption = False,
) -> None:
    """Fine-tune an encoder as a recipe says, and score it.

    The same command goes on after any interruption. A finished run says so.
    """
    loaded = load(
        recipe,
        {
            "model": model,
            "data.source": data,
            "data.limit": limit,
            "training.epochs": epochs,
            "training.learning_rate": learning_rate,
            "training.batch_size": batch_size,
            "training.max_length": max_length,
            "training.seed": seed,
        },
        changes,
    )
    from bertkit.cli import show
    from bertkit.cli.progress import TerminalProgress
    from bertkit.workflows.finetune import finetune as run

    if dry_run:
        from bertkit.workflows.prepare import plan

        show.show_plan(plan(loaded, output=output, fresh=fresh), as_json=json)
    else:
        results = run(loaded, output=output, fresh=fresh, progress=TerminalProgress())
        show.show_run(results, as_json=json)
