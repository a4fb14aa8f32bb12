"""Fine-tune a recipe with many settings: ordinary runs in one folder, and a ranking of all runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bertkit.errors import BertkitError, DivergedError, RecipeError, StoppedError, UsageError
from bertkit.evaluation.run_sets import SetRun, StoredRuns, describe_run, sort_runs
from bertkit.evaluation.sweeps import (
    SweepSummary,
    check_scored_rows,
    estimate_best_scores,
    find_curve,
    find_importance,
    find_selection,
)
from bertkit.modeling.tokenizer import load_tokenizer
from bertkit.progress import Progress, log, stage, with_progress
from bertkit.recipe.load import load_recipe
from bertkit.recipe.records import Recipe
from bertkit.recipe.space import SweepPoint, SweepSpace, name_point
from bertkit.reports.sweep import write_sweep_report
from bertkit.storage import run_sets, runs
from bertkit.storage.files import disk_errors
from bertkit.tasks import load_task
from bertkit.tokens.features import TaskContext
from bertkit.workflows.finetune import finetune_rows
from bertkit.workflows.finetune_data import FinetuneData, read_finetune_data, read_labeled, with_recorded_hold_out
from bertkit.workflows.runset import RunSet, train_all
from bertkit.workflows.tpe import check_optuna, propose
from bertkit.workflows.trial_run import dry_run as plan_run


@dataclass
class Sweep(RunSet):
    """Set of the trials of a search: runs of a recipe with different settings.

    Args:
        folder: Folder of the sweep.
        names: Run folders of the trials.
        recipe_name: Name or file of the recipe.
        changes: Changes of the recipe in all trials.
        search: Method and space of the search.
    """

    recipe_name: str
    changes: Mapping[str, Any]
    search: SweepSpace
    folder_kind = "a sweep"
    retries_diverged = False

    def is_begun(self) -> bool:
        """Return whether the folder holds a sweep."""
        return (self.folder / run_sets.SPACE).is_file()

    def train(self, name: str) -> None:
        """Train a trial, or resume it with the settings that it started with."""
        settings = self._choose_settings(name)
        log.info(f"{name} of {self.search.trials}: {name_point(settings)}")
        with _add_trial_to_errors(name, settings):
            with stage("reading the data", total=1):
                data = self.read(name)
            # A trial uses the machine of the first trial with the same model and precision.
            machine = self.find_machine(partial(_computes_like, data))
            finetune_rows(data.with_machine(machine), restart=False)

    def recipe(self, settings: Mapping[str, Any]) -> Recipe:
        """Load the recipe with the settings of a trial."""
        return load_recipe(self.recipe_name, {**self.changes, **settings})

    def read(self, name: str) -> FinetuneData:
        """Read the data of a trial, whose settings can change the rows and the model."""
        recipe = self.recipe(run_sets.read_settings(self.folder, name) or {})
        trials = map(self.folder.joinpath, run_sets.find_trials(self.folder))
        return read_finetune_data(with_recorded_hold_out(recipe, trials), self.folder / name)

    @property
    def seed(self) -> int:
        """Seed of the recipe, from which settings are drawn."""
        return self.recipe({}).training.seed

    @property
    def space(self) -> dict[str, Any]:
        """Properties that identify a sweep: method, space and seed of the search."""
        return {**self.search.describe(), "seed": self.seed}

    def describe_trials(self) -> list[SetRun]:
        """Describe the trials whose settings are stored, in order."""
        return [
            describe_run(self.folder / name, self.record(name), run_sets.read_settings(self.folder, name))
            for name in run_sets.find_trials(self.folder)
        ]

    def propose(self, name: str) -> SweepPoint:
        """Return the settings of a new trial."""
        if self.search.method == "tpe":
            return propose(self.search, self.seed, self.describe_trials(), self.recipe({}).best_metric)
        return next(itertools.islice(self.search.points(self.seed), self.names.index(name), None))

    def _choose_settings(self, name: str) -> SweepPoint:
        """Return the stored settings of a trial, or choose and store settings.

        Settings are stored before the trial is trained, so that any process can resume it. Only one process at a time
        chooses settings, because TPE considers the settings of unfinished trials.
        """
        with self.lock_choice():
            settings = run_sets.read_settings(self.folder, name)
            if settings is None:
                settings = self.propose(name)
                run_sets.write_settings(self.folder, name, settings)
        return settings


@with_progress
def sweep(
    recipe: str,
    search: SweepSpace,
    changes: Mapping[str, Any] | None = None,
    *,
    output: str | Path | None = None,
    restart: bool = False,
    jobs: int = 1,
    worker: bool = False,
    progress: Progress | None = None,
) -> SweepSummary:
    """Train the trials of a search that have not ended, and summarize all trials of the folder.

    An interrupted trial is resumed. A trial that diverged is not trained again.

    Args:
        recipe: Name or file of the recipe.
        search: Method and space of the search; see `bertkit.parse_sweep_space`.
        changes: Dotted recipe key -> value, in all trials.
        output: Folder of the trials; by default ``runs/``, the name of the recipe and ``-sweep``.
        restart: Start over; an earlier sweep in the folder is moved aside.
        jobs: Maximum number of trials that train at the same time, each in its own process.
        worker: Share the trials with another process that trains them.
        progress: Progress display.

    Raises:
        BertkitError: If the search, the rows, the folder or the machine does not allow the runs; see `bertkit.errors`.
    """
    # 1. Check the settings, the rows and the folder.
    job = check_sweep(recipe, search, changes or {}, output, restart=restart, jobs=jobs, worker=worker)
    with job.lock(restart=restart, worker=worker):
        run_sets.write_space(job.folder, job.space)
        _check_trials(job)

        # 2. Train the trials that have not ended. Each trial chooses its settings when it starts.
        train_all(job, jobs=jobs, worker=worker)

        # 3. Summarize all trials of the folder.
        with job.lock_choice():
            summary = _summarize_trials(job)
            # Each process that shares the trials gets here; the last process finds no unfinished trial, and writes.
            if not summary.unfinished:
                with disk_errors(job.folder):
                    write_sweep_report(job.folder, summary.to_dict(), runs.command())
                    run_sets.write_summary(job.folder / run_sets.SWEEP, summary.to_dict())
    if summary.best is None and not summary.unfinished:
        raise DivergedError("all trials diverged", "search lower learning rates", file=job.folder)
    return summary


def dry_run(job: Sweep, *, restart: bool = False) -> dict[str, Any]:
    """Check everything that can be checked without training, and return the plan of the sweep.

    Returns:
        ``folder``; number of ``trials``; ``settings`` of each trial, or an empty list if they depend on scores; number
        of ``rows`` per split; and ``disk_bytes`` of all trials.
    """
    search = job.search
    if not restart:
        _check_trials(job)
    points = [] if search.method == "tpe" else list(itertools.islice(search.points(job.seed), search.trials))
    # The reported disk space is for the last extreme of each axis, which usually has the most epochs and checkpoints.
    last_extremes = {axis.key: axis.extremes[-1] for axis in search.axes}
    unused_folder = job.folder / run_sets.name_trial(search.trials + 1)
    for settings, name in ((job.propose(job.names[0]), job.names[0]), (last_extremes, "a trial")):
        with _add_trial_to_errors(name, settings):
            plan = plan_run(job.recipe(settings), output=unused_folder, is_timed=False)
    header = {"folder": str(job.folder), "trials": search.trials, "settings": points}
    return {**header, "rows": plan.rows, "disk_bytes": search.trials * plan.disk_bytes}


def check_sweep(
    name: str,
    search: SweepSpace,
    changes: Mapping[str, Any],
    output: str | Path | None,
    *,
    restart: bool = False,
    jobs: int = 1,
    worker: bool = False,
) -> Sweep:
    """Check the settings, the folder, whether Optuna is installed, and that all trials score the same rows."""
    # 1. Check the settings. Load the recipe with each extreme of each axis, because a recipe can forbid a value, and a
    #    sweep should not fail in its last trial.
    for axis in search.axes:
        if axis.key in changes:
            raise UsageError(f"{axis.key} is both set and searched", "leave one of them out")
    folder = runs.run_folder(output, f"{load_recipe(name, changes).name}-sweep")
    names = [run_sets.name_trial(index) for index in range(1, search.trials + 1)]
    job = Sweep(folder, names, name, changes, search)
    if search.method == "grid":
        points: list[SweepPoint] = list(search.points(0))
    else:
        first_extremes = {axis.key: axis.extremes[0] for axis in search.axes}
        points = [{**first_extremes, axis.key: value} for axis in search.axes for value in axis.extremes]
    for point in points:
        try:
            job.recipe(point)
        except RecipeError as error:
            raise error.with_prefix("--space") from None

    # 2. Check the folder.
    if search.method == "tpe":
        check_optuna()
    job.check(restart=restart, jobs=jobs, worker=worker)
    if not restart:
        run_sets.check_space(folder, job.space)

    # 3. Check the rows. Trials are compared with each other, so they must score the same rows even if data keys vary.
    gold = load_task(job.recipe({})).COLUMNS.gold
    check_scored_rows(search, lambda point: read_labeled(job.recipe(point))[1]["validation"], gold)
    return job


def _check_trials(job: Sweep) -> None:
    """Check that the first trial with a run has the same data, model and settings as this sweep."""
    name = next((name for name in run_sets.find_trials(job.folder) if job.record(name)), None)
    if name is None:
        return
    plan = job.read(name).plan
    try:
        runs.check_run_folder(plan.folder, plan.identity)
    except UsageError as error:
        remedy = f"use --output {runs.free_name(job.folder)} for a new sweep, or --restart to move the old one aside"
        message = error.message.replace("another run", "trials of another sweep")
        raise UsageError(message, remedy, file=job.folder) from None


@contextmanager
def _add_trial_to_errors(trial: str, settings: SweepPoint) -> Iterator[None]:
    """Add the trial and its settings to the message of an error, unless the trial diverged or was stopped."""
    try:
        yield
    except (DivergedError, StoppedError):
        raise
    except BertkitError as error:
        raise error.with_prefix(f"{trial} ({name_point(settings)})") from None


def _computes_like(data: FinetuneData, record: Mapping[str, Any]) -> bool:
    """Return whether the trial of a record has the same model and precision as `data`."""
    identity = record["identity"]
    precision = identity["recipe"]["training"]["precision"]
    return (identity["model"], precision) == (data.plan.identity["model"], data.recipe.training.precision)


def _summarize_trials(job: Sweep) -> SweepSummary:
    """Summarize the trials of the folder, the best first."""
    trials = job.describe_trials()
    records = {trial.name: record for trial in trials if (record := job.record(trial.name)) is not None}
    with stage("summarizing the trials", total=1):
        data = job.read(next(iter(records), job.names[0]))
        metric, split = data.recipe.best_metric, data.validation
        trials = sort_runs(trials, metric)
        # Leave out trials that diverged, because they have no score.
        finished_trials = [trial for trial in trials if trial.scores.get(metric) is not None]
        contexts = {
            trial.name: TaskContext(job.recipe(trial.settings), load_tokenizer(job.folder / trial.name), data.labels)
            for trial in finished_trials
        }
        stored_runs = StoredRuns(job.folder, records, contexts, data.task, split)
        selection, reason = find_selection(finished_trials, stored_runs, metric)
        return SweepSummary(
            recipe=data.recipe.name,
            model=data.recipe.model_name,
            folder=str(job.folder),
            search=job.search.method,
            space=job.space["space"],
            best_metric=metric,
            split=split.name,
            rows=len(split.rows),
            trials=trials,
            best=finished_trials[0].name if finished_trials else None,
            selection=selection,
            no_selection=reason,
            expected_best=estimate_best_scores(finished_trials, job.search, metric),
            importance=find_importance(finished_trials, job.search, metric),
            curve=find_curve(finished_trials, stored_runs, metric),
            unfinished=max(job.search.trials, len(trials)) - sum(trial.has_ended for trial in trials),
        )
