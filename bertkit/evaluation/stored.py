"""Predictions that a run or `eval` has stored: read again, matched row by row, and scored as their task does."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from bertkit.data.labels import spelled_names
from bertkit.data.sources import as_recorded
from bertkit.errors import DataError, ModelError, UsageError, shorten
from bertkit.evaluation.scoring import predictions_file
from bertkit.metrics.intervals import Setting
from bertkit.recipe import Recipe, Row, load_recipe, typed_path
from bertkit.storage import runs
from bertkit.storage.checksums import refuse_several
from bertkit.storage.seeds import find_seeds, seed_folder
from bertkit.tasks import Compared, Prediction, Task, load_task
from bertkit.tokens.features import Setup

_RECIPE = "recipe.yaml"
_SAME = 1e-6  # relative: scores that differ by less are the same


@dataclass(frozen=True)
class StoredRun:
    """The predictions of one model on one split, with the record of its run; empty for a file of `eval`."""

    name: str
    file: Path
    record: Mapping[str, Any]
    predictions: list[Prediction]
    """One per row, which it holds too."""

    @property
    def seed(self) -> int | None:
        """The seed of its training; None where it is unknown."""
        return cast("int | None", self.record.get("identity", {}).get("recipe", {}).get("training", {}).get("seed"))


@dataclass(frozen=True)
class StoredSystem:
    """One side of a comparison: a run, or several that differ in their seed."""

    name: str
    runs: list[StoredRun]
    has_seeds: bool
    unfinished: list[str]
    """Runs among the seeds that did not finish, with how they ended."""


@dataclass(frozen=True)
class Scorer:
    """What scores all systems of a comparison alike: the recipe, task and labels of the first."""

    recipe: Recipe
    task: Task
    labels: tuple[str, ...]

    @property
    def setup(self) -> Setup:
        """The setup of `Task.compare` and `Task.score`, which use no tokenizer."""
        return Setup(self.recipe, cast(Any, None), self.labels)

    def score(self, compared: Mapping[str, Any]) -> dict[str, float]:
        """Compute the recipe's metrics."""
        return self.task.score(dict(compared), self.setup)

    def compare(self, run: StoredRun, rows: Sequence[Row]) -> Compared:
        """Put the predictions of a run beside the gold values.

        Raises:
            DataError: the stored predictions do not hold what the scores are made of, or a label is unknown.
        """
        if self.task.NAMED:
            known = set(self.labels)
            for number, prediction in enumerate(run.predictions, start=1):
                if unknown := [name for name in spelled_names(prediction["prediction"]) if name not in known]:
                    what = f"the prediction {unknown[0]!r} is none of the labels ({', '.join(self.labels[:12])})"
                    raise DataError(what, "compare models of one task", file=run.file, row=number)
        try:
            return self.task.compare(run.predictions, rows, self.setup)
        except KeyError as error:
            if not str(error.args[0]).startswith("_"):  # a private key of a prediction, which is not stored
                raise
            what = f"the scores of {self.recipe.task} are made of more than the stored predictions"
            raise DataError(what, "`bertkit eval` scores each model by itself", file=run.file) from None


def read_system(path: str | Path, split: str | None) -> StoredSystem:
    """Read the stored predictions of a run folder, a folder of seeds, or a folder or file that `eval` has written.

    Raises:
        UsageError: the path is none of these.
        ModelError: the run, or every seed, is not finished.
        DataError: a file of predictions is missing or damaged.
    """
    folder = typed_path(path)
    if folder.is_file():
        return _single(StoredRun(str(path), folder, {}, _read_predictions(folder)))
    record = runs.read_record(folder)
    if record is not None:
        if fault := _unfinished(record):
            raise ModelError(f"the run is not finished ({fault})", "repeat the command that started it", file=folder)
        refuse_several(folder, record)
        return _single(_read_run(str(path), folder, record, split))
    if file := next(iter(sorted(folder.glob("predictions*.jsonl"))), None):
        file = folder / predictions_file(split) if split else _first_file(folder, file)
        return _single(StoredRun(str(path), file, {}, _read_predictions(file)))
    records = {seed: runs.read_record(seed) for seed in (seed_folder(folder, seed) for seed in find_seeds(folder))}
    finished = {seed: record for seed, record in records.items() if record and not _unfinished(record)}
    if not finished:
        what = "no seed of it is finished" if any(records.values()) else "neither a run folder nor stored predictions"
        raise UsageError(what, "name a run folder, or a file that `bertkit eval --output` has written", file=folder)
    left_out = [
        f"{seed.name} ({_unfinished(record)})" for seed, record in records.items() if record and seed not in finished
    ]
    read = [_read_run(f"{path}/{seed.name}", seed, record, split) for seed, record in finished.items()]
    return StoredSystem(str(path), read, has_seeds=True, unfinished=left_out)


def _single(run: StoredRun) -> StoredSystem:
    return StoredSystem(run.name, [run], has_seeds=False, unfinished=[])


def _unfinished(record: Mapping[str, Any]) -> str:
    return "" if record["status"] == "finished" else str(record["status"])


def _first_file(folder: Path, first: Path) -> Path:
    file = folder / predictions_file("validation")
    return file if file.is_file() else first


def _read_run(name: str, folder: Path, record: Mapping[str, Any], split: str | None) -> StoredRun:
    if "results" not in record:
        raise UsageError("the run of a pretraining has no predictions", "name runs of `bertkit finetune`", file=folder)
    splits = [result["split"] for result in record["results"]]
    chosen = split or splits[0]
    if chosen not in splits:
        remedy = f"there are: {', '.join(splits)}; score others with `bertkit eval --split {chosen} --output DIR`"
        raise DataError(f"the run has no predictions of split {chosen!r}", remedy, file=folder)
    file = folder / predictions_file(chosen)
    return StoredRun(name, file, {**record, "split": chosen}, _read_predictions(file))


def _read_predictions(file: Path) -> list[Prediction]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        remedy = "`bertkit eval --output DIR` writes it anew"
        raise DataError("the file of predictions is missing", remedy, file=file) from None
    except UnicodeDecodeError:
        raise DataError("not a file of predictions", "name one that `bertkit eval` has written", file=file) from None
    read = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict) or "prediction" not in record:
            what = "not a stored prediction" if isinstance(record, dict) else "the line is damaged"
            raise DataError(what, "`bertkit eval --output DIR` writes it anew", file=file, row=number)
        read.append(record)
    if not read:
        raise DataError("the file has no predictions", "score the model with `bertkit eval --output DIR`", file=file)
    return read


def recipe_of(run: StoredRun, changes: Mapping[str, Any] | None = None) -> Recipe:
    """Return the recipe of a run that has a record, with changes by dotted keys."""
    return load_recipe(str(run.file.parent / _RECIPE), changes)


def find_scorer(systems: Sequence[StoredSystem], recipe: Recipe | None) -> Scorer:
    """Find what scores the systems: the recipe of the first that is a run, or the one that is named.

    Raises:
        UsageError: no system is a run, and no recipe is named.
        DataError: systems of other tasks, labels or splits.
    """
    of_runs = [run for system in systems for run in system.runs if run.record]
    if recipe is None and not of_runs:
        raise UsageError("files of predictions do not say which metrics are theirs", "name it: --recipe RECIPE")
    first = of_runs[0] if of_runs else None
    if recipe is None and first is not None:
        recipe = recipe_of(first)
    assert recipe is not None
    for run in of_runs:
        _check_run(run, recipe, first or run)
    recipe = as_recorded(recipe, first.record["identity"] if first else {})
    task = load_task(recipe)
    labels = first.record["identity"].get("labels") if first else None
    if task.NAMED and not labels:
        predictions = [record for system in systems for run in system.runs for record in run.predictions]
        found = {
            name
            for record in predictions
            for value in (record.get(task.COLUMNS.gold), record["prediction"])
            for name in spelled_names(value)
        }
        labels = recipe.labels or sorted(found)
    return Scorer(recipe, task, tuple(labels or ()))


def _check_run(run: StoredRun, recipe: Recipe, first: StoredRun) -> None:
    identity, reference = run.record["identity"], first.record["identity"]
    remedy = "compare runs of one task on one data set"
    if (task := identity["recipe"]["task"]) != recipe.task:
        raise DataError(f"{run.name} is of the task {task}, not {recipe.task}", remedy)
    own, others = (sorted(of.get("labels") or []) for of in (identity, reference))
    if own != others:
        shown = " and ".join(shorten(", ".join(names)) for names in (own, others))
        raise DataError(f"{run.name} and {first.name} have other labels ({shown})", remedy)
    if run.record["split"] != first.record["split"]:
        what = f"{run.name} has predictions of {run.record['split']}, {first.name} of {first.record['split']}"
        raise DataError(what, "name a split that both have: --split SPLIT")


def read_rows(run: StoredRun, task: Task) -> list[Row]:
    """Return the rows of stored predictions, with the canonical columns of the task."""
    names = task.COLUMNS.names
    return [{name: record[name] for name in names if name in record} for record in run.predictions]


def align(run: StoredRun, reference: StoredRun, task: Task) -> StoredRun:
    """Bring the predictions of a run into the order of the rows of another.

    Rows are the same where their inputs and gold values are; of rows that recur, the first is the first.

    Raises:
        DataError: the rows are not the same; the message has the first that differs.
    """
    own, others = (_row_keys(one, task) for one in (run, reference))
    if own == others:
        return run
    if Counter(own) != Counter(others):
        raise _describe_mismatch(run, reference, task)
    waiting = defaultdict(list)
    for key, record in zip(own, run.predictions, strict=True):
        waiting[key].append(record)
    return replace(run, predictions=[waiting[key].pop(0) for key in others])


def _row_keys(run: StoredRun, task: Task, *, gold: bool = True) -> list[str]:
    """Return what rows are recognized by; an id may be a mere number, so it does not count."""
    left_out = {"id"} if gold else {"id", task.COLUMNS.gold}
    return [
        json.dumps({name: value for name, value in row.items() if name not in left_out}, sort_keys=True)
        for row in read_rows(run, task)
    ]


def _describe_mismatch(run: StoredRun, reference: StoredRun, task: Task) -> DataError:
    own, others = (_row_keys(one, task) for one in (run, reference))
    known = set(others)
    number = next((number for number, key in enumerate(own) if key not in known), None)
    remedy = "`bertkit compare RUN RUN --on FILE` scores runs on the rows of a file that none was trained on"
    if number is None:
        what = f"{len(own):,} rows, and {reference.name} has {len(others):,}"
        if len(own) == len(others):
            what = f"the rows recur otherwise than in {reference.name}"
        return DataError(what, remedy, file=run.file)
    inputs, with_inputs = (_row_keys(one, task, gold=False) for one in (run, reference))
    if inputs[number] in with_inputs:
        column = task.COLUMNS.gold
        other = reference.predictions[with_inputs.index(inputs[number])][column]
        what = f"another {column} than in {reference.name}: {run.predictions[number][column]!r} here, {other!r} there"
        return DataError(shorten(what, 300), remedy, file=run.file, row=number + 1)
    same = sum((Counter(own) & Counter(others)).values())
    what = f"not a row of {reference.name}: {same:,} of {len(own):,} rows are the same"
    return DataError(what, remedy, file=run.file, row=number + 1)


def find_changed_scores(run: StoredRun, scores: Mapping[str, float]) -> list[str]:
    """List the metrics whose score is not that of the run's record: the stored predictions do not determine them."""
    results = run.record.get("results", [])
    recorded: Mapping[str, Any] = next(
        (result["scores"] for result in results if result["split"] == run.record["split"]), {}
    )
    return [
        name
        for name, value in scores.items()
        if not isinstance(value, Setting)
        and math.isfinite(value)
        and recorded.get(name) is not None
        and not math.isclose(value, recorded[name], rel_tol=_SAME, abs_tol=_SAME)
    ]
