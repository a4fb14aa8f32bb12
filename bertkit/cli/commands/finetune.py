"""`bertkit finetune`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bertkit.cli.commands.evaluate import print_results
from bertkit.cli.options import (
    DryRunOption,
    FreshOption,
    RecipeArgument,
    SeedsOption,
    option,
    output_option,
    recipe_options,
)
from bertkit.cli.output import format_splits, print_gated, print_line, print_next, print_notes, print_plan, print_result
from bertkit.cli.seeds import choose_seeds, print_seeds
from bertkit.cli.smoke import SmokeOption, print_smoke, refuse_with_smoke
from bertkit.errors import UsageError
from bertkit.reports.text import duration_text

if TYPE_CHECKING:
    from bertkit.evaluation.scoring import Result
    from bertkit.recipe import Recipe
    from bertkit.workflows.finetune.dry_run import DryRun

ORDER = 12
EXAMPLE = "bertkit finetune cola --model demo --data demo"


@recipe_options("model", "data", "epochs", "learning_rate", "batch_size", "max_length", "seed", "limit", "report_to")
def command(
    recipe: RecipeArgument,
    changes: dict[str, Any],
    output: Annotated[
        Path | None, output_option("Run folder.", "DIR", "runs/RECIPE; with --seeds RECIPE-seeds")
    ] = None,
    seeds: SeedsOption = None,
    jobs: Annotated[int, option("With --seeds: train so many at the same time, each in a process.", "N")] = 1,
    dry_run: DryRunOption = False,
    smoke: SmokeOption = False,
    pinned: Annotated[Path | None, option("End unless model, rows and versions are those of this run.", "RUN")] = None,
    fresh: FreshOption = False,
) -> None:
    """Fine-tune an encoder with a recipe, and score it.

    After an interruption, the same command resumes the run. A finished run is not trained again; its scores are
    printed. Options override the recipe.
    """
    if smoke:
        refuse_with_smoke(output=output, seeds=seeds, dry_run=dry_run, fresh=fresh, pinned=pinned)
    from bertkit.recipe import load_recipe

    loaded = load_recipe(recipe, changes)
    if smoke:
        from bertkit.workflows.finetune.smoke import smoke_finetune

        print_smoke(smoke_finetune(loaded))
        return
    chosen = choose_seeds(seeds, changes)
    if pinned is not None and chosen:
        raise UsageError("--pinned with --seeds", "pin one --seed at a time")
    if chosen:
        _finetune_seeds(loaded, chosen, output, dry_run=dry_run, fresh=fresh, jobs=jobs)
        return
    if jobs != 1:
        raise UsageError("--jobs without --seeds", "it is for several runs: --seeds 5")
    _finetune_one(loaded, output, dry_run=dry_run, fresh=fresh, pinned=pinned)


def _finetune_one(recipe: Recipe, output: Path | None, *, dry_run: bool, fresh: bool, pinned: Path | None) -> None:
    from bertkit.workflows.finetune import finetune

    if dry_run:
        from bertkit.workflows.finetune.dry_run import dry_run as check

        print_result(check(recipe, output=output, fresh=fresh, pinned=pinned), print_dry_run)
        return
    results = finetune(recipe, output=output, fresh=fresh, pinned=pinned)
    gates = [case for result in results for case in result.gates]
    print_gated({"results": results}, lambda _: print_results(results, lambda: print_next_steps(results)), gates)


def _finetune_seeds(
    recipe: Recipe, seeds: Sequence[int], output: Path | None, *, dry_run: bool, fresh: bool, jobs: int
) -> None:
    from bertkit.workflows.finetune.seeds import dry_run as check
    from bertkit.workflows.finetune.seeds import finetune_seeds

    if dry_run:
        plan = check(recipe, seeds, output=output, fresh=fresh, jobs=jobs)
        print_result(plan, lambda _: print_dry_run(plan, len(seeds)))
        return
    summary, error = finetune_seeds(recipe, seeds, output=output, fresh=fresh, jobs=jobs)
    if error is not None:
        print_result(summary, print_seeds, error=error)
        return
    from bertkit.evaluation.gates import judge_seeds

    print_gated(summary, print_seeds, judge_seeds(recipe.gates, summary))


def print_dry_run(plan: DryRun, runs: int = 1) -> None:
    """Print what a run, or several that differ in their seed, would do."""
    from bertkit.data.labels import list_names

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
            else f"{duration_text(plan.seconds)}{per_run}, without start, scoring and saving",
            "memory": "" if plan.memory_bytes is None else f"{plan.memory_bytes / 1e6:,.0f} MB at peak",
            "disk": f"{plan.disk_bytes / 1e6:,.0f} MB in {plan.folder}",
        }
    )
    print_notes(plan.notes)
    if plan.timed_steps:
        steps = "1 step" if plan.timed_steps == 1 else f"{plan.timed_steps} steps"
        print_line(f"Time and memory are estimated from {steps}, whose weights were thrown away.")
    print_line("Nothing was written. `bertkit bench` with the same recipe compares batch sizes and precisions.")


def print_next_steps(results: Sequence[Result]) -> None:
    """Print the commands that a user may want to run after a training."""
    if not results:
        return
    from bertkit.recipe import load_recipe
    from bertkit.tasks import load_task, next_commands

    recipe = load_recipe(f"{results[0].folder}/recipe.yaml")
    recipe._may_run_code = True  # it has been run just now
    print_next(*next_commands(load_task(recipe), recipe, str(results[0].folder)))
