"""Predict any number of rows: read, encode, run, decode and write in chunks, one record per row, in order."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertkit.data.files import read_records
from bertkit.data.rows import canonical_records, is_blank
from bertkit.data.text import Record
from bertkit.errors import DataError, UsageError, closest
from bertkit.evaluation.checkpoint import Checkpoint, SavedCheckpoint, find_checkpoint
from bertkit.evaluation.scoring import run_model
from bertkit.progress import SILENT, Progress
from bertkit.recipe import Recipe, Row, typed_path
from bertkit.tasks import Task, drop_private_keys

log = logging.getLogger("bertkit")

_CHUNK = 4096  # rows in memory at a time: enough to sort by length, little enough for any file


def predict(
    recipe: Recipe, *, source: str | Path | None = None, row: Row | None = None, progress: Progress = SILENT
) -> Iterator[dict[str, Any]]:
    """Predict the rows of a file (``-`` for standard input) or one row given by canonical columns.

    Returns:
        one record per row, in order: ``id`` (the row's own, or its number from 0), its original columns, and what
        the task family predicts.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    saved = find_checkpoint(recipe)
    if row is not None:
        saved = replace(saved, recipe=_with_columns_of(row, recipe, saved.task))
    records = _records(source, row, saved.recipe)
    chunks = _chunks(records, saved, str(source or "--row"))
    first = next(chunks)  # a file that cannot be read ends in its error before the model is loaded
    return _predict_chunks(itertools.chain([first], chunks), saved.load(), progress)


def _with_columns_of(row: Row, recipe: Recipe, task: Task) -> Recipe:
    """Return the recipe for a row whose columns are canonical already.

    Raises:
        UsageError: a column that the recipe needs is missing, or one is unknown.
    """
    columns = task.COLUMNS
    names = [name for name in columns.names if name != columns.gold]
    for name in row:
        if name not in names:
            raise UsageError(f"no canonical column is called {name!r}", closest(name, names))
    for name, instead in columns.text_instead.items():
        if name in row and instead in row:
            raise UsageError(f"{name} and {instead} are two forms of the same input", "give one of them")
    required = [*columns.given, *(name for name in columns.optional if name in recipe.data.columns)]
    for name in required:
        if name not in row and columns.text_instead.get(name) not in row:
            instead = columns.text_instead.get(name, name)
            raise UsageError(f"this recipe needs {instead} too", f'--row {instead}="..."')
    data = recipe.data.model_copy(update={"columns": {name: name for name in row}})
    return recipe.model_copy(update={"data": data})


def _records(source: str | Path | None, row: Row | None, recipe: Recipe) -> Iterable[Record]:
    if row is not None:
        return [(1, row)]
    if source is None:
        raise UsageError("nothing to predict", "name a FILE, or `-`, or give --text or --row column=value")
    return read_records(typed_path(source), recipe.data)


def _chunks(
    records: Iterable[Record], saved: SavedCheckpoint, source: str
) -> Iterator[tuple[list[dict[str, Any]], list[Row]]]:
    """Yield the original columns and the canonical rows, chunk by chunk."""
    recipe, task = saved.recipe, saved.task
    columns = replace(task.COLUMNS, gold="")
    blank = 0
    rows = canonical_records(records, recipe.data, columns, source)
    while chunk := list(itertools.islice(rows, _CHUNK)):
        originals, canonical = [], []
        for line, original, row in chunk:
            try:
                canonical.append(task.read(row, recipe) or row)
            except DataError as error:
                error.file, error.row = source, line
                raise
            originals.append(original)
            blank += any(is_blank(value) for name, value in row.items() if name not in columns.blank)
        yield originals, canonical
    if blank:
        log.info(f"{blank:,} rows have no text; they are predicted all the same")


def _predict_chunks(
    chunks: Iterable[tuple[list[dict[str, Any]], list[Row]]],
    checkpoint: Checkpoint,
    progress: Progress,
) -> Iterator[dict[str, Any]]:
    task, number = checkpoint.task, itertools.count()
    for originals, rows in chunks:
        features = task.encode(rows, checkpoint.setup)
        outputs, _ = run_model(checkpoint, features, progress, "predicting")
        predictions = task.decode(outputs, features, rows, checkpoint.setup)
        for original, row, prediction in zip(originals, rows, map(drop_private_keys, predictions), strict=True):
            clash = sorted(set(original) & set(prediction))
            if clash:
                raise DataError(f"the rows already have a column {clash[0]!r}", "rename it, so that nothing is lost")
            position = next(number)
            yield {"id": row.get("id", original.get("id", position)), **original, **prediction}
