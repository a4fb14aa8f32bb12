"""All splits of a data set, read to their end whatever is wrong with single rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from bertkit.checks import Finding
from bertkit.checks.faults import describe_refusal
from bertkit.checks.labels import find_odd_values
from bertkit.data.labels import find_names, name_split, spelled_names, with_unseen
from bertkit.data.rows import Split
from bertkit.data.sources import ALL, files_by_split, is_validation, missing_split, single_file
from bertkit.errors import BertkitError, DataError, UnavailableError
from bertkit.evaluation.splits import read_task_splits
from bertkit.recipe import Recipe
from bertkit.tasks import Task


@dataclass
class Readings:
    """The rows of all splits, and what is wrong with those that cannot be used."""

    splits: dict[str, Split] = field(default_factory=dict)
    """With label names as gold values; a test split may have none."""
    labels: tuple[str, ...] = ()
    faults: list[DataError] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def read_all(recipe: Recipe, task: Task) -> Readings:
    """Read the training and validation rows as training does, and those of other splits, with labels or without.

    Raises:
        DataError: the training or validation rows cannot be found, or not be read at all.
    """
    names: list[str] = []
    readings = Readings()

    def choose(name: str) -> bool:
        names.append(name)
        return name == "train" or is_validation(name)

    try:
        readings.splits = read_task_splits(recipe, task, choose, collected=readings.faults)
    except DataError as error:
        if readings.faults:
            # perhaps due to them
            readings.findings.append(describe_refusal(error, "rows", "unreadable_rows"))
        elif error.row is None:
            raise
        else:
            readings.faults.append(error)
        return readings
    if "train" not in readings.splits:
        raise missing_split("train", recipe.data, readings.splits)
    train, finds_names = readings.splits["train"], task.NAMED and not recipe.labels
    if recipe.data.source != "demo":
        readings.findings += find_odd_values(train, task.COLUMNS, recipe.data, finds_names=finds_names)
    if task.NAMED:
        _name_labels(readings, recipe, task.COLUMNS.gold)
    for name in dict.fromkeys(names):
        if name not in (ALL, *readings.splits) and name != "train" and not is_validation(name):
            _read_other(readings, recipe, task, name)
    return readings


def _name_labels(readings: Readings, recipe: Recipe, gold: str) -> None:
    """Replace raw gold values by label names."""
    train = readings.splits["train"]
    names = recipe.labels or sorted({name for value in train.column(gold) for name in spelled_names(value)})
    try:
        names = recipe.labels or find_names(train.column(gold))
    except DataError as error:
        readings.findings.append(describe_refusal(error, "labels", "label_names"))
    readings.labels = tuple(names)
    for name, split in readings.splits.items():
        readings.splits[name] = _named(split, gold, recipe, readings, readings.faults)


def _named(split: Split, gold: str, recipe: Recipe, readings: Readings, faults: list[DataError]) -> Split:
    """Replace the gold values of a split by label names; those that no training row has are names too."""
    if not recipe.labels:
        readings.labels = tuple(with_unseen(readings.labels, split.column(gold)))
    return name_split(split, gold, readings.labels, recipe.data, collected=faults)


def _read_other(readings: Readings, recipe: Recipe, task: Task, name: str) -> None:
    """Read a split that nothing is trained on, such as test; it need not have labels."""
    refused: BertkitError | None = None
    for columns in (task.COLUMNS, replace(task.COLUMNS, gold="")):
        faults: list[DataError] = []
        try:
            splits = read_task_splits(recipe, task, lambda split: split == name, columns=columns, collected=faults)
        except (DataError, UnavailableError) as error:
            refused = refused or error
            continue
        split = splits[name]
        if columns.gold and task.NAMED:
            split = _named(split, columns.gold, recipe, readings, faults)
        if not split.rows and columns.gold and all(fault.column == columns.gold for fault in faults):
            continue
        readings.splits[name] = split
        readings.faults += faults
        if not columns.gold:
            readings.findings.append(Finding("good", "labels", "label_counts", f"{name}: no labels"))
        return
    is_local = single_file(recipe.data) is not None or files_by_split(recipe.data) is not None
    if refused is not None and is_local:
        fault = refused if isinstance(refused, DataError) else DataError(refused.what, refused.remedy)
        readings.findings.append(describe_refusal(fault, "rows", "unreadable_rows"))
    elif refused is not None:  # of the hub it is only guessed that there is such a split
        readings.left_out.append(f"the {name} split: {refused.what}")
