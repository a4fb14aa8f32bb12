"""`bertkit eval`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bertkit.cli.options import (
    CheckpointOption,
    DataOption,
    JsonOption,
    LimitOption,
    MaxLengthOption,
    RecipeArgument,
    SetOption,
    ZeroShotOption,
    load,
)
from bertkit.cli.output import format_interval, format_number, format_rows, print_json, print_table, print_text
from bertkit.cli.progress import TerminalProgress

if TYPE_CHECKING:
    from bertkit.evaluation.scoring import Result

NAME = "eval"
ORDER = 3
EXAMPLE = "bertkit eval cola --model runs/cola --data demo"


def command(
    recipe: RecipeArgument,
    model: CheckpointOption,
    data: DataOption = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Split to score; `all` scores every row of a file.",
            metavar="SPLIT",
            show_default="validation splits",
        ),
    ] = None,
    max_length: MaxLengthOption = None,
    limit: LimitOption = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder to write the predictions to.", metavar="DIR", show_default=False),
    ] = None,
    training_rows: Annotated[
        Literal["refuse", "drop", "keep"],
        typer.Option(
            help="If rows are training rows of the checkpoint: refuse, `drop` them, or `keep` and mark them.",
            metavar="CHOICE",
        ),
    ] = "refuse",
    zero_shot: ZeroShotOption = False,
    changes: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Score a fine-tuned checkpoint on a recipe's data.

    The checkpoint may come from bertkit or be any Hugging Face model that has a trained head for the task. Options
    override the recipe.
    """
    settings = {"model": model, "data.source": data, "data.limit": limit, "training.max_length": max_length}
    settings |= {"task": "zero_shot" if zero_shot else None}
    loaded = load(recipe, settings, changes)
    from bertkit.workflows.evaluate import evaluate

    results = evaluate(loaded, split=split, output=output, training_rows=training_rows, progress=TerminalProgress())
    print_results(results, as_json=json)


def print_results(results: Sequence[Result], *, as_json: bool) -> None:
    """Print the scores of every split, each with its confidence interval and its baseline."""
    if as_json:
        print_json({"results": [dataclasses.asdict(result) for result in results]})
        return
    from bertkit.data.checks import share_of
    from bertkit.metrics.baselines import tabulate
    from bertkit.metrics.intervals import describe_methods

    for result in results:
        rows = format_rows(result.rows)
        print_text(f"{result.recipe}, {result.split}: {rows} ({result.source}), {result.model}")
        if result.training_rows:
            share = share_of(result.training_rows, result.rows)
            print_text(f"  training rows: {share}. New rows may score lower.")
        width = max(map(len, result.scores), default=0)
        for name, score in result.scores.items():
            line = f"  {name:<{width}} {format_number(score)}"
            if name in result.intervals:
                line += f"  95% CI {format_interval(result.intervals[name]):<18}"
            if name in result.baseline:
                line += f"  baseline {format_number(result.baseline[name])}"
            print_text(line.rstrip())
        if result.interval_methods:
            print_text(f"  95% CI: {describe_methods(result.interval_methods)}")
        _print_undefined(result.undefined)
        print_table("baselines", tabulate(result.baselines))
        for title, table in result.tables.items():
            print_table(title, table)
        for warning in result.warnings:
            print_text(f"  {warning}")


def _print_undefined(undefined: Mapping[str, Mapping[str, str]]) -> None:
    """Print why there is no number; where a metric is undefined, so are its interval and its baseline."""
    shown: set[str] = set()
    for part, of in (("scores", ""), ("intervals", "interval of "), ("baselines", "baseline of ")):
        reasons = {name: reason for name, reason in undefined.get(part, {}).items() if name not in shown}
        for reason in dict.fromkeys(reasons.values()):
            print_text(f"  n/a: {of}{', '.join(name for name in reasons if reasons[name] == reason)} ({reason})")
        shown |= reasons.keys() if part == "scores" else set()
