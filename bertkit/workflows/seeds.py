"""Fine-tune a recipe with several seeds: ordinary runs in one folder, and a summary of all of them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bertkit.data.sources import is_validation
from bertkit.errors import BertkitError, DivergedError, UsageError
from bertkit.evaluation.seeds import SeedsSummary, describe_run, find_best, find_unclear, summarize_split
from bertkit.hardware.device import find_device
from bertkit.hardware.launch import refuse_launch
from bertkit.hardware.process import fitting_threads
from bertkit.metrics.basic import describe_positive_label
from bertkit.modeling.architectures import detect_machine
from bertkit.modeling.tokenizer import load_tokenizer
from bertkit.progress import Progress, log, stage, takes_progress
from bertkit.recipe.records import Recipe
from bertkit.reports.seeds import write_seeds_report
from bertkit.storage import runs
from bertkit.storage import seeds as storage
from bertkit.storage.files import disk_errors
from bertkit.storage.hub.models import check_model
from bertkit.storage.runs import find_machine, without_folder
from bertkit.tokens.features import Setup
from bertkit.workflows.finetune import finetune_rows
from bertkit.workflows.finetune_data import FinetuneData, as_begun, read_finetune_data
from bertkit.workflows.seed_jobs import SeedJob, run_jobs
from bertkit.workflows.trial_run import DryRun
from bertkit.workflows.trial_run import dry_run as plan_run


@takes_progress
def finetune_seeds(
    recipe: Recipe,
    seeds: Sequence[int],
    *,
    output: str | Path | None = None,
    fresh: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
) -> tuple[SeedsSummary, BertkitError | None]:
    """Fine-tune with each seed in turn, resume what is unfinished, and summarize all finished runs of the folder.

    A run that diverges does not end the others. Up to `jobs` runs train at the same time, each in its own process.

    Returns:
        the summary, which is in ``seeds.json`` too, and the error of a run that diverged.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    folder = _check_seeds(recipe, seeds, output, jobs)
    recipe = recipe if fresh else as_begun(recipe, storage.seed_folders(folder))
    with stage("reading the data", total=1):
        # Rows are read once for all seeds: only the seed and the folder differ.
        inputs = read_finetune_data(recipe.changed("training", seed=seeds[0]), storage.seed_folder(folder, seeds[0]))
    with storage.claimed_seeds(folder, fresh=fresh):
        of_seeds = {seed: _inputs_of(inputs, seed, folder) for seed in seeds}
        pending = {seed: of_seed for seed, of_seed in of_seeds.items() if not _is_finished(of_seed)}
        # Finished seeds need no process, and on a CPU more jobs than threads would only slow each other down.
        at_once = _count_jobs(min(jobs, len(pending)))
        errors = _run_at_once(recipe, pending, folder, at_once) if at_once > 1 else _run_in_turn(pending, folder)
        diverged = next((errors[seed].named(f"seed {seed} diverged") for seed in seeds if seed in errors), None)
        summary = _summarize_runs(inputs, folder, sorted({*seeds, *_find_others(inputs, folder, seeds)}))
        # With the summary, the command counts as finished.
        content = without_folder(summary)
        with disk_errors(folder):
            write_seeds_report(folder, content, runs.command())
            storage.write_seeds(folder, {"command": runs.command(), "finished": runs.now(), **content})
        return summary, diverged


def dry_run(
    recipe: Recipe, seeds: Sequence[int], *, output: str | Path | None = None, fresh: bool = False, jobs: int = 1
) -> DryRun:
    """Check everything that can be checked without training, and return what the runs would do."""
    folder = _check_seeds(recipe, seeds, output, jobs)
    runs.check_idle(folder)
    recipe = recipe if fresh else as_begun(recipe, storage.seed_folders(folder))
    first = storage.seed_folder(folder, seeds[0])
    plan = plan_run(recipe.changed("training", seed=seeds[0]), output=first, fresh=fresh)
    for seed in () if fresh else seeds[1:]:
        begun = storage.seed_folder(folder, seed)
        if runs.read_record(begun):  # it may be another run
            plan_run(recipe.changed("training", seed=seed), output=begun, is_timed=False)
    return replace(plan, folder=str(folder), disk_bytes=len(seeds) * plan.disk_bytes)


def _check_seeds(recipe: Recipe, seeds: Sequence[int], output: str | Path | None, jobs: int) -> Path:
    """Return the folder of the seeds after checking that it may be one, and that so many may train at a time."""
    if jobs < 1:
        raise UsageError(f"--jobs {jobs}", "name the number of runs that train at the same time")
    refuse_launch("several seeds under torchrun", "launch one run per seed: --seed 1, --seed 2, ...")
    folder = runs.run_folder(output, f"{recipe.name}-seeds")
    storage.check_folder(folder)
    return folder


def _inputs_of(inputs: FinetuneData, seed: int, folder: Path) -> FinetuneData:
    """Return the inputs of another seed: what was read depends on it only where training rows are drawn."""
    if inputs.recipe.data.per_class or inputs.recipe.data.train_limit:
        return read_finetune_data(inputs.recipe.changed("training", seed=seed), storage.seed_folder(folder, seed))
    settings = inputs.plan.identity["recipe"]
    identity = {**inputs.plan.identity, "recipe": {**settings, "training": {**settings["training"], "seed": seed}}}
    recipe = inputs.recipe.changed("training", seed=seed)
    plan = replace(inputs.plan, recipe=recipe, folder=storage.seed_folder(folder, seed), identity=identity)
    return replace(inputs, plan=plan, recipe=recipe)


def _is_finished(inputs: FinetuneData) -> bool:
    """Tell whether a seed is finished, and say so; check that its folder is free or holds this very run, unchanged."""
    record = runs.check_claim(inputs.plan.folder, inputs.plan.identity)
    if record is None or record["status"] != "finished":
        return False
    check_model(inputs.plan.folder)
    log.info(f"seed {inputs.recipe.training.seed}: finished on {record['finished']}")
    return True


def _run_in_turn(pending: Mapping[int, FinetuneData], folder: Path) -> dict[int, DivergedError]:
    """Train one seed after the other, and return the errors of those that diverged."""
    diverged = {}
    for number, (seed, inputs) in enumerate(pending.items(), start=1):
        log.info(f"seed {seed} ({number} of {len(pending)})")
        machine = find_machine(storage.seed_folders(folder))
        try:
            finetune_rows(inputs.on(machine), fresh=False)
        except DivergedError as error:
            log.info(f"seed {seed} diverged: {error}")
            diverged[seed] = error
    return diverged


def _count_jobs(asked: int) -> int:
    """Return how many runs of those asked for can train at a time: on a CPU, as many as there are threads."""
    if asked < 2:
        return asked
    with stage("loading torch and transformers"):
        import bertkit.training.fit  # noqa: F401
    threads = fitting_threads().number
    if asked > threads and find_device().is_cpu:
        log.info(f"runs at a time: {threads}, since no more threads can be used here")
        return threads
    return asked


def _run_at_once(
    recipe: Recipe, pending: Mapping[int, FinetuneData], folder: Path, at_once: int
) -> dict[int, DivergedError]:
    """Train several seeds at the same time, and return the errors of those that diverged."""
    machine = find_machine(storage.seed_folders(folder))
    if machine is None:
        plan = next(iter(pending.values())).plan
        share = max(1, fitting_threads().number // at_once)
        machine = dataclasses.asdict(
            detect_machine(plan.recipe.training.precision, plan.model_type, plan.widths, threads=share)
        )
    log.info(f"{at_once} of {len(pending)} seeds at a time; threads of each: {machine['threads']}")
    jobs = [
        SeedJob(seed, recipe.changed("training", seed=seed), inputs.plan.folder, machine, sys.argv)
        for seed, inputs in pending.items()
    ]
    return run_jobs(jobs, at_once)


def _find_others(inputs: FinetuneData, folder: Path, seeds: Sequence[int]) -> list[int]:
    """List the seeds of earlier commands that ended in the folder; those of other settings are refused."""
    ended = []
    for seed in storage.find_seeds(folder):
        record = runs.read_record(storage.seed_folder(folder, seed))
        if seed in seeds or record is None:
            continue
        if record["status"] not in ("finished", "diverged"):
            log.info(f"seed {seed} is not finished and left out: name it in --seeds to resume it")
            continue
        _is_finished(_inputs_of(inputs, seed, folder))  # or refused
        ended.append(seed)
    return ended


def _summarize_runs(inputs: FinetuneData, folder: Path, seeds: Sequence[int]) -> SeedsSummary:
    """Summarize the runs of these seeds."""
    task, metric, validation = inputs.task, inputs.recipe.best_metric, inputs.validation
    records = {seed: runs.read_record(storage.seed_folder(folder, seed)) or {"status": "missing"} for seed in seeds}
    with stage("summarizing the seeds", total=1):
        described = [describe_run(folder, seed, records[seed], task, validation, metric) for seed in seeds]
        finished = [run for run in described if run.status == "finished"]
        # Scores of seeds are read from their records; only the variance over rows needs their predictions.
        splits, warnings = [], list[str]()
        if finished:
            first = folder / finished[0].folder
            setup = Setup(inputs.recipe, load_tokenizer(first), inputs.labels)
            names = [name for name in finished[0].scores if is_validation(name)]
            splits = [summarize_split(folder, described, records, task, inputs.splits[name], setup) for name in names]
            result = next(of for of in records[finished[0].seed]["results"] if of["split"] == validation.name)
            warnings += describe_positive_label(result["scores"], result.get("positive_label"))
            warnings += find_unclear(splits[0], metric, result["baselines"])
    return SeedsSummary(
        recipe=inputs.recipe.name,
        model=inputs.recipe.model_name,
        folder=str(folder),
        best_metric=metric,
        runs=described,
        splits=splits,
        best_seed=find_best(described, validation.name, metric),
        warnings=warnings,
    )
