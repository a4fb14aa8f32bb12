"""`bertkit sweep`."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bertkit.cli.commands.finetune import number_values, print_unfinished
from bertkit.cli.options import (
    TRAINING_OPTIONS,
    DryRunOption,
    JobsOption,
    RecipeArgument,
    RestartOption,
    WorkerOption,
    option,
    output_option,
    recipe_options,
)
from bertkit.cli.output import (
    format_count,
    format_number,
    format_rows,
    format_splits,
    group_by_reason,
    print_line,
    print_next,
    print_notes,
    print_plan,
    print_result,
    print_table,
    print_text,
)
from bertkit.reports.text import duration_text

if TYPE_CHECKING:
    from bertkit.evaluation.sweeps import SweepSummary

ORDER = 14
EXAMPLE = 'bertkit sweep cola --model demo --data demo --space "training.learning_rate=log:1e-4..1e-2" --search random'


@recipe_options("model", *TRAINING_OPTIONS)
def command(
    recipe: RecipeArgument,
    changes: dict[str, Any],
    output: Annotated[Path | None, output_option("Folder of the trials.", "DIR", "runs/RECIPE-sweep")] = None,
    space: Annotated[
        list[str] | None,
        option(
            "Recipe key and values: 16,32, int:2..4, float:0..0.3 or log:1e-5..1e-4; repeatable.",
            "KEY=VALUES",
            "BERT's grid of batch sizes, learning rates and epochs",
        ),
    ] = None,
    search: Annotated[str, option("Method that chooses the trials: grid, random or tpe (Optuna).", "METHOD")] = "grid",
    trials: Annotated[int | None, option("Number of trials (random, tpe).", "N", "24, or the complete grid")] = None,
    jobs: JobsOption = 1,
    worker: WorkerOption = False,
    dry_run: DryRunOption = False,
    restart: RestartOption = False,
) -> None:
    """Fine-tune with many settings, and rank them by score.

    Each trial is an ordinary run folder. After an interruption, the same command resumes the interrupted trial and
    trains the missing ones. Options override the recipe in all trials.
    """
    from bertkit.recipe.space import parse_sweep_space

    search_space = parse_sweep_space(search, space or (), trials)
    from bertkit.workflows.sweep import check_sweep, sweep
    from bertkit.workflows.sweep import dry_run as check

    if dry_run:
        job = check_sweep(recipe, search_space, changes, output, restart=restart, jobs=jobs, worker=worker)
        print_result(check(job, restart=restart), print_sweep_plan)
        return
    summary = sweep(recipe, search_space, changes, output=output, restart=restart, jobs=jobs, worker=worker)
    print_result(summary.to_dict(), lambda _: print_sweep(summary))


def print_sweep(summary: SweepSummary) -> None:
    """Print the trials of a sweep, the best first, learning curves, and the expected score of the best trial."""
    metric = summary.best_metric
    names = short_names(summary.space)
    trials = format_count(len(summary.trials), "trial")
    print_text(f"{summary.recipe}, {summary.split}: {format_rows(summary.rows)}, {trials}, {summary.model}")
    _print_trials(summary, names)
    failures = group_by_reason({trial.name: trial.failure for trial in summary.trials if trial.status == "diverged"})
    print_notes(f"diverged: {', '.join(folders)}. {failure}" for failure, folders in failures.items())
    # Fraction of the variance that a key explains on its own; the rest is due to interactions and seeds.
    importance = [f"{names[key]} {part:.0%}" for key, part in summary.importance.items() if part is not None]
    if importance:
        print_text(f"  explained variance of {metric}: {', '.join(importance)}")
    # The best of many trials is best partly by luck, so an estimate for new rows follows.
    finished_trials = summary.finished
    if len(finished_trials) > 1:
        best_score = format_number(finished_trials[0].scores[metric])
        print_text(
            f"  best of {len(finished_trials)}: {metric} {best_score} ({summary.best}), selected on the scored rows"
        )
        expected = f"n/a ({summary.no_selection})"
        if summary.selection is not None:
            method = f"{summary.selection.chosen[0]:.0%} of 200 resamples select the same trial"
            expected = f"{format_number(summary.selection.estimate)} ({method})"
        print_text(f"  expected on other rows: {expected}")
    if summary.expected_best:
        print_text(f"  expected best {metric} of k random trials: {number_values(summary.expected_best)}")
    if summary.unfinished:
        print_unfinished(summary.unfinished)
        return
    folder = shlex.quote(summary.folder)
    print_next(f"open {folder}/report.html", *([f"bertkit eval {folder}/{summary.best}"] if summary.best else []))


def _print_trials(summary: SweepSummary, names: Mapping[str, str]) -> None:
    """Print the table of trials and the table of learning curves."""
    from bertkit.evaluation.sweeps import ROW_KEYS
    from bertkit.recipe.space import name_value

    metric = summary.best_metric
    metrics = list(summary.finished[0].scores) if summary.finished else [metric]
    rows = [
        {
            "trial": trial.name.removeprefix("trial-"),
            **{names[key]: name_value(value) for key, value in trial.settings.items()},
            **{name: trial.scores.get(name) for name in metrics},
            "time": duration_text(trial.seconds),
            "": "" if trial.status == "finished" else trial.status,
        }
        for trial in summary.trials
    ]
    print_table(f"trials by {metric}", rows, max_rows=max(30, len(rows)))
    # A sweep over training rows, such as --space data.limit=100,1000, is a learning curve.
    limit = next((name for key, name in names.items() if key in ROW_KEYS), "")
    curve = [
        {
            limit: point.limit,
            **{names[key]: name_value(value) for key, value in point.settings.items()},
            "seeds": point.seeds,
            metric: point.score,
            "95% CI": point.interval,
        }
        for point in summary.curve
    ]
    print_table(f"{metric} by training rows, 95% intervals", curve, max_rows=len(curve))


def short_names(space: dict[str, str]) -> dict[str, str]:
    """Return recipe key -> its last part, or the complete key if two keys have the same last part.

    >>> short_names({"training.epochs": "2,3", "training.seed": "1,2"})
    {'training.epochs': 'epochs', 'training.seed': 'seed'}
    """
    counts = Counter(key.rpartition(".")[2] for key in space)
    return {key: name if counts[name := key.rpartition(".")[2]] == 1 else key for key in space}


def print_sweep_plan(plan: Mapping[str, Any]) -> None:
    """Print the trials of a planned sweep, and the disk space that they need."""
    from bertkit.recipe.space import name_value

    rows = [
        {"trial": f"{index:04}", **{key: name_value(value) for key, value in point.items()}}
        for index, point in enumerate(plan["settings"], start=1)
    ]
    print_table(f"{plan['trials']} trials", rows, max_rows=len(rows))
    if not rows:
        print_line(f"{plan['trials']} trials; each one depends on the scores of the previous ones")
    disk = f"{plan['disk_bytes'] / 1e6:,.0f} MB in {plan['folder']}"
    print_plan({"rows": format_splits(plan["rows"]), "disk": disk})
    print_line("Nothing was trained or written.")
