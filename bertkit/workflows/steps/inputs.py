"""Prepare a run: everything that is read and checked before anything heavy is imported."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit import hub
from bertkit.data.labels import find_names, name_row, name_split
from bertkit.data.rows import Split
from bertkit.data.sources import is_validation, read_splits
from bertkit.data.streams import RowStream, open_stream
from bertkit.distillation.teachers import Teacher, find_teachers, with_student
from bertkit.errors import DataError, RecipeError
from bertkit.modeling import load as models
from bertkit.recipe import Recipe, Row, write_yaml
from bertkit.storage import runs
from bertkit.tasks import Task, load_task

log = logging.getLogger("bertkit")

# The model and the rows count by content, not by where they lie or whether their features are kept.
_NOT_IDENTITY = {"about", "published", "model"}
_WHERE = {"source", "files", "config", "revision", "cache"}


@dataclass(frozen=True)
class Inputs:
    """All that is known before anything heavy is imported."""

    recipe: Recipe
    task: Task
    splits: dict[str, Split]
    """What was read; of a stream of training rows, its first window."""
    labels: tuple[str, ...]
    model_folder: Path
    folder: Path
    identity: dict[str, Any]
    stream: RowStream | None = None
    teachers: tuple[Teacher, ...] = ()

    @property
    def rows(self) -> dict[str, int | None]:
        """How many rows each split has; None for a stream, whose end nobody has seen."""
        counts: dict[str, int | None] = {name: len(split.rows) for name, split in self.splits.items()}
        return {**counts, "train": None} if self.stream else counts

    @property
    def validation(self) -> Split:
        """The split that chooses the best checkpoint."""
        return self.splits["validation"]


@dataclass(frozen=True)
class Plan:
    """What a run would do."""

    recipe: str
    model: str
    folder: str
    rows: dict[str, int | None]
    labels: list[str]
    steps: int
    disk_bytes: int
    resolved: str


def plan(recipe: Recipe, *, output: str | Path | None = None, fresh: bool = False) -> Plan:
    """Check everything that can be checked without training, and tell what a run would do."""
    inputs = read_inputs(recipe, output)
    if not fresh:
        runs.check_claim(inputs.folder, inputs.identity)
    weights = sum(
        file.stat().st_size for file in inputs.model_folder.iterdir() if file.suffix in (".safetensors", ".bin")
    )
    resolved = write_yaml(inputs.recipe.model_dump(mode="json", exclude_defaults=True))
    return Plan(
        recipe.name,
        inputs.recipe.model_name,
        str(inputs.folder),
        inputs.rows,
        list(inputs.labels),
        recipe.training.total_steps(inputs.rows["train"]),
        7 * weights,  # the result, and weights with two moments in the best and the last checkpoint
        resolved,
    )


def read_inputs(recipe: Recipe, output: str | Path | None) -> Inputs:
    """Find the model, read and check the rows, and say what makes this run the one it is."""
    task, recipe = load_task(recipe), with_student(recipe)
    model_folder = hub.find_model(recipe.model)
    models.read_config(model_folder)

    def read(row: Row) -> Row | None:
        return task.read(row, recipe)

    stream = _open_stream(recipe, task) if recipe.data.streaming else None
    splits = read_splits(
        recipe, task.COLUMNS, read, lambda name: (name == "train" and stream is None) or is_validation(name)
    )
    if stream is not None:
        splits = {"train": stream.head(), **splits}
    for wanted in ("train", "validation"):
        if wanted not in splits:
            there = ", ".join(splits) or "none"
            raise DataError(f"no {wanted} split (found: {there})", "name it in data.splits or data.files")
    labels, splits = find_labels(recipe, task, splits)
    if stream is not None:
        _say_what_is_known(recipe, task, splits["train"])
    settings = recipe.model_dump(mode="json", exclude=_NOT_IDENTITY)
    teachers = find_teachers(recipe, task, labels, model_folder)
    if recipe.distillation:
        settings["distillation"].pop("teachers")  # they count by content too
    settings["data"] = {key: value for key, value in settings["data"].items() if key not in _WHERE}
    identity = {
        "recipe": settings,
        "data": {name: split.fingerprint() for name, split in splits.items()},
        "model": models.fingerprint(model_folder),
        "labels": list(labels),
        **({"teachers": [teacher.fingerprint for teacher in teachers]} if teachers else {}),
    }
    folder = Path(output) if output else runs.default_folder(recipe.name)
    return Inputs(recipe, task, splits, labels, model_folder, folder, identity, stream, teachers)


def find_labels(recipe: Recipe, task: Task, splits: dict[str, Split]) -> tuple[tuple[str, ...], dict[str, Split]]:
    """Give the label names of rows to train on, and the splits with gold values as names.

    Raises:
        DataError: values that are no label, or only one label in the training rows.
    """
    if not task.NAMED:
        return (), splits
    names = recipe.labels or find_names(row[task.COLUMNS.gold] for row in splits["train"].rows)
    named = {name: name_split(split, task.COLUMNS.gold, names) for name, split in splits.items()}
    if recipe.data.streaming:
        return tuple(names), named
    if len({str(row[task.COLUMNS.gold]) for row in named["train"].rows}) < 2:
        find_names(row[task.COLUMNS.gold] for row in named["train"].rows)  # says that there is only one
    return tuple(names), named


def _open_stream(recipe: Recipe, task: Task) -> RowStream:
    """Open the training rows of a recipe that says all that is read off the rows elsewhere.

    Raises:
        RecipeError: it does not.
    """
    if recipe.training.steps is None:
        raise RecipeError("training.steps is missing: nobody knows where a stream ends", "--set training.steps=20000")
    if task.NAMED and not recipe.labels:
        raise RecipeError("labels is missing: label names are not read off a stream", "--set 'labels=[no, yes]'")
    if recipe.training.class_weights == "balanced":
        what = "training.class_weights = balanced wants all labels counted, which a stream does not allow"
        raise RecipeError(what, "name the weights: --set 'training.class_weights={no: 1, yes: 9}'")

    def read(row: Row) -> Row | None:
        known = task.read(row, recipe)
        return name_row(known, task.COLUMNS.gold, recipe.labels) if known and task.NAMED and recipe.labels else known

    return open_stream(recipe.data, task.COLUMNS, read, recipe.training.batch_size)


def _say_what_is_known(recipe: Recipe, task: Task, head: Split) -> None:
    log.info(f"training rows are streamed: the baseline knows the first {len(head.rows):,} of them")
    found = {str(row[task.COLUMNS.gold]) for row in head.rows}
    if task.NAMED and len(found) == 1 and len(head.rows) > 1:
        log.info(f"these all have the label {min(found)!r}: rows are read in their order, so shuffle them on disk")
