"""`bertkit prune`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertkit.cli.options import DataOption, JsonOption, LimitOption, MaxLengthOption, SetOption, complete_recipe
from bertkit.cli.output import (
    format_interval,
    format_number,
    format_rows,
    print_json,
    print_line,
    print_table,
    print_text,
)
from bertkit.cli.progress import TerminalProgress

if TYPE_CHECKING:
    from bertkit.compression.compare_pruned import PrunedSide
    from bertkit.workflows.prune import Pruned

NAME = "prune"
ORDER = 4
EXAMPLE = "bertkit prune runs/cola -o pruned --intermediate 64"


AnyModelArgument = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="Run folder, or any checkpoint: directory or hub name.", show_default=False),
]
PrunedOption = Annotated[
    Path, typer.Option("--output", "-o", help="Folder to write the pruned model to.", metavar="DIR", show_default=False)
]
KeptLayersOption = Annotated[
    str | None,
    typer.Option(
        metavar="LAYERS",
        help="Keep so many layers (4), chosen by measured importance, or these (0,1,2,5).",
        show_default="all",
    ),
]
HeadsOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Keep so many heads per layer, where the config can say so.", show_default="all"),
]
IntermediateOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Keep so many neurons of each layer's feed-forward.", show_default="all"),
]
VocabularyOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        help="Keep the tokens of a file or folder of text, of all `rows` of the run, or of its `train` rows; "
        "repeatable.",
        show_default="all",
    ),
]
ScoringRecipeOption = Annotated[
    str | None,
    typer.Option(
        metavar="RECIPE",
        help="Recipe that scores a checkpoint which is no run.",
        autocompletion=complete_recipe,
        show_default="the run's",
    ),
]


def command(
    model: AnyModelArgument,
    output: PrunedOption,
    layers: KeptLayersOption = None,
    heads: HeadsOption = None,
    intermediate: IntermediateOption = None,
    vocabulary: VocabularyOption = None,
    recipe: ScoringRecipeOption = None,
    data: DataOption = None,
    max_length: MaxLengthOption = None,
    limit: LimitOption = None,
    rows: Annotated[int, typer.Option(help="Training rows to measure importance on.", metavar="N", min=1)] = 512,
    changes: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Prune a checkpoint to fewer layers, heads, feed-forward neurons or tokens.

    All layers keep one shape, so the result is a plain checkpoint for transformers and everything that loads its
    models. Size, speed and scores are compared with those before. Fine-tune or distill the result afterwards.
    """
    from bertkit.compression.target_shape import make_shape
    from bertkit.recipe import parse_changes

    shape = make_shape(layers, heads, intermediate, vocabulary)
    settings = {"data.source": data, "data.limit": limit, "training.max_length": max_length}
    given: dict[str, Any] = {key: value for key, value in settings.items() if value is not None}
    given |= parse_changes(changes or [])
    from bertkit.workflows.prune import prune

    pruned = prune(model, output, shape, recipe=recipe, changes=given, measured_rows=rows, progress=TerminalProgress())
    if json:
        print_json(dataclasses.asdict(pruned))
    else:
        print_pruned(pruned)


def print_pruned(pruned: Pruned) -> None:
    """Print what is left, size, speed and scores before and after, and what to do next."""
    from bertkit.hardware.speed import describe_spreads

    print_text(f"{pruned.folder}: pruned from {pruned.model}")
    measured = f" (chosen on {format_rows(pruned.measured_rows)})" if pruned.measured_rows else ""
    if pruned.layers is not None:
        print_text(f"  layers: {', '.join(map(str, pruned.layers))}{measured}")
    if pruned.heads is not None:
        print_text(f"  heads per layer: {pruned.heads}{measured}")
    if pruned.intermediate is not None:
        print_text(f"  feed-forward neurons per layer: {pruned.intermediate}{measured}")
    if pruned.vocabulary is not None:
        print_text(f"  tokens: {pruned.vocabulary:,} ({pruned.texts:,} texts split as before)")
    sides = (("before", pruned.before), ("after", pruned.after))
    print_table("size and speed on this machine", [_size_line(name, side) for name, side in sides])
    for note in describe_spreads(side.spread for _, side in sides):
        print_text(f"  {note}")
    if pruned.best_metric is not None:
        title = f"{pruned.best_metric} on {format_rows(pruned.rows)} of {pruned.split} (95% CI)"
        print_table(title, [_score_line(name, side, pruned.best_metric) for name, side in sides])
        one = pruned.differences[pruned.best_metric]
        p = "n/a" if one.p is None else f"{one.p:.3g}"
        difference = f"{one.difference:+.4f}"
        print_text(f"  after - before: {difference} ({format_interval(one.interval)}), {one.test} p {p}")
    if pruned.changed_rows:
        print_text(f"  {format_rows(pruned.changed_rows)} of {pruned.split} have other tokens than before")
    print_line("\nNext:")
    for line in _next_steps(pruned):
        print_line(f"  {line}")


def _size_line(name: str, side: PrunedSide) -> dict[str, Any]:
    line: dict[str, Any] = {"model": name, "parameters": side.parameters, "MB": f"{side.disk_bytes / 1e6:,.1f}"}
    if side.row_seconds is not None and side.rows_per_second is not None:
        line |= {"ms/row": f"{1000 * side.row_seconds:,.2f}", "rows/s": f"{side.rows_per_second:,.0f}"}
        line |= {} if side.spread is None else {"spread": f"{side.spread:.0%}"}
    return line


def _score_line(name: str, side: PrunedSide, metric: str) -> dict[str, Any]:
    score = format_number(side.scores[metric]).strip()
    return {"model": name, "score": f"{score} ({format_interval(side.intervals.get(metric))})"}


def _next_steps(pruned: Pruned) -> list[str]:
    """Return the commands that train a pruned model again."""
    if pruned.recipe is None:
        return [f"bertkit finetune RECIPE --model {pruned.folder}"]
    recipe = f"{pruned.folder}/recipe.yaml"
    return [
        f"bertkit finetune {recipe} --model {pruned.folder} --output {pruned.folder}-tuned",
        f"bertkit distill {recipe} --teacher {pruned.model} --model {pruned.folder} --output {pruned.folder}-distilled",
    ]
