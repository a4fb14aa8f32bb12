"""Read all rows of a dataset despite errors in single rows, and describe the errors and the labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from bertkit.checks import EXAMPLES, Finding, get_example_places
from bertkit.data.checks import (
    check_swapped,
    find_rare_names,
    find_suspicious_columns,
    find_unseen_names,
    get_label_types,
    rows_by_label,
)
from bertkit.data.columns import ColumnSpec, describe_unread
from bertkit.data.labels import add_unseen_names, find_names, labels_to_strs, list_names, replace_raw_labels
from bertkit.data.rows import NO_TEXT, RowLocation, Split
from bertkit.data.sources import ALL, files_by_split, is_validation, missing_split_error, single_file
from bertkit.errors import BertkitError, DataError, UnavailableError, shorten
from bertkit.evaluation.splits import read_task_splits
from bertkit.recipe.records import DataConfig, Recipe
from bertkit.tasks import Task


@dataclass
class ReadResult:
    """Rows of all splits, and the errors in rows that cannot be used."""

    splits: dict[str, Split] = field(default_factory=dict)
    """Rows with label names as gold values; a test split can have none."""
    labels: tuple[str, ...] = ()
    faults: list[DataError] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def read_all(recipe: Recipe, task: Task) -> ReadResult:
    """Read the training and validation rows as training does, and the rows of other splits with or without labels.

    Raises:
        DataError: If the training or validation rows are missing, or none of them can be read.
    """
    names: list[str] = []
    readings = ReadResult()

    def choose(name: str) -> bool:
        names.append(name)
        return name == "train" or is_validation(name)

    try:
        readings.splits = read_task_splits(recipe, task, choose, collected=readings.faults)
    except DataError as error:
        if readings.faults:
            # The errors of rows may be the cause, such as a split whose rows are all wrong.
            readings.findings.append(describe_refusal(error, "rows", "unreadable_rows"))
        elif error.row is None:
            raise
        else:
            readings.faults.append(error)
        return readings
    if "train" not in readings.splits:
        raise missing_split_error("train", recipe.data, readings.splits)
    train, finds_names = readings.splits["train"], task.HAS_LABEL_NAMES and not recipe.labels
    if recipe.data.source != "demo":
        readings.findings += find_odd_values(train, task.COLUMNS, recipe.data, finds_names=finds_names)
    if task.HAS_LABEL_NAMES:
        _name_labels(readings, recipe, task.COLUMNS.gold)
    for name in dict.fromkeys(names):
        if name not in (ALL, *readings.splits) and name != "train" and not is_validation(name):
            _read_other(readings, recipe, task, name)
    return readings


def _name_labels(readings: ReadResult, recipe: Recipe, gold: str) -> None:
    """Replace raw gold values by label names."""
    train = readings.splits["train"]
    names = recipe.labels or sorted({name for value in train.column(gold) for name in labels_to_strs(value)})
    try:
        names = recipe.labels or find_names(train.column(gold))
    except DataError as error:
        readings.findings.append(describe_refusal(error, "labels", "label_names"))
    readings.labels = tuple(names)
    for name, split in readings.splits.items():
        readings.splits[name] = _replace_gold(split, gold, recipe, readings, readings.faults)


def _replace_gold(split: Split, gold: str, recipe: Recipe, readings: ReadResult, faults: list[DataError]) -> Split:
    """Replace the gold values of a split by label names, including labels that no training row has."""
    if not recipe.labels:
        readings.labels = tuple(add_unseen_names(readings.labels, split.column(gold)))
    return replace_raw_labels(split, gold, readings.labels, recipe.data, collected=faults)


def _read_other(readings: ReadResult, recipe: Recipe, task: Task, name: str) -> None:
    """Read a split that nothing is trained on, such as test; it need not have labels."""
    refused: BertkitError | None = None
    # Test splits often lack labels: if reading with the gold column fails, read without it.
    for columns in (task.COLUMNS, replace(task.COLUMNS, gold="")):
        faults: list[DataError] = []
        try:
            splits = read_task_splits(recipe, task, lambda split: split == name, columns=columns, collected=faults)
        except (DataError, UnavailableError) as error:
            refused = refused or error
            continue
        split = splits[name]
        if columns.gold and task.HAS_LABEL_NAMES and split.rows:
            split = _replace_gold(split, columns.gold, recipe, readings, faults)
        if not split.rows and columns.gold and all(fault.column == columns.gold for fault in faults):
            continue
        readings.splits[name] = split
        readings.faults += faults
        if not columns.gold:
            readings.findings.append(Finding("good", "labels", "label_counts", f"{name}: no labels"))
        return
    is_local = single_file(recipe.data) is not None or files_by_split(recipe.data) is not None
    if refused is not None and is_local:
        fault = refused if isinstance(refused, DataError) else DataError(refused.message, refused.remedy)
        readings.findings.append(describe_refusal(fault, "rows", "unreadable_rows"))
    elif refused is not None:  # On the Hub, this split may not exist.
        readings.left_out.append(f"the {name} split: {refused.message}")


_LONG = 160


def describe_faults(faults: Sequence[DataError]) -> list[Finding]:
    """Describe the errors of rows, with one finding per column and remedy."""
    groups: dict[tuple[str | None, str, bool], list[DataError]] = {}
    for fault in faults:
        groups.setdefault((fault.column, fault.remedy, fault.message == NO_TEXT), []).append(fault)
    findings = []
    for (column, remedy, is_empty), group in groups.items():
        count = "1 row" if len(group) == 1 else f"{len(group):,} rows, the first"
        place = f" (column {column!r})" if column else ""
        name = "empty_texts" if is_empty else "unreadable_rows"
        text = f"{count}: {shorten(group[0].message, _LONG)}{place} - {shorten(remedy, _LONG)}"
        places = tuple(RowLocation(str(fault.file), fault.row) for fault in group[:EXAMPLES])
        findings.append(Finding("fail", "rows", name, text, places, len(group)))
    return findings or [Finding("good", "rows", "unreadable_rows", "every row can be read")]


def describe_refusal(error: DataError, group: str, name: str) -> Finding:
    """Describe an error that concerns a whole split."""
    places = (RowLocation(error.file, error.row),) if error.file and error.row else ()
    remedy = f" - {error.remedy}" if error.remedy else ""
    return Finding("fail", group, name, f"{shorten(error.message, _LONG)}{shorten(remedy, _LONG)}", places)


_MIN_LABEL_ROWS = 5  # rows of a label: fewer teach little
_MAX_SHOWN = 6  # labels


def find_odd_values(train: Split, columns: ColumnSpec, data: DataConfig, *, finds_names: bool) -> list[Finding]:
    """Find columns that may have been mapped by mistake, in training rows whose labels are not converted yet."""
    unmapped = [name for name in columns.optional if not any(name in row for row in train.rows[:1])]
    unread = describe_unread(train.unread, data, unmapped)
    findings = [Finding("warn", "rows", "unread_columns", text) for text in unread]
    if finds_names and train.rows:
        try:
            check_swapped(train, columns, data)
        except DataError as error:
            findings.append(describe_refusal(error, "labels", "swapped_columns"))
    if train.rows and columns.gold:
        doubts = find_suspicious_columns(train, columns, data, finds_names=finds_names)
        findings += [Finding("warn", "labels", "odd_columns", doubt) for doubt in doubts]
    return findings


def find_label_faults(
    splits: Mapping[str, Split], gold: str, declared: Sequence[str] | None, trained: Sequence[str]
) -> list[Finding]:
    """Find labels that may be typos, that few rows have, or that one split lacks.

    Args:
        splits: Splits with label names as gold values.
        gold: Column of the gold values.
        declared: Label names in the recipe, if it has any.
        trained: Label names that were collected from the training rows, if the recipe has none.
    """
    train = splits["train"]
    findings = []
    for text, place in find_rare_names(train, gold, trained) if not declared else ():
        findings.append(Finding("warn", "labels", "misspelled_labels", text, (place,)))
    label_rows = rows_by_label(splits, gold)
    in_training = {label: by_split["train"] for label, by_split in label_rows.items() if "train" in by_split}
    rare = {label: rows for label, rows in in_training.items() if len(rows) < _MIN_LABEL_ROWS}
    if rare:
        listed = _list_items([f"{label!r} ({len(rows)})" for label, rows in rare.items()])
        places = get_example_places(train, [rows[0] for rows in rare.values()])
        text = f"labels with fewer than {_MIN_LABEL_ROWS} training rows: {listed}"
        findings.append(Finding("warn", "labels", "rare_labels", text, places, len(rare)))
    for label, by_split in find_unseen_names(splits, gold).items():
        name, rows = next(iter(by_split.items()))
        text = f"the label {label!r} is in {len(rows):,} {name} rows and in no training row"
        places = get_example_places(splits[name], rows)
        findings.append(Finding("warn", "labels", "unseen_labels", text, places, len(rows)))
    absent = [label for label in get_label_types(declared or ()) if label != "O" and label not in label_rows]
    if absent:
        listed = _list_items([repr(label) for label in dict.fromkeys(absent)])
        findings.append(Finding("warn", "labels", "unseen_labels", f"no row has these labels of the recipe: {listed}"))
    return findings


def count_gold(splits: Mapping[str, Split], gold: str) -> list[Finding]:
    """Describe the gold values of each split: the fraction of each label, or the range of numbers."""
    findings = []
    for name, split in splits.items():
        values = [row[gold] for row in split.rows if row.get(gold) is not None]
        if values and not isinstance(values[0], dict):
            text = f"{name}: {_describe_gold(values)}"
            findings.append(Finding("good", "labels", "label_counts", text, count=len(values)))
    return findings


def _describe_gold(values: Sequence[Any]) -> str:
    if isinstance(values[0], (int, float)) and not all(isinstance(value, int) for value in values):
        return f"numbers from {min(values):g} to {max(values):g}, mean {np.mean(values):.3g}"
    names = (get_label_types(value) if isinstance(value, (str, list)) else [str(value)] for value in values)
    counts = Counter(chain.from_iterable(names))
    total = sum(counts.values())
    parts = [f"{list_names([name])} ({count:,}, {100 * count / total:.1f}%)" for name, count in counts.most_common()]
    return f"{len(counts)} labels: {_list_items(parts)}"


def _list_items(items: Sequence[str]) -> str:
    return ", ".join(items[:_MAX_SHOWN]) + (f", {len(items) - _MAX_SHOWN:,} more" if len(items) > _MAX_SHOWN else "")
