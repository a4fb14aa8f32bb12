"""The arguments and options that commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from bertkit.recipe import PretrainRecipe, Recipe


def complete_recipe(incomplete: str) -> list[str]:
    """Give the shipped recipes whose names begin so."""
    from bertkit.recipe.load import recipe_names

    return [name for name in recipe_names() if name.startswith(incomplete)]


RecipeArgument = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="Name of a shipped recipe (see `bertkit recipes list`) or a YAML file.",
        autocompletion=complete_recipe,
        show_default=False,
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", help="Hub name, directory, or `demo`.", metavar="MODEL", show_default=False),
]
CheckpointOption = Annotated[
    str,
    typer.Option(
        "--model",
        help="The trained checkpoint: run folder, directory or hub name.",
        metavar="CKPT",
        show_default=False,
    ),
]
DataOption = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="Hub data set, directory, file, or `demo`; instead of the recipe's.",
        metavar="DATA",
        show_default=False,
    ),
]
LimitOption = Annotated[
    int | None,
    typer.Option("--limit", help="Use only the first N rows of each split.", metavar="N", show_default=False),
]
MaxLengthOption = Annotated[
    int | None, typer.Option("--max-length", help="Tokens per text (pair).", metavar="N", show_default=False)
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Set any key of the recipe, e.g. training.warmup_ratio=0.", metavar="KEY=VALUE"),
]
EpochsOption = Annotated[float | None, typer.Option(help="Passes over the training rows.", show_default=False)]
LearningRateOption = Annotated[float | None, typer.Option(help="Highest learning rate.", show_default=False)]
BatchSizeOption = Annotated[int | None, typer.Option(help="Rows per optimizer step.", show_default=False)]
SeedOption = Annotated[int | None, typer.Option(help="Seed of all randomness.", show_default=False)]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Check everything, say what would happen, train nothing.")
]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Move an old run in the folder aside and start anew.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Run folder.", metavar="DIR", show_default="runs/RECIPE")
]


def common_settings(
    data: str | None,
    limit: int | None,
    epochs: float | None,
    learning_rate: float | None,
    batch_size: int | None,
    max_length: int | None,
    seed: int | None,
) -> dict[str, Any]:
    """Give the recipe keys of the options that all training commands have."""
    return {
        "data.source": data,
        "data.limit": limit,
        "training.epochs": epochs,
        "training.learning_rate": learning_rate,
        "training.batch_size": batch_size,
        "training.max_length": max_length,
        "training.seed": seed,
    }


def load(name: str, settings: dict[str, Any], assignments: list[str] | None) -> Recipe:
    """Load a recipe with the options that were given and the `--set` assignments, which win."""
    from bertkit.recipe import load_recipe, parse_changes

    given = {key: value for key, value in settings.items() if value is not None}
    if "data.source" in given:
        given["data.files"] = {}  # another source: the recipe's own files are not meant
    return load_recipe(name, {**given, **parse_changes(assignments or [])})


def load_pretraining(name: str, settings: dict[str, Any], assignments: list[str] | None) -> PretrainRecipe:
    """Load a recipe for pretraining with the options that were given and the `--set` assignments, which win."""
    from bertkit.recipe import load_pretrain_recipe, parse_changes

    given = {key: value for key, value in settings.items() if value is not None}
    if "data.source" in given:  # another source: the recipe's own text is not meant
        given = {"data.files": {}, "data.config": None, "data.revision": None, "data.documents": "auto", **given}
    if "training.epochs" in given:
        given = {"training.steps": None, **given}
    return load_pretrain_recipe(name, {**given, **parse_changes(assignments or [])})
