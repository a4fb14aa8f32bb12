"""Labels: how many rows have each, and which are rare, misspelt, or in one split alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from bertkit.checks import Finding, places_of
from bertkit.checks.faults import describe_refusal
from bertkit.data.checks import (
    find_odd_columns,
    find_rare_names,
    find_unseen_names,
    refuse_swapped,
    rows_by_label,
    types_of,
)
from bertkit.data.columns import Columns, describe_unread
from bertkit.data.labels import list_names
from bertkit.data.rows import Split
from bertkit.errors import DataError
from bertkit.recipe import Data

_FEW = 5  # rows of a label: fewer teach little
_SHOWN = 6  # labels


def find_odd_values(train: Split, columns: Columns, data: Data, *, finds_names: bool) -> list[Finding]:
    """Find columns that may be others, from training rows whose labels are as written."""
    unmapped = [name for name in columns.optional if not any(name in row for row in train.rows[:1])]
    unread = describe_unread(train.unread, data, unmapped)
    findings = [Finding("warn", "rows", "unread_columns", text) for text in unread]
    if finds_names and train.rows:
        try:
            refuse_swapped(train, columns, data)
        except DataError as error:
            findings.append(describe_refusal(error, "labels", "swapped_columns"))
    if train.rows and columns.gold:
        doubts = find_odd_columns(train, columns, data, finds_names=finds_names)
        findings += [Finding("warn", "labels", "odd_columns", doubt) for doubt in doubts]
    return findings


def find_label_faults(
    splits: Mapping[str, Split], gold: str, declared: Sequence[str] | None, trained: Sequence[str]
) -> list[Finding]:
    """Find labels that may be typos, that few rows have, or that one split lacks.

    Args:
        splits: with label names as gold values.
        gold: their column.
        declared: the names in the recipe, if it has any.
        trained: the names that were found in the training rows, if it has none.
    """
    train = splits["train"]
    findings = []
    for text, place in find_rare_names(train, gold, trained) if not declared else ():
        findings.append(Finding("warn", "labels", "misspelt_labels", text, (place,)))
    rows_of = rows_by_label(splits, gold)
    in_training = {label: of_split["train"] for label, of_split in rows_of.items() if "train" in of_split}
    rare = {label: rows for label, rows in in_training.items() if len(rows) < _FEW}
    if rare:
        shown = _list_items([f"{label!r} ({len(rows)})" for label, rows in rare.items()])
        places = places_of(train, [rows[0] for rows in rare.values()])
        text = f"labels with fewer than {_FEW} training rows: {shown}"
        findings.append(Finding("warn", "labels", "rare_labels", text, places, len(rare)))
    for label, of_split in find_unseen_names(splits, gold).items():
        name, rows = next(iter(of_split.items()))
        text = f"the label {label!r} is in {len(rows):,} {name} rows and in no training row"
        findings.append(Finding("warn", "labels", "unseen_labels", text, places_of(splits[name], rows), len(rows)))
    absent = [label for label in types_of(declared or ()) if label != "O" and label not in rows_of]
    if absent:
        shown = _list_items([repr(label) for label in dict.fromkeys(absent)])
        findings.append(Finding("warn", "labels", "unseen_labels", f"no row has these labels of the recipe: {shown}"))
    return findings


def count_gold(splits: Mapping[str, Split], gold: str) -> list[Finding]:
    """Describe the gold values of each split: the share of each label, or the range of numbers."""
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
    names = (types_of(value) if isinstance(value, (str, list)) else [str(value)] for value in values)
    counts = Counter(chain.from_iterable(names))
    total = sum(counts.values())
    shown = [f"{list_names([name])} {count:,} ({100 * count / total:.1f}%)" for name, count in counts.most_common()]
    return f"{len(counts)} labels: {_list_items(shown)}"


def _list_items(items: Sequence[str]) -> str:
    return ", ".join(items[:_SHOWN]) + (f", {len(items) - _SHOWN:,} more" if len(items) > _SHOWN else "")
