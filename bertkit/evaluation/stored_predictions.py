"""Stored predictions of runs: read from disk, matched row by row, and scored with one recipe."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from bertkit.data.labels import labels_to_strs
from bertkit.data.sources import ALL, find_unsplit_file, use_recorded_data
from bertkit.errors import DataError, ModelError, UsageError, shorten
from bertkit.evaluation.folder import read_evaluation
from bertkit.evaluation.scoring import predictions_file
from bertkit.evaluation.splits import read_task_splits
from bertkit.metrics.registry import find_metric_by_name
from bertkit.recipe.load import load_recipe
from bertkit.recipe.records import Recipe
from bertkit.recipe.sections import Row, expand_path
from bertkit.storage import runs
from bertkit.storage.disk import offload_to_disk
from bertkit.storage.fingerprints import is_complete
from bertkit.storage.run_sets import seed_folders
from bertkit.storage.runs import RunRecord
from bertkit.tasks import Answer, Prediction, Predictions, RowScores, Task, load_task
from bertkit.tokens.features import Rows, TaskContext

_REMEDY = "`bertkit eval --output DIR` writes it again"
_DATA_REMEDY = "`bertkit compare RUN RUN --data FILE` scores runs on a file that no run was trained on"
_ROUNDING = 1e-6  # relative


@dataclass(frozen=True)
class StoredRun:
    """Predictions of one model on one split.

    Args:
        name: Path that the user gave.
        file: File of the predictions.
        record: Record of the run or of the evaluation; empty for a single file.
        predictions: One per row, with the columns of the row.
        model: Folder or name of the model; empty for a single file.
    """

    name: str
    file: Path
    record: RunRecord
    predictions: Predictions
    model: str = ""

    @property
    def split(self) -> str:
        """Split of the predictions, taken from the record, or else from the file name."""
        file_split = self.file.stem.removeprefix("predictions").removeprefix("_")
        return str(self.record.get("split", file_split or "validation"))

    @property
    def seed(self) -> int | None:
        """Seed of the training, or None if it is unknown."""
        return cast("int | None", self.record.get("identity", {}).get("recipe", {}).get("training", {}).get("seed"))


@dataclass(frozen=True)
class StoredSystem:
    """System of a comparison: a run, or several runs that differ in their seed."""

    name: str
    runs: list[StoredRun]
    has_seeds: bool = False
    unfinished: list[str] = field(default_factory=list)
    """Seeds that did not finish, each with its status."""


@dataclass(frozen=True)
class StoredPredictionScorer:
    """Recipe, task and labels that all systems of a comparison are scored with."""

    recipe: Recipe
    task: Task
    labels: tuple[str, ...]

    @property
    def context(self) -> TaskContext:
        """Context for `Task.compare` and `Task.score`, which use no tokenizer."""
        return TaskContext(self.recipe, cast(Any, None), self.labels)

    def score(self, row_scores: Mapping[str, Any]) -> dict[str, float]:
        """Compute the recipe's metrics."""
        return self.task.score(dict(row_scores), self.context)

    def compare(self, run: StoredRun, rows: Rows) -> RowScores:
        """Compare the predictions of a run with the gold values.

        Raises:
            DataError: If a prediction has the wrong type, an unknown label or a missing key.
        """
        from pydantic import TypeAdapter, ValidationError

        adapter = TypeAdapter(self.task.TYPES.get("prediction", Any))
        labels = set(self.labels)
        for row, record in enumerate(run.predictions, start=1):
            value = record["prediction"]
            try:
                adapter.validate_python(value, strict=True)
            except ValidationError as error:
                message = f"the prediction {shorten(repr(value))}: {error.errors()[0]['msg']}"
                raise DataError(message, _REMEDY, file=run.file, row=row) from None
            names = labels_to_strs(value) if self.task.HAS_LABEL_NAMES else []
            if unknown_names := [name for name in names if name not in labels]:
                message = (
                    f"the prediction {unknown_names[0]!r} is not one of the labels ({', '.join(self.labels[:12])})"
                )
                raise DataError(message, "compare models of one task", file=run.file, row=row)
        with _report_missing_keys(run, self.recipe.task):
            return self.task.compare(run.predictions, rows, self.context)

    def answers(self, run: StoredRun, rows: Rows) -> list[Answer] | None:
        """Return gold and predicted answers as text, or None if the values can be shown unchanged.

        Raises:
            DataError: If a prediction lacks a key.
        """
        with _report_missing_keys(run, self.recipe.task):
            return self.task.details(run.predictions, rows, self.context).answers


@contextmanager
def _report_missing_keys(run: StoredRun, task: str) -> Iterator[None]:
    """Raise DataError if a prediction lacks a key; keys that start with an underscore are never stored."""
    try:
        yield
    except DataError as error:
        error.file = error.file or str(run.file)
        raise
    except KeyError as error:
        key = error.args[0]
        row = next((row for row, prediction in enumerate(run.predictions, start=1) if key not in prediction), None)
        if row is None:
            raise
        if str(key).startswith("_"):
            message = f"the scores of {task} depend on more than the stored predictions"
            raise DataError(message, "`bertkit eval` scores each model separately", file=run.file) from None
        raise DataError(f"the prediction has no {key!r}, which {task} needs", _REMEDY, file=run.file, row=row) from None


# --- Reading ---


def read_system(path: str | Path, split: str | None) -> StoredSystem:
    """Read the stored predictions of a run, of a folder of seeds, or of a folder or file of `bertkit eval`.

    Raises:
        UsageError: If the path is something else, or no seed is finished.
        ModelError: If the run or the evaluation is not finished.
        DataError: If a file of predictions is missing or damaged.
    """
    name, folder = str(path), expand_path(path)
    if folder.is_file():
        return StoredSystem(name, [StoredRun(name, folder, {}, _read_predictions(folder))])
    run_record = runs.read_record(folder)
    # The folder of a run or an evaluation has a record; a folder of seeds, or of files only, has none.
    record = run_record or read_evaluation(folder)
    if record is not None:
        if record["status"] != "finished":
            message = f"the {'run' if run_record else 'evaluation'} is not finished ({record['status']})"
            raise ModelError(message, "repeat the command that started it", file=folder)
        # The model of an evaluation is in another folder.
        run = _read_run(name, folder, record, split)
        return StoredSystem(name, [run if run_record else replace(run, model=record["model"])])
    if files := sorted(folder.glob("predictions*.jsonl")):
        requested_file = folder / predictions_file(split or "validation")
        file = requested_file if split or requested_file in files else files[0]
        return StoredSystem(name, [StoredRun(name, file, {}, _read_predictions(file))])
    records = {run: record for run in seed_folders(folder) if (record := runs.read_record(run))}
    finished = [run for run, record in records.items() if record["status"] == "finished"]
    if not finished:
        message = "none of its seeds is finished" if records else "neither a run folder nor stored predictions"
        raise UsageError(message, "name a run folder, or a file from `bertkit eval --output`", file=folder)
    unfinished = [f"{run.name} ({record['status']})" for run, record in records.items() if run not in finished]
    seeds = [_read_run(f"{path}/{run.name}", run, records[run], split) for run in finished]
    return StoredSystem(name, seeds, has_seeds=True, unfinished=unfinished)


def _read_run(name: str, folder: Path, record: RunRecord, split: str | None) -> StoredRun:
    if "results" not in record:
        raise UsageError("a pretraining run has no predictions", "name runs of `bertkit finetune`", file=folder)
    splits = [result["split"] for result in record["results"]]
    selected = split or splits[0]
    if selected not in splits:
        remedy = f"choose from {', '.join(splits)}; `bertkit eval --split {selected} --output DIR` scores another split"
        raise DataError(f"the run has no predictions of split {selected!r}", remedy, file=folder)
    file = folder / predictions_file(selected)
    if file.is_file() and not is_complete(file, record.get("predictions", {}).get(file.name)):
        raise DataError("the file of predictions does not match its checksum", _REMEDY, file=file)
    return StoredRun(name, file, {**record, "split": selected}, _read_predictions(file), str(folder))


def _read_predictions(file: Path) -> Predictions:
    try:
        with file.open(encoding="utf-8", newline="\n") as lines:
            predictions = offload_to_disk(_parse_records(lines, file))
    except FileNotFoundError:
        raise DataError("the file of predictions is missing", _REMEDY, file=file) from None
    except UnicodeDecodeError:
        raise DataError("not a file of predictions", "name a file from `bertkit eval --output`", file=file) from None
    if not predictions:
        raise DataError("the file has no predictions", "score the model with `bertkit eval --output DIR`", file=file)
    return predictions


def _parse_records(lines: Iterable[str], file: Path) -> Iterator[Prediction]:
    for row, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict) and "prediction" in record:
            yield record
            continue
        # If the first line is not an object, the file is not damaged but has another format.
        if row == 1 and not line.lstrip().startswith("{"):
            message = "not a file of predictions, which has a JSON object with `prediction` in each line"
            raise DataError(message, "name a run folder, or a file from `bertkit eval --output`", file=file)
        message = "not a stored prediction" if isinstance(record, dict) else "the line is damaged"
        raise DataError(message, _REMEDY, file=file, row=row)


# --- Scoring ---


def read_recipe(run: StoredRun, changes: Mapping[str, Any] | None = None) -> Recipe:
    """Return the recipe of a run that has a record, with changed values of dotted keys."""
    return load_recipe(str(run.file.with_name("recipe.yaml")), changes)


def find_scorer(systems: Sequence[StoredSystem], recipe: Recipe | None) -> StoredPredictionScorer:
    """Return the scorer for all systems, with a given recipe, or else the recipe of the first run with a record.

    Raises:
        UsageError: If there is neither a recipe nor a run with a record.
        DataError: If the systems have different tasks, labels or splits.
    """
    all_runs = [run for system in systems for run in system.runs]
    recorded_runs = [run for run in all_runs if run.record]
    if recipe is None:
        if not recorded_runs:
            raise UsageError("files of predictions have no recipe, so their metrics are unknown", "add --recipe RECIPE")
        recipe = read_recipe(recorded_runs[0])
    for run in recorded_runs:
        _check_run(run, recipe, recorded_runs[0])
    # Recorded scores are not used: one recipe, the labels of the first system and today's code score all systems.
    identity = recorded_runs[0].record["identity"] if recorded_runs else {}
    recipe = use_recorded_data(recipe, identity)
    task, labels = load_task(recipe), identity.get("labels")
    # Without a record, collect the labels from the rows.
    if task.HAS_LABEL_NAMES and not labels:
        values = (
            value
            for run in all_runs
            for record in run.predictions
            for value in (record.get(task.COLUMNS.gold), record["prediction"])
        )
        labels = recipe.labels or sorted({name for value in values for name in labels_to_strs(value)})
    return StoredPredictionScorer(recipe, task, tuple(labels or ()))


def _check_run(run: StoredRun, recipe: Recipe, first: StoredRun) -> None:
    identity, reference = run.record["identity"], first.record["identity"]
    remedy = "compare runs of one task on one dataset"
    if (task := identity["recipe"]["task"]) != recipe.task:
        raise DataError(f"{run.name} has the task {task}, not {recipe.task}", remedy)
    # The order of labels may differ, because predictions are names.
    names = [sorted(record.get("labels") or []) for record in (identity, reference)]
    if names[0] != names[1]:
        labels = " and ".join(shorten(", ".join(part)) for part in names)
        raise DataError(f"{run.name} and {first.name} have different labels ({labels})", _DATA_REMEDY)
    if run.record["split"] != first.record["split"]:
        message = f"{run.name} has predictions of {run.record['split']}, {first.name} of {first.record['split']}"
        raise DataError(message, "name a split that both have: --split SPLIT")


def find_changed_scores(run: StoredRun, scores: Mapping[str, float]) -> list[str]:
    """List the metrics that stored predictions do not determine, because the score differs from the record."""
    results = run.record.get("results", [])
    recorded = {result["split"]: result["scores"] for result in results}.get(run.split, {})
    return [
        name
        for name, value in scores.items()
        if find_metric_by_name(name).is_score
        and math.isfinite(value)
        and recorded.get(name) is not None
        and not math.isclose(value, recorded[name], rel_tol=_ROUNDING, abs_tol=_ROUNDING)
    ]


# --- Rows ---


def read_rows(run: StoredRun, task: Task) -> Rows:
    """Return the rows of stored predictions, with the canonical columns of the task.

    Raises:
        DataError: If they lack a column.
    """
    names, columns = task.COLUMNS.names, task.COLUMNS
    for row, record in enumerate(run.predictions, start=1):
        for name in filter(None, (*columns.inputs, columns.gold)):
            if name not in record and columns.fallback_columns.get(name) not in record:
                message = f"the row has no {name!r}, which is needed to match and score it"
                raise DataError(message, "write each prediction into its row", file=run.file, row=row)
    return offload_to_disk({name: record[name] for name in names if name in record} for record in run.predictions)


def align(run: StoredRun, reference: StoredRun, task: Task) -> StoredRun:
    """Sort the predictions of a run into the order of the rows of another run.

    Rows are the same if their inputs and gold values are the same. Repeated rows keep their order.

    Raises:
        DataError: If the rows are not the same; the message names the first different row.
    """
    keys, reference_keys = (_digest_rows(stored_run, task) for stored_run in (run, reference))
    if keys == reference_keys:
        return run
    if Counter(keys) != Counter(reference_keys):
        raise _describe_mismatch(run, reference, task)
    # The keys a, b, a have the indices {a: [0, 2], b: [1]}. With the reference keys a, a, b, the order is 0, 2, 1.
    indices = defaultdict(list)
    for index, key in enumerate(keys):
        indices[key].append(index)
    return replace(run, predictions=offload_to_disk(run.predictions[indices[key].pop(0)] for key in reference_keys))


def _digest_rows(run: StoredRun, task: Task, *, gold: bool = True) -> list[bytes]:
    """Return a digest of each row without its id, which can be a row number."""
    ignored_names = {"id"} if gold else {"id", task.COLUMNS.gold}
    rows = ({name: value for name, value in row.items() if name not in ignored_names} for row in read_rows(run, task))
    return [hashlib.blake2b(json.dumps(row, sort_keys=True).encode(), digest_size=16).digest() for row in rows]


def _describe_mismatch(run: StoredRun, reference: StoredRun, task: Task) -> DataError:
    keys, reference_keys = (_digest_rows(stored_run, task) for stored_run in (run, reference))
    known_keys = set(reference_keys)
    index = next((index for index, key in enumerate(keys) if key not in known_keys), None)
    # 1. All rows are in the reference, but not equally often.
    if index is None:
        message = f"{len(keys):,} rows, and {reference.name} has {len(reference_keys):,}"
        if len(keys) == len(reference_keys):
            message = f"rows recur with other counts than in {reference.name}"
        return DataError(message, _DATA_REMEDY, file=run.file)
    # 2. A row has another gold value, or is missing in the reference.
    inputs, reference_inputs = (_digest_rows(stored_run, task, gold=False) for stored_run in (run, reference))
    if inputs[index] in reference_inputs:
        column = task.COLUMNS.gold
        value = run.predictions[index][column]
        other_value = reference.predictions[reference_inputs.index(inputs[index])][column]
        message = shorten(f"another {column} than in {reference.name}: {value!r} here, {other_value!r} there", 300)
    else:
        common_count = sum((Counter(keys) & Counter(reference_keys)).values())
        message = f"not a row of {reference.name}: {common_count:,} of {len(keys):,} rows are the same"
    return DataError(message, _DATA_REMEDY, file=run.file, row=index + 1)


def read_column(column: str, scorer: StoredPredictionScorer, run: StoredRun, rows: Rows) -> list[Any]:
    """Return the value of a column in each row, from the stored rows or else from the dataset of the run.

    Raises:
        DataError: If the column does not exist, or the dataset does not contain the rows.
    """
    recipe, columns = scorer.recipe, scorer.task.COLUMNS
    # The user gives a column name of the data file; stored rows have canonical names.
    canonical = next((name for name, source in recipe.data.columns.items() if source == column), column)
    if canonical in rows[0]:
        return [row.get(canonical) for row in rows]
    data = recipe.data.model_copy(update={"columns": {**recipe.data.columns, column: column}})
    split = str(run.record.get("split", ALL if find_unsplit_file(data) else "validation"))
    with_column = replace(columns, extra=(column,))
    try:
        recipe = recipe.model_copy(update={"data": data})
        splits = read_task_splits(recipe, scorer.task, lambda name: name == split, columns=with_column)
    except DataError as error:
        if repr(column) in error.message:
            error.remedy = "name another column with --group-by"
        raise
    if split not in splits:
        raise DataError(f"no split {split!r} in {data.source}", "name another --split")
    if column not in splits[split].rows[0]:  # The columns of demo rows are not checked before.
        raise DataError(f"no column {column!r} in {data.source}", "name another column with --group-by")

    def key(row: Row) -> str:
        return json.dumps([row.get(name) for name in (*columns.inputs, *columns.optional)], default=str)

    values = {key(row): row[column] for row in splits[split].rows}
    missing_count = sum(key(row) not in values for row in rows)
    if missing_count:
        file = expand_path(data.source) if data.source else None
        counts = f"{missing_count:,} of the {len(rows):,} rows"
        message = f"{counts} are no longer in the dataset, so --group-by {column} is unknown"
        raise DataError(message, "restore the dataset, or leave out --group-by", file=file)
    return [values[key(row)] for row in rows]
