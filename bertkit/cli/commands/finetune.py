"""`bertkit finetune`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bertkit.cli.commands.evaluate import print_results
from bertkit.cli.options import (
    TRAINING_OPTIONS,
    DryRunOption,
    JobsOption,
    RecipeArgument,
    RestartOption,
    SeedsOption,
    WorkerOption,
    flag,
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
    print_with_gates,
)
from bertkit.errors import BertkitError, UsageError
from bertkit.reports.text import duration_text

if TYPE_CHECKING:
    from bertkit.evaluation.run_sets import SeedsSummary
    from bertkit.evaluation.scoring import EvalResult
    from bertkit.recipe.records import Recipe
    from bertkit.workflows.trial_run import DryRun, SmokeResult

ORDER = 12
EXAMPLE = "bertkit finetune cola --model demo --data demo"

SmokeOption = Annotated[
    bool,
    flag("--smoke-test", "Test all stages on a few rows in a temporary folder: train, resume, score and publish."),
]


@recipe_options("model", *TRAINING_OPTIONS, "report_to")
def command(
    recipe: RecipeArgument,
    changes: dict[str, Any],
    output: Annotated[
        Path | None, output_option("Run folder.", "DIR", "runs/RECIPE; with --seeds, runs/RECIPE-seeds")
    ] = None,
    seeds: SeedsOption = None,
    jobs: JobsOption = 1,
    worker: WorkerOption = False,
    dry_run: DryRunOption = False,
    smoke_test: SmokeOption = False,
    expect_run: Annotated[
        Path | None, option("Abort unless model, rows and package versions match this run.", "RUN")
    ] = None,
    restart: RestartOption = False,
) -> None:
    """Fine-tune an encoder with a recipe, and score it.

    After an interruption, the same command resumes the run. A finished run is not trained again; its scores are
    printed. Options override the recipe.
    """
    if smoke_test:
        check_smoke_options(output=output, seeds=seeds, dry_run=dry_run, restart=restart, expect_run=expect_run)
    from bertkit.recipe.load import load_recipe

    # The recipe is loaded before the modules that import torch, so that a mistake in it is reported at once.
    loaded_recipe = load_recipe(recipe, changes)
    if smoke_test:
        from bertkit.workflows.trial_run import smoke_finetune

        print_smoke(smoke_finetune(loaded_recipe))
        return
    # 1. With `--seeds`, train one run per seed and summarize them.
    if seeds is not None:
        if "training.seed" in changes:
            raise UsageError("one seed and --seeds are both given", "list all seeds, e.g. --seeds 1,2,7")
        if expect_run is not None:
            raise UsageError("--expect-run with --seeds", "use --seed with one seed at a time")
        _finetune_seeds(
            loaded_recipe, parse_seeds(seeds), output, dry_run=dry_run, restart=restart, jobs=jobs, worker=worker
        )
        return
    # 2. Otherwise, plan or train one run.
    if jobs != 1 or worker:
        raise UsageError(f"{'--worker' if worker else '--jobs'} without --seeds", "add e.g. --seeds 5")
    if dry_run:
        from bertkit.workflows import trial_run

        print_result(
            trial_run.dry_run(loaded_recipe, output=output, restart=restart, expect_run=expect_run), print_dry_run
        )
        return
    from bertkit.workflows.finetune import finetune

    results = finetune(loaded_recipe, output=output, restart=restart, expect_run=expect_run)
    gates = [case for result in results for case in result.gates]
    # Next steps are printed before the error of a failed gate.
    next_steps = partial(print_next_steps, loaded_recipe, results)
    print_with_gates({"results": results}, lambda _: print_results(results, next_steps), gates)


def _finetune_seeds(
    recipe: Recipe, seeds: Sequence[int], output: Path | None, *, dry_run: bool, restart: bool, jobs: int, worker: bool
) -> None:
    from bertkit.workflows.seeds import check_seeds, finetune_seeds
    from bertkit.workflows.seeds import dry_run as plan_seeds

    if dry_run:
        run_set = check_seeds(recipe, seeds, output, restart=restart, jobs=jobs, worker=worker)
        plan = plan_seeds(run_set, restart=restart)
        print_result(plan, lambda _: print_dry_run(plan, len(seeds)))
        return
    summary, error = finetune_seeds(recipe, seeds, output=output, restart=restart, jobs=jobs, worker=worker)
    # The gates are for all runs, so only the process that finishes last applies them.
    if error is not None or summary.unfinished:
        print_result(summary.to_dict(), lambda _: print_seeds(summary), error=error)
        return
    from bertkit.evaluation.gates import judge_seeds

    print_with_gates(summary.to_dict(), lambda _: print_seeds(summary), judge_seeds(recipe.gates, summary))


def print_dry_run(plan: DryRun, runs: int = 1) -> None:
    """Print the plan of a run, or of several runs that differ in their seed."""
    from bertkit.data.labels import list_names

    # The resolved recipe comes first, because it shows the effect of every option and default.
    per_run = f" in each of {runs} runs" if runs > 1 else ""
    print_line(f"{plan.resolved.rstrip()}\n")
    print_plan(
        {
            "rows": format_splits(plan.rows),
            "not read": ", ".join(name or repr(name) for name in plan.unread),
            "labels": list_names(plan.labels[:20]) if plan.labels else "",
            "steps": f"{plan.steps:,}{per_run}",
            "time": ""
            if plan.seconds is None
            else f"{duration_text(plan.seconds)}{per_run}, without start-up, final scores and saving",
            "memory": "" if plan.memory_bytes is None else f"{plan.memory_bytes / 1e6:,.0f} MB at peak",
            "disk": f"{plan.disk_bytes / 1e6:,.0f} MB in {plan.folder}",
        }
    )
    print_notes(plan.notes)
    if plan.timed_steps:
        steps = format_count(plan.timed_steps, "step")
        print_line(f"Time and memory are estimates from {steps} of training.")
    print_line("Nothing was written. `bertkit bench` with the same recipe compares batch sizes and precisions.")


def print_next_steps(recipe: Recipe, results: Sequence[EvalResult]) -> None:
    """Print the commands that a user may want to run after a training."""
    if not results:
        return
    from bertkit.recipe.load import load_recipe
    from bertkit.tasks import load_task, next_commands

    # The run's recipe.yaml names the columns that were detected.
    folder = str(results[0].folder)
    print_next(*next_commands(load_task(recipe), load_recipe(f"{folder}/recipe.yaml"), folder))


_MAX_SEEDS = 100


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds of `--seeds`, which is the number of seeds, counted from 1, or a list of seeds.

    Raises:
        UsageError: If the text is something else, has more than a hundred seeds, or has a seed twice.

    >>> parse_seeds("3"), parse_seeds("1,2,7")
    ((1, 2, 3), (1, 2, 7))
    """
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        seeds = []
    if not seeds or min(seeds) < 0 or max(seeds) >= 2**32 or seeds == [0]:
        message = f"--seeds {text!r} is neither a number of seeds nor a list"
        raise UsageError(message, "write e.g. --seeds 5 or --seeds 1,2,7")
    if len(seeds) == 1 and seeds[0] > _MAX_SEEDS:
        remedy = f"--seed {seeds[0]} trains once with this seed"
        raise UsageError(f"--seeds {text} requests more than {_MAX_SEEDS} runs", remedy)
    if len(seeds) > _MAX_SEEDS or len(set(seeds)) < len(seeds):
        raise UsageError(f"--seeds {text}: a seed twice, or more than {_MAX_SEEDS} seeds", "list each seed once")
    return tuple(range(1, seeds[0] + 1)) if len(seeds) == 1 else tuple(seeds)


def print_seeds(summary: SeedsSummary) -> None:
    """Print the scores over seeds, the runs, and the expected score of the best run."""
    # 1. A table of scores for each split.
    for split in summary.splits:
        seeds = format_count(len(summary.runs), "seed")
        print_text(f"{summary.recipe}, {split.split}: {format_rows(split.rows)}, {seeds}, {summary.model}")
        rows = [
            {
                "metric": metric,
                "mean": spread.mean,
                "sd": spread.standard_deviation,
                "min": spread.minimum,
                "median": spread.median,
                "max": spread.maximum,
                "95% CI of the mean": spread.interval,
                # The null model predicts the same label or number for every row; runs close to it learned nothing.
                "null model": split.baseline.get(metric),
            }
            for metric, spread in split.spreads.items()
            if spread is not None
        ]
        print_table("scores over seeds", rows)
        reasons = {
            name: spread.no_interval if spread else "no run has such a score" for name, spread in split.spreads.items()
        }
        print_notes(
            f"n/a: interval of {', '.join(names)} ({reason})" for reason, names in group_by_reason(reasons).items()
        )
    # 2. The runs.
    if summary.splits:
        print_text(
            "  95% CI of the mean over seeds and rows (Student; variance of seeds plus variance of resampled rows)"
        )
        _print_runs(summary)
    failures = group_by_reason({run.name.removeprefix("seed-"): run.failure for run in summary.failed})
    for failure, seeds_failed in failures.items():
        print_text(f"  failed: seed{'s' if len(seeds_failed) > 1 else ''} {', '.join(seeds_failed)}. {failure}")
    # 3. The best run. The best of k seeds rises with k, so compare methods only at the same k ("Show Your Work", Dodge
    # et al. 2019).
    metric = summary.best_metric
    spread = summary.splits[0].spreads.get(metric) if summary.splits else None
    if spread is not None and spread.runs > 1:
        best_score = format_number(spread.expected_best[-1])
        print_text(f"  best of {spread.runs}: {metric} {best_score} (seed {summary.best_seed})")
        print_text(f"  expected best {metric} of k runs: {number_values(spread.expected_best)}")
    print_notes(summary.warnings)
    if summary.unfinished:
        print_unfinished(len(summary.unfinished))
        return
    print_next(f"open {shlex.quote(summary.folder)}/report.html")


def _print_runs(summary: SeedsSummary) -> None:
    """Print the scores of each run on the first split."""
    rows = []
    for run in summary.runs:
        scores = {metric: run.scores.get(metric) for metric in summary.splits[0].spreads}
        status = run.status if run.status != "finished" else "failed" if run.failure else ""
        rows.append({"seed": run.name.removeprefix("seed-"), **scores, "": status})
    print_table("runs", rows)


def print_unfinished(count: int) -> None:
    """Print the number of runs that other processes still train."""
    print_text(f"  {count} more not finished: other processes train them, or run the command without --worker")


def number_values(values: Sequence[float]) -> str:
    """Return values with their positions, counted from 1, as text.

    >>> number_values([0.5, 0.75])
    '1: 0.5000, 2: 0.7500'
    """
    return ", ".join(f"{index}: {format_number(value)}" for index, value in enumerate(values, start=1))


def check_smoke_options(**other_options: object) -> None:
    """Check that no other option is given with --smoke-test; `dry_run` means --dry-run.

    Raises:
        UsageError: If an option has a value.
    """
    conflicts = [f"--{name.replace('_', '-')}" for name, value in other_options.items() if value]
    if conflicts:
        raise UsageError(f"--smoke-test with {', '.join(conflicts)}", "leave one out: a smoke test keeps nothing")


def print_smoke(outcome: tuple[SmokeResult, BertkitError | None]) -> None:
    """Print the outcome of each stage, and raise the error of the stage that failed."""
    result, error = outcome
    print_result(result, _print_stages, error=error)


def _print_stages(result: SmokeResult) -> None:
    print_text(f"{result.recipe}: {result.model}; {format_splits(result.rows) if result.rows else 'no rows'}")
    rows = [{"stage": stage.name, "": stage.outcome, "seconds": f"{stage.seconds:.1f}"} for stage in result.stages]
    print_table("stages", rows)
    print_notes(f"{stage.outcome}: {stage.name}. {stage.reason}" for stage in result.stages if stage.reason)
