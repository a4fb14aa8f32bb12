"""Fine-tune a recipe under many settings: run folders are the truth, and whoever finds an unfinished one goes on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bertkit.errors import BertkitError, DivergedError, RecipeError, StoppedError, UsageError
from bertkit.evaluation.sweeps import (
    StoredTrials,
    SweepSummary,
    Trial,
    check_scored_rows,
    describe_trial,
    find_curve,
    find_expected_best,
    find_importance,
    find_selection,
    sort_trials,
)
from bertkit.hardware.launch import refuse_launch
from bertkit.metrics.basic import is_lower_better
from bertkit.modeling.tokenizer import load_tokenizer
from bertkit.progress import Progress, log, stage, takes_progress
from bertkit.recipe.load import load_recipe
from bertkit.recipe.records import Recipe
from bertkit.recipe.space import Point, Search, name_point
from bertkit.reports.sweep import write_sweep_report
from bertkit.storage import runs
from bertkit.storage import sweeps as storage
from bertkit.storage.files import disk_errors
from bertkit.storage.runs import RunRecord, find_machine, without_folder
from bertkit.tasks import load_task
from bertkit.tokens.features import Setup
from bertkit.workflows.finetune import finetune_rows
from bertkit.workflows.finetune_data import FinetuneData, as_begun, read_finetune_data, read_labeled
from bertkit.workflows.sweep.tpe import Tried, check_optuna, propose
from bertkit.workflows.trial_run import dry_run as plan_run

_ENDED = ("finished", "diverged")


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep would do."""

    folder: str
    trials: int
    settings: list[Point]
    """Settings of each trial; empty where they depend on scores."""
    rows: dict[str, int]
    disk_bytes: int


@dataclass(frozen=True)
class _Sweep:
    """A sweep: a recipe by name, the changes that all trials share, what is searched, and where."""

    name: str
    changes: Mapping[str, Any]
    search: Search
    folder: Path

    def recipe(self, settings: Mapping[str, Any]) -> Recipe:
        return load_recipe(self.name, {**self.changes, **settings})

    @property
    def seed(self) -> int:
        """The seed of the random draws: the recipe's."""
        return self.recipe({}).training.seed

    @property
    def space(self) -> dict[str, Any]:
        """What makes it another sweep if it differs."""
        return {**self.search.describe(), "seed": self.seed}

    @property
    def trial_folders(self) -> list[Path]:
        return [storage.trial_folder(self.folder, number) for number in storage.find_trials(self.folder)]

    def describe(self, number: int) -> Trial:
        """Describe a trial by its settings and the record of its run."""
        settings = storage.read_settings(self.folder, number) or {}
        return describe_trial(number, self.folder, settings, self.record(number))

    def record(self, number: int) -> RunRecord | None:
        """Read the record of a trial's run; None where it has none."""
        return runs.read_record(storage.trial_folder(self.folder, number))


@takes_progress
def sweep(
    recipe: str,
    search: Search,
    changes: Mapping[str, Any] | None = None,
    *,
    output: str | Path | None = None,
    fresh: bool = False,
    join: bool = False,
    progress: Progress | None = None,
) -> SweepSummary:
    """Train the trials of a search that are not trained yet, and summarize all of the folder.

    A trial that was broken off is resumed. One that diverged is not tried again. With `join`, other processes are at
    work on the same folder: each takes the next trial that none of them has.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    job = check_sweep(recipe, search, changes or {}, output, fresh=fresh)
    with storage.claimed_sweep(job.folder, job.space, fresh=fresh, join=join):
        _check_trials(job)
        return _train_trials(job)


def _train_trials(job: _Sweep) -> SweepSummary:
    """Train the trials that no other process has, and summarize all of the folder."""
    while True:
        with ExitStack() as held:
            if (number := _take_trial(job, held)) is None:
                break
            _train_trial(job, number)
    with storage.choosing(job.folder):  # one process at a time writes the summary
        summary = _summarize_trials(job)
        if not summary.unfinished:  # with the summary, the command counts as finished
            content = without_folder(summary)
            with disk_errors(job.folder):
                write_sweep_report(job.folder, content, runs.command())
                storage.write_summary(job.folder, {"command": runs.command(), "finished": runs.now(), **content})
    if summary.best is None and not summary.unfinished:
        raise DivergedError("all trials diverged", "search lower learning rates", file=job.folder)
    return summary


def dry_run(job: _Sweep, *, fresh: bool = False, join: bool = False) -> SweepPlan:
    """Check everything that can be checked without training, and return what the sweep would do."""
    search = job.search
    storage.foresee_claim(job.folder, join=join)
    if not fresh:
        _check_trials(job)
    points = [] if search.method == "tpe" else list(itertools.islice(search.points(job.seed), search.trials))
    last = {axis.key: axis.extremes[-1] for axis in search.axes}  # more epochs have more checkpoints
    unused = storage.trial_folder(job.folder, search.trials + 1)
    for settings, name in ((_choose_settings(job, 1), storage.trial_folder(job.folder, 1).name), (last, "a trial")):
        with _named(name, settings):
            plan = plan_run(job.recipe(settings), output=unused, is_timed=False)
    return SweepPlan(str(job.folder), search.trials, points, plan.rows, search.trials * plan.disk_bytes)


def check_sweep(
    name: str, search: Search, changes: Mapping[str, Any], output: str | Path | None, *, fresh: bool = False
) -> _Sweep:
    """Check the settings, the folder, that Optuna is there, and that all trials are scored on the same rows."""
    refuse_launch("a sweep under torchrun", "start it once, and more processes with --join")
    for axis in search.axes:
        if axis.key in changes:
            raise UsageError(f"{axis.key} is both set and searched", "leave one of them out")
    # A recipe may forbid a value. Each extreme of each axis is tried, so that a sweep does not end so in its last
    # trial.
    job = _Sweep(name, changes, search, runs.run_folder(output, f"{load_recipe(name, changes).name}-sweep"))
    if search.method == "grid":
        tried: list[Point] = list(search.points(0))
    else:
        first = {axis.key: axis.extremes[0] for axis in search.axes}
        tried = [{**first, axis.key: value} for axis in search.axes for value in axis.extremes]
    for point in tried:
        try:
            job.recipe(point)
        except RecipeError as error:
            raise error.named("--space") from None
    if search.method == "tpe":
        check_optuna()
    # Trials are compared with one another, so all must be scored on the same rows, whatever data settings are searched.
    if not fresh:  # it may hold another sweep, which is moved aside
        storage.check_folder(job.folder, job.space)
    gold = load_task(job.recipe({})).COLUMNS.gold
    check_scored_rows(search, lambda point: read_labeled(job.recipe(point))[1]["validation"], gold)
    return job


def _check_trials(job: _Sweep) -> None:
    """Check that the first trial which has a run is one of this sweep: of its data, model and other settings."""
    for number in storage.find_trials(job.folder):
        if job.record(number) is None:
            continue
        inputs = _read_trial(job, number)
        try:
            runs.check_claim(inputs.plan.folder, inputs.plan.identity)
        except UsageError as error:
            remedy = f"--output {runs.free_name(job.folder)} for a new sweep, or --fresh to move the old one aside"
            what = error.what.replace("another run", "trials of another sweep")
            raise UsageError(what, remedy, file=job.folder) from None
        return


def _take_trial(job: _Sweep, held: ExitStack) -> int | None:
    """Take the first trial that has not ended and that no other process has; None where there is none.

    Its settings are on disk before it is trained, so that whoever goes on with it trains the same.
    """
    # One process chooses at a time. A trial is taken by its lock: a killed process frees it, and another goes on.
    with storage.choosing(job.folder):
        for number in range(1, job.search.trials + 1):
            lock = ExitStack()
            if not storage.claim_trial(job.folder, number, lock):
                continue
            record = job.record(number)
            if record is not None and record["status"] in _ENDED:
                lock.close()
                continue
            held.push(lock)
            if storage.read_settings(job.folder, number) is None:
                storage.write_settings(job.folder, number, _choose_settings(job, number))
            return number
    return None


def _choose_settings(job: _Sweep, number: int) -> Point:
    """Choose the settings of a new trial."""
    if job.search.method != "tpe":
        return next(itertools.islice(job.search.points(job.seed), number - 1, None))
    metric, tried = job.recipe({}).best_metric, []
    for other in storage.find_trials(job.folder):
        trial = job.describe(other)
        tried.append(Tried(trial.settings, trial.scores.get(metric), trial.status in _ENDED))
    return propose(job.search, job.seed, tried, lower_is_better=is_lower_better(metric))


def _read_trial(job: _Sweep, number: int) -> FinetuneData:
    """Read the inputs of a trial; settings may decide which rows or which model."""
    settings = storage.read_settings(job.folder, number) or {}
    recipe, folder = as_begun(job.recipe(settings), job.trial_folders), storage.trial_folder(job.folder, number)
    return read_finetune_data(recipe, folder)


def _train_trial(job: _Sweep, number: int) -> None:
    """Train a trial, or go on with it; one that diverges has ended."""
    name = storage.trial_folder(job.folder, number).name
    settings = storage.read_settings(job.folder, number) or {}
    log.info(f"{name} of {job.search.trials}: {name_point(settings)}")
    try:
        with _named(name, settings):
            with stage("reading the data", total=1):
                inputs = _read_trial(job, number)
            # Taken from a trial with the same model and precision, so that trials differ in their settings alone.
            machine = find_machine(job.trial_folders, partial(_computes_like, inputs))
            finetune_rows(inputs.on(machine), fresh=False)
    except DivergedError as error:
        log.info(f"{name} diverged: {error}")


@contextmanager
def _named(trial: str, settings: Point) -> Iterator[None]:
    """Let an error name the trial and its settings."""
    try:
        yield
    except (DivergedError, StoppedError):
        raise
    except BertkitError as error:
        raise error.named(f"{trial} ({name_point(settings)})") from None


def _computes_like(inputs: FinetuneData, record: Mapping[str, Any]) -> bool:
    """Tell whether a trial had the same model and the same precision, so that others compute as it did."""
    identity = record["identity"]
    precision = identity["recipe"]["training"]["precision"]
    return (identity["model"], precision) == (inputs.plan.identity["model"], inputs.recipe.training.precision)


def _summarize_trials(job: _Sweep) -> SweepSummary:
    """Summarize the trials of the folder, the best first."""
    numbers = storage.find_trials(job.folder)
    records = {number: record for number in numbers if (record := job.record(number)) is not None}
    with stage("summarizing the trials", total=1):
        inputs = _read_trial(job, next(iter(records), numbers[0]))
        metric, split = inputs.recipe.best_metric, inputs.validation
        trials = sort_trials([job.describe(number) for number in numbers], metric)
        # Estimates are over finished trials alone; those that diverged have ended, but have no score.
        ended = [trial for trial in trials if trial.status in _ENDED]
        finished = [trial for trial in ended if trial.scores.get(metric) is not None]
        setups = {
            trial.number: Setup(job.recipe(trial.settings), load_tokenizer(job.folder / trial.folder), inputs.labels)
            for trial in finished
        }
        stored = StoredTrials(records, setups, inputs.task, split, job.folder)
        selection, reason = find_selection(finished, stored)
        return SweepSummary(
            recipe=inputs.recipe.name,
            model=inputs.recipe.model_name,
            folder=str(job.folder),
            search=job.search.method,
            space=job.space["space"],
            best_metric=metric,
            split=split.name,
            rows=len(split.rows),
            trials=trials,
            best=finished[0].folder if finished else None,
            selection=selection,
            no_selection=reason,
            expected_best=find_expected_best(finished, job.search, metric),
            importance=find_importance(finished, job.search, metric),
            curve=find_curve(finished, stored),
            unfinished=max(job.search.trials, len(numbers)) - len(ended),
        )
