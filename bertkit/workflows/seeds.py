"""Fine-tune a recipe with several seeds: ordinary runs in one folder, and a summary of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from bertkit.data.sources import is_validation
from bertkit.errors import BertkitError, DivergedError
from bertkit.evaluation.run_sets import (
    SeedsSummary,
    StoredRuns,
    describe_run,
    find_failure,
    sort_runs,
    summarize_split,
    warn_if_unclear,
)
from bertkit.metrics.registry import describe_positive_label
from bertkit.modeling.tokenizer import load_tokenizer
from bertkit.progress import Progress, log, stage, with_progress
from bertkit.recipe.records import Recipe
from bertkit.reports.seeds import write_seeds_report
from bertkit.storage import run_sets, runs
from bertkit.storage.files import disk_errors
from bertkit.storage.hub.models import check_model
from bertkit.storage.runs import RunRecord
from bertkit.tokens.features import TaskContext
from bertkit.workflows.finetune import finetune_rows
from bertkit.workflows.finetune_data import FinetuneData, read_finetune_data, with_recorded_hold_out
from bertkit.workflows.runset import RunSet, train_all
from bertkit.workflows.trial_run import DryRun
from bertkit.workflows.trial_run import dry_run as plan_run


@dataclass
class SeedRuns(RunSet):
    """Set of runs that differ only in their seed."""

    recipe: Recipe
    folder_kind = "a folder of seeds"

    def is_begun(self) -> bool:
        """Return whether the folder holds runs of seeds, or a process is taking the first run."""
        return run_sets.is_seeds_folder(self.folder) or any(self.folder.glob(".seed-*.lock"))

    def title(self, name: str) -> str:
        """Return the name of a run for messages, such as "seed 3"."""
        return name.replace("-", " ")

    def train(self, name: str) -> None:
        """Fine-tune with a seed, or resume."""
        log.info(f"{self.title(name)} ({self.names.index(name) + 1} of {len(self.names)})")
        data = self.read(name)
        finetune_rows(data.with_machine(self.find_machine()), restart=False)

    @cached_property
    def first_data(self) -> FinetuneData:
        """Data of the first seed."""
        with stage("reading the data", total=1):
            return self._read_rows(self.names[0])

    def __getstate__(self) -> dict[str, Any]:
        # A worker reads the rows again, because pickling the rows of a large dataset would need more time and memory.
        return {name: value for name, value in vars(self).items() if name != "first_data"}

    def read(self, name: str) -> FinetuneData:
        """Return the data of a seed. A process reads the rows only once, unless the seed samples the training rows."""
        data = self.first_data
        if data.recipe.data.sampling_keys:
            return self._read_rows(name)
        seed, settings = run_sets.parse_run_index(name), data.plan.identity["recipe"]
        identity = {**data.plan.identity, "recipe": {**settings, "training": {**settings["training"], "seed": seed}}}
        recipe = data.recipe.replace("training", seed=seed)
        plan = replace(data.plan, recipe=recipe, folder=self.folder / name, identity=identity)
        return replace(data, plan=plan, recipe=recipe)

    def _read_rows(self, name: str) -> FinetuneData:
        recipe = self.recipe.replace("training", seed=run_sets.parse_run_index(name))
        return read_finetune_data(recipe, self.folder / name)

    def check_run(self, name: str) -> None:
        """Check that the folder of a seed is free or holds this unchanged run; log if the run is finished."""
        plan = self.read(name).plan
        record = runs.check_run_folder(plan.folder, plan.identity)
        if record is not None and record["status"] == "finished":
            check_model(plan.folder)
            log.info(f"{self.title(name)}: finished on {record['finished']}")


@with_progress
def finetune_seeds(
    recipe: Recipe,
    seeds: Sequence[int],
    *,
    output: str | Path | None = None,
    restart: bool = False,
    jobs: int = 1,
    worker: bool = False,
    progress: Progress | None = None,
) -> tuple[SeedsSummary, BertkitError | None]:
    """Fine-tune with each seed, resume unfinished runs, and summarize all finished runs of the folder.

    A run that diverges does not end the others.

    Args:
        recipe: Recipe to train with.
        seeds: Seeds of the runs.
        output: Folder of the runs; by default ``runs/``, the name of the recipe and ``-seeds``.
        restart: Start over; earlier runs in the folder are moved aside.
        jobs: Maximum number of runs that train at the same time, each in its own process.
        worker: Share the runs with another process that trains them.
        progress: Progress display.

    Returns:
        The summary, which is written to ``seeds.json`` if all runs have ended, and the error of the first run that
        diverged, or None.

    Raises:
        BertkitError: If the recipe, the rows, the folder or the machine does not allow the runs; see `bertkit.errors`.
    """
    # 1. Check options and folder, and read the rows, so that errors are reported before the folder changes.
    runset = check_seeds(recipe, seeds, output, restart=restart, jobs=jobs, worker=worker)
    _ = runset.first_data
    with runset.lock(restart=restart, worker=worker):
        # 2. Train the runs that have not ended.
        for name in runset.names:
            runset.check_run(name)
        train_all(runset, jobs=jobs, worker=worker)

        # 3. Summarize all runs of the folder, including runs of earlier commands.
        with runset.lock_choice():
            names = sorted({*runset.names, *_find_earlier_runs(runset)}, key=run_sets.parse_run_index)
            summary = _summarize_runs(runset, names)
            # Each process that shares the runs gets here; the last process finds no unfinished run, and writes.
            if not summary.unfinished:
                with disk_errors(runset.folder):
                    write_seeds_report(runset.folder, summary.to_dict(), runs.command())
                    run_sets.write_summary(runset.folder / run_sets.SEEDS, summary.to_dict())

    # 4. Report the first run that diverged. Its error is in the record, because another process may have trained it.
    diverged = [run for run in summary.runs if run.status == "diverged" and run.name in runset.names]
    errors = [DivergedError(f"{runset.title(run.name)} diverged: {run.failure}") for run in diverged]
    return summary, next(iter(errors), None)


def dry_run(runset: SeedRuns, *, restart: bool = False) -> DryRun:
    """Check everything that can be checked without training, and return the plan of the first run for all runs."""
    recipes = {name: runset.recipe.replace("training", seed=run_sets.parse_run_index(name)) for name in runset.names}
    first_name, *other_names = runset.names
    plan = plan_run(recipes[first_name], output=runset.folder / first_name, restart=restart)
    for name in () if restart else other_names:
        # Check existing runs: a folder of a seed with another run is an error.
        if runset.record(name):
            plan_run(recipes[name], output=runset.folder / name, is_timed=False)
    return replace(plan, folder=str(runset.folder), disk_bytes=len(runset.names) * plan.disk_bytes)


def check_seeds(
    recipe: Recipe,
    seeds: Sequence[int],
    output: str | Path | None,
    *,
    restart: bool = False,
    jobs: int = 1,
    worker: bool = False,
) -> SeedRuns:
    """Check the folder and the options, and return the runs of the seeds; the rows are not read yet."""
    folder = runs.run_folder(output, f"{recipe.name}-seeds")
    runset = SeedRuns(folder, [run_sets.seed_folder(folder, seed).name for seed in seeds], recipe)
    runset.check(restart=restart, jobs=jobs, worker=worker)
    # Runs of later commands hold out the same rows as the first run of the folder.
    return runset if restart else replace(runset, recipe=with_recorded_hold_out(recipe, run_sets.seed_folders(folder)))


def _find_earlier_runs(runset: SeedRuns) -> list[str]:
    """List the runs of earlier commands that have ended; a run with other settings is an error."""
    ended_runs = []
    for name in (run.name for run in run_sets.seed_folders(runset.folder)):
        if name in runset.names or runset.record(name) is None:
            continue
        if not runset.has_ended(name):
            log.info(f"{runset.title(name)} is not finished and left out: add it to --seeds to resume it")
            continue
        runset.check_run(name)
        ended_runs.append(name)
    return ended_runs


def _summarize_runs(runset: SeedRuns, names: Sequence[str]) -> SeedsSummary:
    """Summarize runs of the folder."""
    data, metric = runset.first_data, runset.first_data.recipe.best_metric
    records: dict[str, RunRecord] = {name: runset.record(name) or {"status": "missing"} for name in names}
    seed_runs = [describe_run(runset.folder / name, record) for name, record in records.items()]
    finished_runs = [run for run in seed_runs if run.results]
    with stage("summarizing the seeds", total=1):
        splits, warnings, contexts = [], list[str](), dict[str, TaskContext]()
        if finished_runs:
            context = TaskContext(data.recipe, load_tokenizer(runset.folder / finished_runs[0].name), data.labels)
            contexts = dict.fromkeys(records, context)
        stored_runs = StoredRuns(runset.folder, records, contexts, data.task, data.validation)
        seed_runs = [replace(run, failure=find_failure(run, stored_runs, metric)) for run in seed_runs]
        if finished_runs:
            # Scores of seeds are read from their records. Only the variance over rows requires their predictions.
            first_run = finished_runs[0]
            validation = [data.splits[result.split] for result in first_run.results if is_validation(result.split)]
            splits = [summarize_split(finished_runs, replace(stored_runs, split=split)) for split in validation]
            result = first_run.result(data.validation.name)
            warnings += describe_positive_label(result.scores, result.positive_label)
            warnings += warn_if_unclear(splits[0], metric, result.baselines)
    # Runs with equal scores keep their order, so the best seed is the lowest seed with the best score.
    best_run = next((run for run in sort_runs(finished_runs, metric) if run.scores.get(metric) is not None), None)
    return SeedsSummary(
        recipe=data.recipe.name,
        model=data.recipe.model_name,
        folder=str(runset.folder),
        best_metric=metric,
        runs=seed_runs,
        splits=splits,
        best_seed=None if best_run is None else run_sets.parse_run_index(best_run.name),
        warnings=warnings,
    )
