"""Predictions that a run or `eval` has stored: read again, and scored as their task does."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from bertkit.data.labels import spelled_names
from bertkit.data.sources import as_recorded
from bertkit.errors import DataError, ModelError, UsageError, shorten
from bertkit.evaluation.scoring import predictions_file
from bertkit.evaluation.stored.folder import read_evaluation
from bertkit.evaluation.stored.script_predictions import ENDINGS, parse_script_predictions
from bertkit.metrics.registry import find_declared
from bertkit.recipe.load import load_recipe
from bertkit.recipe.records import Recipe
from bertkit.recipe.sections import typed_path
from bertkit.storage import runs
from bertkit.storage.cache import spool
from bertkit.storage.fingerprints import is_whole
from bertkit.storage.runs import RunRecord
from bertkit.storage.seeds import find_seeds, seed_folder
from bertkit.tasks import Answer, Compared, Prediction, Predictions, Task, load_task
from bertkit.tokens.features import Rows, Setup

_RECIPE = "recipe.yaml"
_ANEW = "`bertkit eval --output DIR` writes it anew"
ON_FILE = "`bertkit compare RUN RUN --on FILE` scores runs on the rows of a file that none was trained on"
"""The remedy where runs have stored predictions that cannot be compared."""
_SAME = 1e-6  # relative: scores that differ by less are the same


@dataclass(frozen=True)
class StoredRun:
    """The predictions of one model on one split, with the record of its run; empty for a file of `eval`."""

    name: str
    file: Path
    record: RunRecord
    predictions: Predictions
    """One per row, which it holds too; the file of another program may hold the answers alone."""
    model: str = ""
    """The model that made them, by its folder or name; empty where nobody knows."""

    @property
    def split(self) -> str:
        """The split that they are of, which a file without a record has in its name."""
        rest = self.file.stem.removeprefix("predictions").removeprefix("_")
        return str(self.record.get("split", rest or "validation"))

    @property
    def has_rows(self) -> bool:
        """Whether the predictions hold their rows."""
        return any(record.keys() - {"id", "prediction"} for record in self.predictions)

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

    def compare(self, run: StoredRun, rows: Rows) -> Compared:
        """Put the predictions of a run beside the gold values.

        Raises:
            DataError: the stored predictions do not hold what the scores are made of, or a label is unknown.
        """
        _check_types(run, self.task)
        known = set(self.labels)
        for number, prediction in enumerate(run.predictions if self.task.NAMED else (), start=1):
            if unknown := [name for name in spelled_names(prediction["prediction"]) if name not in known]:
                what = f"the prediction {unknown[0]!r} is none of the labels ({', '.join(self.labels[:12])})"
                raise DataError(what, "compare models of one task", file=run.file, row=number)
        with _stored_keys(run, self.recipe.task):
            return self.task.compare(run.predictions, rows, self.setup)

    def answers(self, run: StoredRun, rows: Rows) -> list[Answer] | None:
        """Return the gold and the predicted answers as text; None where they can be shown as they are.

        Raises:
            DataError: the stored predictions do not hold what is shown.
        """
        with _stored_keys(run, self.recipe.task):
            return self.task.details(run.predictions, rows, self.setup).answers


@contextmanager
def _stored_keys(run: StoredRun, task: str) -> Iterator[None]:
    """Raise DataError where a prediction lacks a key; those with an underscore are never stored."""
    try:
        yield
    except DataError as error:
        error.file = error.file or str(run.file)
        raise
    except KeyError as error:
        key = error.args[0]
        number = next((number for number, one in enumerate(run.predictions, start=1) if key not in one), None)
        if number is None:
            raise
        if not str(key).startswith("_"):
            what = f"the prediction has no {key!r}, which {task} needs"
            raise DataError(what, _ANEW, file=run.file, row=number) from None
        what = f"the scores of {task} are made of more than the stored predictions"
        raise DataError(what, "`bertkit eval` scores each model by itself", file=run.file) from None


def _check_types(run: StoredRun, task: Task) -> None:
    from pydantic import TypeAdapter, ValidationError

    expected = TypeAdapter(task.TYPES.get("prediction", Any))
    for number, record in enumerate(run.predictions, start=1):
        try:
            expected.validate_python(record["prediction"], strict=True)
        except ValidationError as error:
            what = f"the prediction {shorten(repr(record['prediction']))}: {error.errors()[0]['msg']}"
            raise DataError(what, _ANEW, file=run.file, row=number) from None


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
    record, evaluation = runs.read_record(folder), read_evaluation(folder)
    # A folder says itself what it is: a run, an evaluation, files of another program, or seeds, in this order.
    made = record or evaluation
    if made is not None:
        if fault := _unfinished(made):
            what = f"the {'run' if record else 'evaluation'} is not finished ({fault})"
            raise ModelError(what, "repeat the command that started it", file=folder)
        run = _read_run(str(path), folder, made, split)
        return _single(run if record else replace(run, model=made["model"]))
    if files := sorted(folder.glob("predictions*.jsonl")):
        named = folder / predictions_file(split or "validation")
        file = named if split or named in files else files[0]
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


def _unfinished(record: RunRecord) -> str:
    return "" if record["status"] == "finished" else str(record["status"])


def _read_run(name: str, folder: Path, record: RunRecord, split: str | None) -> StoredRun:
    if "results" not in record:
        raise UsageError("the run of a pretraining has no predictions", "name runs of `bertkit finetune`", file=folder)
    splits = [result["split"] for result in record["results"]]
    chosen = split or splits[0]
    if chosen not in splits:
        remedy = f"there are: {', '.join(splits)}; score others with `bertkit eval --split {chosen} --output DIR`"
        raise DataError(f"the run has no predictions of split {chosen!r}", remedy, file=folder)
    file = folder / predictions_file(chosen)
    if file.is_file() and not is_whole(file, record.get("predictions", {}).get(file.name)):
        raise DataError("the file of predictions does not match its checksum", _ANEW, file=file)
    return StoredRun(name, file, {**record, "split": chosen}, _read_predictions(file), str(folder))


def _read_predictions(file: Path) -> Predictions:
    try:
        if file.suffix in ENDINGS:
            read: Predictions = parse_script_predictions(file.read_text(encoding="utf-8"), file)
        else:
            with file.open(encoding="utf-8", newline="\n") as lines:
                read = spool(_parse_records(lines, file))
    except FileNotFoundError:
        raise DataError("the file of predictions is missing", _ANEW, file=file) from None
    except UnicodeDecodeError:
        raise DataError("not a file of predictions", "name one that `bertkit eval` has written", file=file) from None
    if not read:
        raise DataError("the file has no predictions", "score the model with `bertkit eval --output DIR`", file=file)
    return read


def _parse_records(lines: Iterable[str], file: Path) -> Iterator[Prediction]:
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict) or "prediction" not in record:
            # A first line that is no object is another file, and not a damaged one.
            if number == 1 and not line.lstrip().startswith("{"):
                what = "not a file of predictions, which has a JSON object with `prediction` in each line"
                raise DataError(what, "name a run folder, or what `bertkit eval --output` has written", file=file)
            what = "not a stored prediction" if isinstance(record, dict) else "the line is damaged"
            raise DataError(what, _ANEW, file=file, row=number)
        yield record


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
    first = of_runs[0] if of_runs else None
    if recipe is None:
        if first is None:
            raise UsageError("files of predictions do not say which metrics are theirs", "name it: --recipe RECIPE")
        recipe = recipe_of(first)
    for run in of_runs:
        _check_run(run, recipe, first or run)
    # All systems are scored by one recipe, today's code and the labels of the first, and not by scores they recorded.
    recipe = as_recorded(recipe, first.record["identity"] if first else {})
    task = load_task(recipe)
    labels = first.record["identity"].get("labels") if first else None
    if task.NAMED and not labels:
        names = {
            name
            for system in systems
            for run in system.runs
            for record in run.predictions
            for value in (record.get(task.COLUMNS.gold), record["prediction"])
            for name in spelled_names(value)
        }
        labels = recipe.labels or sorted(names)
    return Scorer(recipe, task, tuple(labels or ()))


def _check_run(run: StoredRun, recipe: Recipe, first: StoredRun) -> None:
    identity, reference = run.record["identity"], first.record["identity"]
    remedy = "compare runs of one task on one data set"
    if (task := identity["recipe"]["task"]) != recipe.task:
        raise DataError(f"{run.name} is of the task {task}, not {recipe.task}", remedy)
    # The order of labels may differ: predictions are names.
    own, others = (sorted(of.get("labels") or []) for of in (identity, reference))
    if own != others:
        shown = " and ".join(shorten(", ".join(names)) for names in (own, others))
        raise DataError(f"{run.name} and {first.name} have other labels ({shown})", ON_FILE)
    if run.record["split"] != first.record["split"]:
        what = f"{run.name} has predictions of {run.record['split']}, {first.name} of {first.record['split']}"
        raise DataError(what, "name a split that both have: --split SPLIT")


def find_changed_scores(run: StoredRun, scores: Mapping[str, float]) -> list[str]:
    """List the metrics whose score is not that of the run's record: the stored predictions do not determine them."""
    results = run.record.get("results", [])
    recorded: Mapping[str, Any] = next(
        (result["scores"] for result in results if result["split"] == run.record["split"]), {}
    )
    return [
        name
        for name, value in scores.items()
        if find_declared(name).is_score
        and math.isfinite(value)
        and recorded.get(name) is not None
        and not math.isclose(value, recorded[name], rel_tol=_SAME, abs_tol=_SAME)
    ]
