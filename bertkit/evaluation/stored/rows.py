"""The rows of stored predictions: matched between runs, and with columns of the data that the task does not read."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

from bertkit.data.sources import ALL, unsplit_file
from bertkit.errors import DataError, shorten
from bertkit.evaluation.splits import read_task_splits
from bertkit.evaluation.stored import ON_FILE, Scorer, StoredRun
from bertkit.evaluation.stored.script_predictions import add_rows
from bertkit.recipe.sections import Row, typed_path
from bertkit.storage.disk import spool
from bertkit.tasks import Task
from bertkit.tokens.features import Rows


def read_rows(run: StoredRun, task: Task) -> Rows:
    """Return the rows of stored predictions, with the canonical columns of the task.

    Raises:
        DataError: they lack a column.
    """
    names, columns = task.COLUMNS.names, task.COLUMNS
    for number, record in enumerate(run.predictions, start=1):
        for name in filter(None, (*columns.given, columns.gold)):
            if name not in record and columns.text_instead.get(name) not in record:
                what = f"the row has no {name!r}, by which it is recognized and scored"
                raise DataError(what, "write each prediction into its row", file=run.file, row=number)
    return spool({name: record[name] for name in names if name in record} for record in run.predictions)


def align(run: StoredRun, reference: StoredRun, task: Task) -> StoredRun:
    """Bring the predictions of a run into the order of the rows of another.

    Rows are the same where their inputs and gold values are; of rows that recur, the first is the first. Predictions
    without rows get those of the other run, by their ids or in their order.

    Raises:
        DataError: the rows are not the same; the message has the first that differs.
    """
    if not run.has_rows:
        rows = spool(
            {name: value for name, value in record.items() if name in ("id", *task.COLUMNS.names)}
            for record in reference.predictions
        )
        return replace(run, predictions=add_rows(run.predictions, rows, task.COLUMNS.gold, run.file))
    keys, others = (_row_keys(one, task) for one in (run, reference))
    if keys == others:
        return run
    if Counter(keys) != Counter(others):
        raise _describe_mismatch(run, reference, task)
    waiting = defaultdict(list)
    for number, key in enumerate(keys):
        waiting[key].append(number)
    return replace(run, predictions=spool(run.predictions[waiting[key].pop(0)] for key in others))


def _row_keys(run: StoredRun, task: Task, *, gold: bool = True) -> list[bytes]:
    """Return what rows are recognized by, a digest each; an id may be a mere number, so it does not count."""
    left_out = {"id"} if gold else {"id", task.COLUMNS.gold}
    rows = ({name: value for name, value in row.items() if name not in left_out} for row in read_rows(run, task))
    return [hashlib.blake2b(json.dumps(row, sort_keys=True).encode(), digest_size=16).digest() for row in rows]


def _describe_mismatch(run: StoredRun, reference: StoredRun, task: Task) -> DataError:
    keys, others = (_row_keys(one, task) for one in (run, reference))
    known = set(others)
    number = next((number for number, key in enumerate(keys) if key not in known), None)
    if number is None:
        what = f"{len(keys):,} rows, and {reference.name} has {len(others):,}"
        if len(keys) == len(others):
            what = f"the rows recur otherwise than in {reference.name}"
        return DataError(what, ON_FILE, file=run.file)
    inputs, with_inputs = (_row_keys(one, task, gold=False) for one in (run, reference))
    if inputs[number] in with_inputs:
        column = task.COLUMNS.gold
        other = reference.predictions[with_inputs.index(inputs[number])][column]
        what = f"another {column} than in {reference.name}: {run.predictions[number][column]!r} here, {other!r} there"
        return DataError(shorten(what, 300), ON_FILE, file=run.file, row=number + 1)
    same = sum((Counter(keys) & Counter(others)).values())
    what = f"not a row of {reference.name}: {same:,} of {len(keys):,} rows are the same"
    return DataError(what, ON_FILE, file=run.file, row=number + 1)


def read_column(column: str, scorer: Scorer, run: StoredRun, rows: Rows) -> list[Any]:
    """Return a column of the data for each row: of the stored rows, or else of the data set that the run has scored.

    Raises:
        DataError: no such column, or the data set has other rows now.
    """
    recipe, columns = scorer.recipe, scorer.task.COLUMNS
    canonical = next((name for name, source in recipe.data.columns.items() if source == column), column)
    if canonical in rows[0]:
        return [row.get(canonical) for row in rows]
    data = recipe.data.model_copy(update={"columns": {**recipe.data.columns, column: column}})
    with_column = replace(columns, beside=(column,))
    split = str(run.record.get("split", ALL if unsplit_file(data) else "validation"))
    try:
        changed = recipe.model_copy(update={"data": data})
        read = read_task_splits(changed, scorer.task, lambda name: name == split, columns=with_column)
    except DataError as error:
        if repr(column) in error.what:
            error.remedy = "name another column with --by"
        raise
    if split not in read:
        raise DataError(f"no split {split!r} in {data.source}", "name another --split")

    def key(row: Row) -> str:
        return json.dumps([row.get(name) for name in (*columns.given, *columns.optional)], default=str)

    values = {key(row): row[column] for row in read[split].rows}
    missing = [row for row in rows if key(row) not in values]
    if missing:
        what = f"{len(missing):,} of the {len(rows):,} rows are no longer in the data set, so --by {column} is unknown"
        raise DataError(what, "restore it, or leave --by out", file=typed_path(data.source) if data.source else None)
    return [values[key(row)] for row in rows]
