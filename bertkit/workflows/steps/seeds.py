"""Fine-tune a recipe with several seeds: ordinary runs in one folder, and a summary of all of them."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertkit.data.sources import is_validation
from bertkit.errors import BertkitError, DivergedError, UsageError
from bertkit.evaluation.seeds import SeedsSummary, describe_run, find_best, summarize_split
from bertkit.modeling.load import load_tokenizer
from bertkit.progress import SILENT, Progress, stage
from bertkit.recipe import Recipe
from bertkit.reports.seeds import write_seeds_report
from bertkit.storage import runs
from bertkit.storage import seeds as storage
from bertkit.storage.checksums import check_model
from bertkit.storage.disk import disk_errors
from bertkit.tokens.features import Setup
from bertkit.workflows.finetune import run_inputs
from bertkit.workflows.steps import finetune_inputs
from bertkit.workflows.steps.finetune_inputs import DryRun, FinetuneInputs, read_inputs

log = logging.getLogger("bertkit")


def finetune_seeds(
    recipe: Recipe,
    seeds: Sequence[int],
    *,
    output: str | Path | None = None,
    fresh: bool = False,
    progress: Progress = SILENT,
) -> tuple[SeedsSummary, BertkitError | None]:
    """Fine-tune with each seed in turn, resume what is unfinished, and summarize all finished runs of the folder.

    A run that diverges does not end the others.

    Returns:
        the summary, which is in ``seeds.json`` too, and the error of a run that diverged.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    folder = _check(recipe, seeds, output)
    with stage(progress, "reading the data", total=1):
        inputs = read_inputs(_with_seed(recipe, seeds[0]), storage.seed_folder(folder, seeds[0]))
    with storage.claimed_seeds(folder, fresh=fresh):
        of_seeds = {seed: _inputs_of(inputs, seed, folder) for seed in seeds}
        for each in of_seeds.values():
            _check_run(each)
        diverged = _run_in_turn(of_seeds, folder, progress)
        return _summarize(inputs, folder, sorted({*seeds, *_others(inputs, folder, seeds)}), progress), diverged


def dry_run(recipe: Recipe, seeds: Sequence[int], *, output: str | Path | None = None, fresh: bool = False) -> DryRun:
    """Check everything that can be checked without training, and return what the runs would do."""
    folder = _check(recipe, seeds, output)
    first = storage.seed_folder(folder, seeds[0])
    plan = finetune_inputs.dry_run(_with_seed(recipe, seeds[0]), output=first, fresh=fresh)
    return replace(plan, folder=str(folder), disk_bytes=len(seeds) * plan.disk_bytes)


def _check(recipe: Recipe, seeds: Sequence[int], output: str | Path | None) -> Path:
    """Return the folder of the seeds after checking that it may be one."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError("several seeds under torchrun", "launch one run per seed: --seed 1, --seed 2, ...")
    folder = runs.run_folder(output, f"{recipe.name}-seeds")
    storage.check_folder(folder)
    return folder


def _with_seed(recipe: Recipe, seed: int) -> Recipe:
    return recipe.model_copy(update={"training": recipe.training.model_copy(update={"seed": seed})})


def _inputs_of(inputs: FinetuneInputs, seed: int, folder: Path) -> FinetuneInputs:
    """Return the inputs of another seed: nothing that was read depends on it."""
    settings = inputs.plan.identity["recipe"]
    identity = {**inputs.plan.identity, "recipe": {**settings, "training": {**settings["training"], "seed": seed}}}
    recipe = _with_seed(inputs.recipe, seed)
    plan = replace(inputs.plan, recipe=recipe, folder=storage.seed_folder(folder, seed), identity=identity)
    return replace(inputs, plan=plan, recipe=recipe)


def _check_run(inputs: FinetuneInputs) -> None:
    """Check that a seed's folder is free or holds this very run, and that a finished one is as it was written."""
    record = runs.check_claim(inputs.plan.folder, inputs.plan.identity)
    if record is not None and record["status"] == "finished":
        check_model(inputs.plan.folder)


def _run_in_turn(of_seeds: Mapping[int, FinetuneInputs], folder: Path, progress: Progress) -> BertkitError | None:
    """Train each seed that is not finished, and return the error of the first that diverged."""
    diverged = None
    for number, (seed, inputs) in enumerate(of_seeds.items(), start=1):
        record = runs.read_record(inputs.plan.folder)
        if record is not None and record["status"] == "finished":
            log.info(f"seed {seed}: finished on {record['finished']}")
            continue
        log.info(f"seed {seed} ({number} of {len(of_seeds)})")
        machine = find_machine(folder)
        use_threads(machine)
        inputs = replace(inputs, plan=replace(inputs.plan, machine=machine))
        try:
            run_inputs(inputs, fresh=False, progress=progress)
        except DivergedError as error:
            log.info(f"seed {seed} diverged: {error}")
            diverged = diverged or explain(seed, error)
    return diverged


def explain(seed: int, error: DivergedError) -> DivergedError:
    """Return the error of a command in which one seed has diverged."""
    return DivergedError(f"seed {seed} diverged: {error.what}", error.remedy, file=error.file)


def find_machine(folder: Path) -> dict[str, Any] | None:
    """Return the machine of the first run in a folder of seeds: all others compute as it did; None without a run."""
    for seed in storage.find_seeds(folder):
        record = runs.read_record(storage.seed_folder(folder, seed))
        if record is not None and "machine" in record:
            return dict(record["machine"])
    return None


def use_threads(machine: Mapping[str, Any] | None) -> None:
    """Compute with as many threads as another run: the order of floating-point sums depends on them."""
    if machine is None:
        return
    import torch

    if torch.get_num_threads() != machine["threads"]:
        log.info(f"threads: {machine['threads']}, as the other seeds")
        torch.set_num_threads(machine["threads"])


def _others(inputs: FinetuneInputs, folder: Path, seeds: Sequence[int]) -> list[int]:
    """List the seeds of earlier commands that ended in the folder; those of other settings are refused."""
    ended = []
    for seed in storage.find_seeds(folder):
        record = runs.read_record(storage.seed_folder(folder, seed))
        if seed in seeds or record is None:
            continue
        if record["status"] not in ("finished", "diverged"):
            log.info(f"seed {seed} is not finished and left out: name it in --seeds to resume it")
            continue
        _check_run(_inputs_of(inputs, seed, folder))
        ended.append(seed)
    return ended


def _summarize(inputs: FinetuneInputs, folder: Path, seeds: Sequence[int], progress: Progress) -> SeedsSummary:
    """Summarize the runs of these seeds, and write it into their folder."""
    task, metric, validation = inputs.task, inputs.recipe.best_metric, inputs.validation
    records = {seed: runs.read_record(storage.seed_folder(folder, seed)) or {"status": "missing"} for seed in seeds}
    with stage(progress, "summarizing the seeds", total=1):
        described = [describe_run(folder, seed, records[seed], task, validation, metric) for seed in seeds]
        finished = [run for run in described if run.status == "finished"]
        splits = []
        if finished:
            first = folder / finished[0].folder
            setup = Setup(inputs.recipe, load_tokenizer(first), inputs.labels)
            names = [name for name in finished[0].scores if is_validation(name)]
            splits = [summarize_split(folder, described, records, task, inputs.splits[name], setup) for name in names]
    summary = SeedsSummary(
        recipe=inputs.recipe.name,
        model=inputs.recipe.model_name,
        folder=str(folder),
        best_metric=metric,
        runs=described,
        splits=splits,
        best_seed=find_best(described, validation.name, metric),
    )
    content = dataclasses.asdict(summary)
    del content["folder"]  # it may be moved
    with disk_errors(folder):
        write_seeds_report(folder, content, runs.command())
        storage.write_seeds(folder, {"command": runs.command(), "finished": runs.now(), **content})
    return summary
