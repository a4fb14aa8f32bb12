"""`bertkit finetune`."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertkit.cli.commands.evaluate import print_results
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
    SeedsOption,
    SetOption,
    common_settings,
    load,
    load_tasks,
    names_several,
)
from bertkit.cli.output import print_json, print_line, print_text
from bertkit.cli.progress import TerminalProgress
from bertkit.cli.seeds import choose_seeds, end_seeds
from bertkit.errors import UsageError

if TYPE_CHECKING:
    from bertkit.evaluation.scoring import Result
    from bertkit.recipe import Recipe, SeveralTasks
    from bertkit.workflows.finetune.inputs import DryRun

JobsOption = Annotated[
    int, typer.Option("--jobs", help="With --seeds: train so many at the same time, each in a process.", metavar="N")
]
SoupOption = Annotated[
    bool, typer.Option("--soup", help="With --seeds: average the weights of the runs, and score that model too.")
]

NAME = "finetune"
ORDER = 1
EXAMPLE = "bertkit finetune cola --model demo --data demo"


def command(
    recipe: RecipeArgument,
    model: ModelOption = None,
    data: DataOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Run folder.", metavar="DIR", show_default="runs/RECIPE; with --seeds RECIPE-seeds"
        ),
    ] = None,
    epochs: EpochsOption = None,
    learning_rate: LearningRateOption = None,
    batch_size: BatchSizeOption = None,
    max_length: MaxLengthOption = None,
    seed: SeedOption = None,
    seeds: SeedsOption = None,
    jobs: JobsOption = 1,
    soup: SoupOption = False,
    limit: LimitOption = None,
    changes: SetOption = None,
    dry_run: DryRunOption = False,
    fresh: FreshOption = False,
    json: JsonOption = False,
) -> None:
    """Fine-tune an encoder with a recipe, and score it.

    After an interruption, the same command resumes the run. A finished run is not trained again; its scores are
    printed. Options override the recipe.
    """
    common = common_settings(data, limit, epochs, learning_rate, batch_size, max_length, seed)
    if names_several(recipe):
        if seeds is not None or soup or jobs != 1:
            raise UsageError("--seeds, --soup or --jobs with a recipe of several tasks", "run one --seed at a time")
        several = load_tasks(recipe, {**common, "model": model}, changes)
        _finetune_several(several, output, dry_run=dry_run, fresh=fresh, json=json)
        return
    loaded = load(recipe, {**common, "model": model}, changes)
    if chosen := choose_seeds(seeds, seed, changes):
        _finetune_seeds(loaded, chosen, output, dry_run=dry_run, fresh=fresh, soup=soup, jobs=jobs, json=json)
        return
    if soup or jobs != 1:
        raise UsageError(f"{'--soup' if soup else '--jobs'} without --seeds", "it is for several runs: --seeds 5")
    from bertkit.workflows.finetune import finetune

    if dry_run:
        from bertkit.workflows.finetune.inputs import dry_run as check

        print_dry_run(check(loaded, output=output, fresh=fresh), as_json=json)
        return
    results = finetune(loaded, output=output, fresh=fresh, progress=TerminalProgress())
    print_results(results, as_json=json, next_steps=lambda: print_next_steps(results))


def _finetune_several(several: SeveralTasks, output: Path | None, *, dry_run: bool, fresh: bool, json: bool) -> None:
    from bertkit.workflows.finetune.several import dry_run as check
    from bertkit.workflows.finetune.several import finetune_several

    if dry_run:
        print_dry_run(check(several, output=output, fresh=fresh), as_json=json)
        return
    results = finetune_several(several, output=output, fresh=fresh, progress=TerminalProgress())
    print_results(results, as_json=json)
    if results and not json:
        from bertkit.tasks import example_row, load_task

        folder = shlex.quote(str(Path(str(results[0].folder)).parent))
        rows = {example_row(load_task(own), own) for own in several.recipes.values()}
        print_line("\nNext:")
        # tasks that read different columns are predicted from a file that has them all
        print_line(f"  bertkit predict {folder} {rows.pop() if len(rows) == 1 else 'FILE'}")
        for name in several.recipes:
            print_line(f"  bertkit eval {folder}/{name}")


def _finetune_seeds(
    recipe: Recipe,
    seeds: Sequence[int],
    output: Path | None,
    *,
    dry_run: bool,
    fresh: bool,
    soup: bool,
    jobs: int,
    json: bool,
) -> None:
    from bertkit.workflows.finetune.seeds import dry_run as check
    from bertkit.workflows.finetune.seeds import finetune_seeds

    if dry_run:
        print_dry_run(check(recipe, seeds, output=output, fresh=fresh, jobs=jobs), as_json=json, runs=len(seeds))
        return
    summary, error = finetune_seeds(
        recipe, seeds, output=output, fresh=fresh, jobs=jobs, soup=soup, progress=TerminalProgress()
    )
    end_seeds(summary, error, as_json=json)


def print_dry_run(plan: DryRun, *, as_json: bool, runs: int = 1) -> None:
    """Print what a run, or several that differ in their seed, would do."""
    if as_json:
        print_json(dataclasses.asdict(plan))
        return
    print_line(plan.resolved.rstrip())
    print_line()
    counts = {split: "streamed" if rows is None else f"{rows:,}" for split, rows in plan.rows.items()}
    print_text(f"rows     {', '.join(f'{split} {count}' for split, count in counts.items())}")
    if plan.unread:
        print_text(f"not read {', '.join(plan.unread)}")
    if plan.labels:
        from bertkit.data.labels import list_names

        print_text(f"labels   {list_names(plan.labels[:20])}")
    print_line(f"steps    {plan.steps:,}" + (f" in each of {runs} runs" if runs > 1 else ""))
    print_text(f"disk     {plan.disk_bytes / 1e6:,.0f} MB in {plan.folder}")
    print_line("Nothing was trained or written.")


def print_next_steps(results: Sequence[Result]) -> None:
    """Print the commands that a user may want to run after a training."""
    if not results:
        return
    from bertkit.metrics.basic import is_script
    from bertkit.recipe import load_recipe
    from bertkit.tasks import example_row, load_task

    folder = shlex.quote(str(results[0].folder))
    recipe = load_recipe(f"{results[0].folder}/recipe.yaml")
    recipe._may_run_code = True  # it has been run just now
    print_line("\nNext:")
    print_line(f"  open {folder}/report.html")
    trust = " --trust" if "." in recipe.task or any(map(is_script, recipe.metrics)) else ""
    print_line(f"  bertkit predict {folder} {example_row(load_task(recipe), recipe)}{trust}")
    print_line(f"  bertkit eval {folder}{trust}")
    print_line(f"  hf upload YOUR_NAME/{shlex.quote(recipe.name)} {folder}")
