"""`bertkit bench`."""

from __future__ import annotations

from typing import Annotated

import typer

from bertkit.cli.options import (
    DataOption,
    JsonOption,
    LimitOption,
    MaxLengthOption,
    ModelOption,
    SetOption,
    complete_recipe,
    load,
)


def bench(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="Name of a shipped recipe (see `bertkit recipes list`) or a YAML file.",
            autocompletion=complete_recipe,
        ),
    ] = "cola",
    model: ModelOption = None,
    data: DataOption = None,
    precision: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PRECISION",
            help="fp32, bf16 or auto; repeat it to compare.",
            show_default="those that this machine is quick in",
        ),
    ] = None,
    batch_size: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Rows per optimizer step; repeat it to compare.", show_default="the recipe's"),
    ] = None,
    steps: Annotated[int, typer.Option(metavar="N", help="Steps to time, after three to warm up.")] = 20,
    max_length: MaxLengthOption = None,
    limit: LimitOption = None,
    changes: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Measure how fast a model trains on this machine, and what memory it takes.

    Some steps of the real training are timed for each precision and batch size, and tell how long all of it would
    take. Nothing is kept.
    """
    settings = {"model": model, "data.source": data, "data.limit": limit, "training.max_length": max_length}
    loaded = [
        load(recipe, {**settings, "training.precision": kind, "training.batch_size": size}, changes)
        for size in dict.fromkeys(batch_size or ()) or (None,)
        for kind in dict.fromkeys(precision or ()) or (None,)
    ]
    from bertkit.cli import show
    from bertkit.cli.progress import TerminalProgress
    from bertkit.workflows import bench as workflow

    show.show_bench(workflow.bench(loaded, steps=steps, progress=TerminalProgress()), as_json=json)
