"""`bertkit pretrain RECIPE`."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertkit.cli.options import (
    FROM_RECIPE,
    FreshOption,
    JsonOption,
    LearningRateOption,
    MaxLengthOption,
    OutputOption,
    SeedOption,
    SetOption,
    common_settings,
    load_pretraining,
    refuse_rows,
)
from bertkit.cli.output import format_duration, format_number, print_json, print_line, print_table, print_text
from bertkit.cli.progress import TerminalProgress

if TYPE_CHECKING:
    from bertkit.workflows.pretrain.estimate import Estimate
    from bertkit.workflows.pretrain.publish import Pretrained

NAME = "recipe"
ORDER = 3
EXAMPLE = "bertkit pretrain mlm --data text.txt --tokenizer tok --size small"


def _option(help: str, metavar: str | None = None, default: str | bool = FROM_RECIPE) -> Any:
    return typer.Option(help=help, metavar=metavar, show_default=default)


def command(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="mlm, roberta, span, bert, albert, electra, distilbert, tinybert or a YAML file.",
            callback=refuse_rows,
        ),
    ],
    data: Annotated[str | None, _option("Text: hub data set, directory, file or `demo`.", "DATA")] = None,
    model: Annotated[str | None, _option("Continue from this checkpoint.", "MODEL", False)] = None,
    size: Annotated[str | None, _option("Size of a new model; see `bertkit pretrain sizes`.", "SIZE")] = None,
    tokenizer: Annotated[str | None, _option("Tokenizer of a new model: folder or hub name.", "DIR", False)] = None,
    output: OutputOption = None,
    steps: Annotated[int | None, _option("Optimizer steps.")] = None,
    epochs: Annotated[float | None, _option("Passes over the text.", default=False)] = None,
    budget: Annotated[str | None, _option("Train for this long: 90s, 30m, 2h, 1d.", "TIME", False)] = None,
    batch_size: Annotated[int | None, _option("Blocks per optimizer step.")] = None,
    learning_rate: LearningRateOption = None,
    max_length: MaxLengthOption = None,
    seed: SeedOption = None,
    limit: Annotated[int | None, _option("Use only the first N documents.", "N", "all")] = None,
    workers: Annotated[int | None, _option("Processes that prepare batches; the result is the same.")] = None,
    changes: SetOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Prepare the text, time some steps and estimate the whole run.")
    ] = False,
    fresh: FreshOption = False,
    json: JsonOption = False,
) -> None:
    """Pretrain an encoder on text with a recipe.

    After an interruption, the same command resumes the run. The result is a checkpoint for `bertkit finetune`.
    Options override the recipe.
    """
    settings = {
        **common_settings(data, limit, epochs, learning_rate, batch_size, max_length, seed),
        "model": model,
        "size": size,
        "tokenizer": tokenizer,
        "training.steps": steps,
        "training.budget": budget,
        "training.workers": workers,
    }
    run_pretraining(recipe, settings, changes, output=output, dry_run=dry_run, fresh=fresh, json=json)


def run_pretraining(
    recipe: str,
    settings: dict[str, Any],
    changes: list[str] | None,
    *,
    output: Path | None,
    dry_run: bool,
    fresh: bool,
    json: bool,
) -> None:
    """Pretrain with a recipe and these settings, or estimate what that would take, and print the result."""
    loaded = load_pretraining(recipe, settings, changes)
    if dry_run:
        from bertkit.workflows.pretrain.estimate import estimate

        print_estimate(estimate(loaded, output=output, fresh=fresh, progress=TerminalProgress()), as_json=json)
    else:
        from bertkit.workflows.pretrain import pretrain

        print_pretrained(pretrain(loaded, output=output, fresh=fresh, progress=TerminalProgress()), as_json=json)


def print_pretrained(result: Pretrained, *, as_json: bool) -> None:
    """Print the scores of a pretraining run and the commands that a user may want to run next."""
    if as_json:
        print_json(dataclasses.asdict(result))
        return
    from bertkit.metrics.baselines import find_unbeaten, strongest, tabulate

    print_text(
        f"{result.recipe}: {result.model}, {result.parameters:,} parameters, {result.steps:,} steps, "
        f"{result.tokens:,} tokens in {format_duration(result.seconds)}"
    )
    print_line(f"  {'held-out documents':<23} {result.corpus['validation']['documents']:7,}")
    for name, score in result.scores.items():
        of_baseline, least = strongest(result.baselines, name)
        baseline = "" if least is None else f"  baseline {format_number(least)} ({of_baseline})"
        print_text(f"  {name:<23} {format_number(score)}{baseline}")
    print_table("baselines", tabulate(result.baselines))
    print_table("teacher and student on this machine", [_model_line(model) for model in result.compared_models])
    for warning in result.warnings:
        print_text(f"  {warning}")
    folder = shlex.quote(result.folder)
    print_line("\nNext:")
    print_line(f"  open {folder}/report.html")
    if not find_unbeaten(result.scores, result.baselines, "perplexity"):
        print_line(f"  bertkit finetune cola --model {folder}")
    print_line(f"  hf upload YOUR_NAME/{shlex.quote(result.recipe)} {folder}")


def _model_line(model: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": model["role"],
        "parameters": model["parameters"],
        "MB": f"{model['disk_bytes'] / 1e6:,.1f}",
        "ms/block": f"{1000 * model['row_seconds']:,.1f}",
        "blocks/s": f"{model['rows_per_second']:,.1f}",
    }


def print_estimate(estimate: Estimate, *, as_json: bool) -> None:
    """Print what a pretraining run would take."""
    if as_json:
        print_json(dataclasses.asdict(estimate))
        return
    print_text(f"{estimate.recipe}: {estimate.parameters:,} parameters, {estimate.examples:,} blocks of training text")
    print_table("text", [{"split": name, **facts} for name, facts in estimate.corpus.items()])
    print_line(f"speed    {estimate.tokens_per_second:,.0f} tokens/s")
    if estimate.peak_share is not None:
        print_text(f"         {estimate.peak_share:.0%} of the peak of matrix products here (head not counted)")
    if estimate.memory_mb is not None:
        print_line(f"memory   {estimate.memory_mb:,.0f} MB at peak")
    print_line(f"disk     {estimate.disk_bytes / 1e6:,.0f} MB in {estimate.folder}")
    duration = format_duration(estimate.seconds)
    if estimate.steps is None:
        print_line(f"budget   {duration}: {estimate.tokens:,} tokens")
    else:
        print_text(f"steps    {estimate.steps:,}: {estimate.tokens:,} tokens in {duration}")
    print_line("Only the prepared text was kept.")
