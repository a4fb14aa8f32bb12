"""Read all rows of a dataset despite errors in some rows, and describe the errors and the labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from bertkit.checks import EXAMPLES, Finding, locate_examples
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
from bertkit.data.sources import ALL, find_single_file, find_split_files, is_validation, missing_split_error
from bertkit.errors import BertkitError, DataError, UnavailableError, shorten
from bertkit.evaluation.splits import read_task_splits
from bertkit.recipe.records import DataConfig, Recipe
from bertkit.tasks import Task


@dataclass
class ReadResult:
    """Rows of all splits, and the errors in rows that cannot be used."""

    splits: dict[str, Split] = field(default_factory=dict)
    """Split -> its rows, with label names as gold values; a test split can lack gold values."""
    labels: tuple[str, ...] = ()
    row_errors: list[DataError] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    skipped_splits: list[str] = field(default_factory=list)


def read_all(recipe: Recipe, task: Task) -> ReadResult:
    """Read the training and validation rows as for training, and the rows of other splits with or without labels.

    Raises:
        DataError: If the training or validation rows are missing, or none of them can be read.
    """
    names: list[str] = []  # all splits of the source
    result = ReadResult()

    def is_needed(name: str) -> bool:
        names.append(name)
        return name == "train" or is_validation(name)

    try:
        result.splits = read_task_splits(recipe, task, is_needed, row_errors=result.row_errors)
    except DataError as error:
        if result.row_errors:
            # The cause may be errors in rows, such as a split in which every row is wrong.
            result.findings.append(describe_error(error, "rows", "unreadable_rows"))
        elif error.row is None:
            raise
        else:
            result.row_errors.append(error)
        return result
    if "train" not in result.splits:
        raise missing_split_error("train", recipe.data, result.splits)
    train, finds_names = result.splits["train"], task.HAS_LABEL_NAMES and not recipe.labels
    if recipe.data.source != "demo":
        result.findings += find_odd_values(train, task.COLUMNS, recipe.data, finds_names=finds_names)
    if task.HAS_LABEL_NAMES:
        _name_labels(result, recipe, task.COLUMNS.gold)
    for name in dict.fromkeys(names):
        if name not in (ALL, *result.splits) and name != "train" and not is_validation(name):
            _read_other(result, recipe, task, name)
    return result


def _name_labels(result: ReadResult, recipe: Recipe, gold: str) -> None:
    """Replace the raw gold values of all splits by label names."""
    train = result.splits["train"]
    names = recipe.labels or sorted({name for value in train.column(gold) for name in labels_to_strs(value)})
    try:
        names = recipe.labels or find_names(train.column(gold))
    except DataError as error:
        result.findings.append(describe_error(error, "labels", "label_names"))
    result.labels = tuple(names)
    for name, split in result.splits.items():
        result.splits[name] = _replace_gold(split, gold, recipe, result, result.row_errors)


def _replace_gold(split: Split, gold: str, recipe: Recipe, result: ReadResult, row_errors: list[DataError]) -> Split:
    """Replace the gold values of a split by label names, including labels that no training row has."""
    if not recipe.labels:
        result.labels = tuple(add_unseen_names(result.labels, split.column(gold)))
    return replace_raw_labels(split, gold, result.labels, recipe.data, row_errors=row_errors)


def _read_other(result: ReadResult, recipe: Recipe, task: Task, name: str) -> None:
    """Read a split that training does not use, such as test; its labels can be missing."""
    split_error: BertkitError | None = None
    # Test splits often lack labels. If the split cannot be read with the gold column, read it without.
    for columns in (task.COLUMNS, replace(task.COLUMNS, gold="")):
        row_errors: list[DataError] = []
        try:
            splits = read_task_splits(recipe, task, lambda split: split == name, columns=columns, row_errors=row_errors)
        except (DataError, UnavailableError) as error:
            split_error = split_error or error
            continue
        split = splits[name]
        if columns.gold and task.HAS_LABEL_NAMES and split.rows:
            split = _replace_gold(split, columns.gold, recipe, result, row_errors)
        if not split.rows and columns.gold and all(error.column == columns.gold for error in row_errors):
            continue
        result.splits[name] = split
        result.row_errors += row_errors
        if not columns.gold:
            result.findings.append(Finding("good", "labels", "label_counts", f"{name}: no labels"))
        return
    is_local = find_single_file(recipe.data) is not None or find_split_files(recipe.data) is not None
    if split_error is not None and is_local:
        result.findings.append(describe_error(split_error, "rows", "unreadable_rows"))
    elif split_error is not None:  # On the Hub, this split may not exist.
        result.skipped_splits.append(f"the {name} split: {split_error.message}")


_MAX_CHARS = 160


def describe_row_errors(errors: Sequence[DataError]) -> list[Finding]:
    """Describe the errors of rows, with one finding per column and remedy."""
    groups: dict[tuple[str | None, str, bool], list[DataError]] = {}
    for error in errors:
        groups.setdefault((error.column, error.remedy, error.message == NO_TEXT), []).append(error)
    findings = []
    for (column, remedy, is_empty), group in groups.items():
        count = "1 row" if len(group) == 1 else f"{len(group):,} rows, the first"
        place = f" (column {column!r})" if column else ""
        name = "empty_texts" if is_empty else "unreadable_rows"
        text = f"{count}: {shorten(group[0].message, _MAX_CHARS)}{place} - {shorten(remedy, _MAX_CHARS)}"
        places = tuple(RowLocation(str(error.file), error.row) for error in group[:EXAMPLES])
        findings.append(Finding("fail", "rows", name, text, places, len(group)))
    return findings or [Finding("good", "rows", "unreadable_rows", "every row can be read")]


def describe_error(error: BertkitError, group: str, name: str) -> Finding:
    """Describe an error that makes a complete split or check impossible."""
    places = (RowLocation(error.file, error.row),) if error.file and error.row else ()
    remedy = f" - {error.remedy}" if error.remedy else ""
    return Finding("fail", group, name, f"{shorten(error.message, _MAX_CHARS)}{shorten(remedy, _MAX_CHARS)}", places)


_MIN_LABEL_ROWS = 5  # training rows per label
_MAX_LISTED = 6  # labels


def find_odd_values(train: Split, columns: ColumnSpec, data: DataConfig, *, finds_names: bool) -> list[Finding]:
    """Find columns that may be mapped by mistake, in training rows with raw labels."""
    unmapped = [name for name in columns.optional if not any(name in row for row in train.rows[:1])]
    texts = describe_unread(train.unread_columns, data, unmapped)
    findings = [Finding("warn", "rows", "unread_columns", text) for text in texts]
    if finds_names and train.rows:
        try:
            check_swapped(train, columns, data)
        except DataError as error:
            findings.append(describe_error(error, "labels", "swapped_columns"))
    if train.rows and columns.gold:
        doubts = find_suspicious_columns(train, columns, data, finds_names=finds_names)
        findings += [Finding("warn", "labels", "odd_columns", doubt) for doubt in doubts]
    return findings


def find_label_problems(
    splits: Mapping[str, Split], gold: str, recipe_labels: Sequence[str] | None, found_names: Sequence[str]
) -> list[Finding]:
    """Find labels that may be typos, that few rows have, or that one split lacks.

    Args:
        splits: Splits with label names as gold values.
        gold: Column of the gold values.
        recipe_labels: Label names that the recipe declares, or None.
        found_names: Label names from the training rows, if the recipe declares none.
    """
    train = splits["train"]
    findings = []
    for text, place in find_rare_names(train, gold, found_names) if not recipe_labels else ():
        findings.append(Finding("warn", "labels", "misspelled_labels", text, (place,)))
    label_rows = rows_by_label(splits, gold)
    rows_in_train = {label: by_split["train"] for label, by_split in label_rows.items() if "train" in by_split}
    rare_labels = {label: rows for label, rows in rows_in_train.items() if len(rows) < _MIN_LABEL_ROWS}
    if rare_labels:
        listing = _list_items([f"{label!r} ({len(rows)})" for label, rows in rare_labels.items()])
        places = locate_examples(train, [rows[0] for rows in rare_labels.values()])
        text = f"labels with fewer than {_MIN_LABEL_ROWS} training rows: {listing}"
        findings.append(Finding("warn", "labels", "rare_labels", text, places, len(rare_labels)))
    for label, by_split in find_unseen_names(splits, gold).items():
        name, rows = next(iter(by_split.items()))
        text = f"{len(rows):,} {name} rows have the label {label!r}, and no training row has it"
        places = locate_examples(splits[name], rows)
        findings.append(Finding("warn", "labels", "unseen_labels", text, places, len(rows)))
    unused = [label for label in get_label_types(recipe_labels or ()) if label != "O" and label not in label_rows]
    if unused:
        listing = _list_items([repr(label) for label in dict.fromkeys(unused)])
        findings.append(Finding("warn", "labels", "unseen_labels", f"no row has these labels of the recipe: {listing}"))
    return findings


def count_gold(splits: Mapping[str, Split], gold: str) -> list[Finding]:
    """Describe the gold values of each split: the frequency of each label, or the range of numbers."""
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
    return ", ".join(items[:_MAX_LISTED]) + (f", {len(items) - _MAX_LISTED:,} more" if len(items) > _MAX_LISTED else "")
