"""`bertkit sweep`."""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertkit.cli.options import (
    BatchSizeOption,
    DataOption,
    DryRunOption,
    EpochsOption,
    FreshOption,
    JsonOption,
    LearningRateOption,
    LimitOption,
    MaxLengthOption,
    ModelOption,
    RecipeArgument,
    SeedOption,
    SetOption,
    common_settings,
)
from bertkit.cli.output import (
    format_duration,
    format_interval,
    format_number,
    format_rows,
    print_json,
    print_line,
    print_table,
    print_text,
)
from bertkit.cli.progress import TerminalProgress
from bertkit.errors import UsageError

if TYPE_CHECKING:
    from bertkit.evaluation.sweeps import SweepSummary
    from bertkit.workflows.sweep import SweepPlan

NAME = "sweep"
ORDER = 1
EXAMPLE = 'bertkit sweep cola --model demo --data demo --space "training.learning_rate=log:1e-4..1e-2" --search random'

SpaceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--space",
        help="Search a key of the recipe: KEY=16,32 (values), KEY=int:2..4, KEY=float:0..0.3 or KEY=log:1e-5..1e-4 "
        "(ranges); repeatable.",
        metavar="KEY=VALUES",
        show_default="BERT's grid of batch sizes, learning rates and epochs",
    ),
]


def command(
    recipe: RecipeArgument,
    model: ModelOption = None,
    data: DataOption = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder of the trials.", metavar="DIR", show_default="runs/RECIPE-sweep"),
    ] = None,
    space: SpaceOption = None,
    search: Annotated[
        str, typer.Option("--search", help="How trials are chosen: grid, random or tpe (Optuna).", metavar="METHOD")
    ] = "grid",
    trials: Annotated[
        int | None,
        typer.Option(help="Trials of a random or TPE search.", metavar="N", show_default="24, or the whole grid"),
    ] = None,
    join: Annotated[
        bool, typer.Option("--join", help="Train other trials of a sweep that another process is working on.")
    ] = False,
    epochs: EpochsOption = None,
    learning_rate: LearningRateOption = None,
    batch_size: BatchSizeOption = None,
    max_length: MaxLengthOption = None,
    seed: SeedOption = None,
    limit: LimitOption = None,
    changes: SetOption = None,
    dry_run: DryRunOption = False,
    fresh: FreshOption = False,
    json: JsonOption = False,
) -> None:
    """Fine-tune with many settings, and rank them by score.

    Each trial is an ordinary run folder. After an interruption, the same command resumes the trial that was broken off
    and trains the missing ones. Options override the recipe in all trials.
    """
    from bertkit.recipe import parse_changes
    from bertkit.recipe.space import make_search

    if fresh and join:
        raise UsageError("--fresh and --join are both given", "--fresh begins a sweep, --join takes part in one")
    given = {**common_settings(data, limit, epochs, learning_rate, batch_size, max_length, seed), "model": model}
    settings = {key: value for key, value in given.items() if value is not None} | parse_changes(changes or [])
    chosen = make_search(search, space or (), trials)
    from bertkit.workflows.sweep import dry_run as check
    from bertkit.workflows.sweep import sweep

    if dry_run:
        print_plan(check(recipe, chosen, settings, output=output, fresh=fresh, join=join), as_json=json)
        return
    summary = sweep(recipe, chosen, settings, output=output, fresh=fresh, join=join, progress=TerminalProgress())
    if json:
        print_json(dataclasses.asdict(summary))
        return
    print_sweep(summary)


def print_sweep(summary: SweepSummary) -> None:
    """Print the trials of a sweep, the best first, and what to make of the best."""
    metric, names = summary.best_metric, short_names(summary.space)
    trials = f"{len(summary.trials)} trial{'s' if len(summary.trials) > 1 else ''}"
    print_text(f"{summary.recipe}, {summary.split}: {format_rows(summary.rows)}, {trials}, {summary.model}")
    print_table(f"trials by {metric}", trial_table(summary), max_rows=max(30, len(summary.trials)))
    print_table(f"{metric} by training rows, 95% intervals", curve_table(summary), max_rows=len(summary.curve))
    for failure in dict.fromkeys(trial.failure for trial in summary.trials if trial.status == "diverged"):
        alike = [trial.folder for trial in summary.trials if trial.failure == failure]
        print_text(f"  diverged: {', '.join(alike)}. {failure}")
    shares = {names[key]: f"{100 * share:.0f}%" for key, share in summary.importance.items() if share is not None}
    if shares:
        print_text(
            f"  share of the variance of {metric}: {', '.join(f'{key} {share}' for key, share in shares.items())}"
        )
    finished = summary.finished
    if len(finished) > 1:
        best = format_number(finished[0].scores[metric]).strip()
        print_text(f"  best of {len(finished)}: {metric} {best} ({summary.best}), chosen by the rows that score it")
        if summary.selection is not None:
            estimate = format_number(summary.selection.estimate).strip()
            share = f"{100 * summary.selection.chosen[0]:.0f}%"
            print_text(
                f"  to expect on other rows: {estimate} (each of 200 resamples chooses anew, {share} of them alike)"
            )
        else:
            print_text(f"  to expect on other rows: n/a ({summary.no_selection})")
    if summary.expected_best:
        values = enumerate(summary.expected_best, start=1)
        expected = ", ".join(f"{number}: {format_number(value).strip()}" for number, value in values)
        print_text(f"  expected best {metric} of k random trials: {expected}")
    if summary.unfinished:
        print_text(f"  {summary.unfinished} more not finished: another process trains them, or --join does")
        return
    folder = shlex.quote(summary.folder)
    print_line("\nNext:")
    print_line(f"  open {folder}/report.html")
    if summary.best:
        print_line(f"  bertkit eval {folder}/{summary.best}")


def trial_table(summary: SweepSummary) -> list[dict[str, Any]]:
    """Return the rows of the table of trials."""
    names = short_names(summary.space)
    metrics = list(summary.finished[0].scores) if summary.finished else [summary.best_metric]
    from bertkit.recipe.space import name_value

    rows = [
        {
            "trial": trial.folder.removeprefix("trial-"),
            **{names[key]: name_value(value) for key, value in trial.settings.items()},
            **{metric: format_number(trial.scores.get(metric)).strip() for metric in metrics},
            "time": format_duration(trial.seconds),
            "": "" if trial.status == "finished" else trial.status,
        }
        for trial in summary.trials
    ]
    return rows if any(row[""] for row in rows) else [{k: v for k, v in row.items() if k} for row in rows]


def curve_table(summary: SweepSummary) -> list[dict[str, Any]]:
    """Return the rows of the table of learning curves."""
    from bertkit.evaluation.sweeps import ROW_KEYS
    from bertkit.recipe.space import name_value

    names = short_names(summary.space)
    limit = next((name for key, name in names.items() if key in ROW_KEYS), "")
    return [
        {
            limit: f"{point.limit:,}",
            **{names[key]: name_value(value) for key, value in point.settings.items()},
            "seeds": point.seeds,
            summary.best_metric: format_number(point.score).strip(),
            "95% CI": format_interval(point.interval),
        }
        for point in summary.curve
    ]


def short_names(space: dict[str, str]) -> dict[str, str]:
    """Return recipe key -> its last part, or the whole key where two end alike.

    >>> short_names({"training.epochs": "2,3", "training.seed": "1,2"})
    {'training.epochs': 'epochs', 'training.seed': 'seed'}
    """
    ends = Counter(key.rpartition(".")[2] for key in space)
    return {key: end if ends[end := key.rpartition(".")[2]] == 1 else key for key in space}


def print_plan(plan: SweepPlan, *, as_json: bool) -> None:
    """Print what a sweep would do."""
    if as_json:
        print_json(dataclasses.asdict(plan))
        return
    from bertkit.recipe.space import name_value

    rows = [
        {"trial": f"{number:04}", **{key: name_value(value) for key, value in point.items()}}
        for number, point in enumerate(plan.settings, start=1)
    ]
    print_table(f"{plan.trials} trials", rows, max_rows=len(rows))
    counts = {split: "streamed" if count is None else f"{count:,}" for split, count in plan.rows.items()}
    if not rows:
        print_line(f"{plan.trials} trials; each follows from the scores of those before")
    print_text(f"rows     {', '.join(f'{split} {count}' for split, count in counts.items())}")
    print_text(f"disk     {plan.disk_bytes / 1e6:,.0f} MB in {plan.folder}")
    print_line("Nothing was trained or written.")
