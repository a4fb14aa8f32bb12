"""Rows that a model answers: read chunk by chunk, each row as its file has it and as the task family reads it."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertkit.data.columns import describe_unread, source_columns
from bertkit.data.files import read_records
from bertkit.data.remote import find_source, is_remote
from bertkit.data.rows import canonical_records, is_blank, locate_row
from bertkit.data.sources import find_split_files
from bertkit.data.text import Record
from bertkit.errors import BertkitError, DataError, UsageError, did_you_mean, error_location
from bertkit.evaluation.checkpoint import CheckpointInfo
from bertkit.progress import log
from bertkit.recipe.records import Recipe
from bertkit.recipe.sections import Row, expand_path
from bertkit.storage.files import to_json
from bertkit.tasks import Task, row_columns

# Enough rows to sort them by length, and few enough to hold in memory.
CHUNK_ROWS = 4096


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of a source."""

    source: str
    """Name of the source in error messages."""
    start: int
    """Index of the first row in the source."""
    originals: list[dict[str, Any]]
    """Columns of each row in the source."""
    rows: list[Row]
    """Canonical columns of each row."""

    def digest(self) -> str:
        """Return a SHA-256 checksum of the rows."""
        return hashlib.sha256(to_json([self.originals, self.rows]).encode()).hexdigest()


def open_rows(
    saved: CheckpointInfo, source: str | Path | None, row: Row | None
) -> tuple[CheckpointInfo, Iterable[Record]]:
    """Return the rows of a file or a single row, and the checkpoint with the recipe that reads them.

    Raises:
        UsageError: If there is neither a file nor a row, or the row lacks a column.
    """
    if row is not None:
        return replace(saved, recipe=_with_row_columns(row, saved.recipe, saved.task)), [(1, row)]
    if source is None:
        raise UsageError("nothing to predict", "name a FILE, or `-`, or give --text or --row column=value")
    return saved, read_records(find_source(source), saved.recipe.data)


def read_chunks(saved: CheckpointInfo, records: Iterable[Record], source: str) -> Iterator[Chunk]:
    """Yield rows in chunks.

    A stream (``-``) cannot be repaired and read again, so the rows before a fault are yielded first.

    Raises:
        DataError: If a row or a column is wrong.
    """
    recipe, task = saved.recipe, saved.task
    # Rows may lack the gold column. If they have it, it is copied to the output and not read.
    columns = replace(task.COLUMNS, gold="")
    blank, start, faults = 0, 0, list[DataError]()
    rows = canonical_records(records, recipe.data, columns, source)
    rows = _until_fault(rows, faults) if source == "-" else rows
    while lines := list(itertools.islice(rows, CHUNK_ROWS)):
        originals, canonical = [], []
        for line, original, row in lines:
            with error_location(**locate_row(source, line, original)._asdict()):
                canonical.append(task.read(row, recipe) or row)
            originals.append(_rename_gold_spans(original) if columns.spans else original)
            blank += any(is_blank(value) for name, value in row.items() if name not in columns.blank)
        yield Chunk(source, start, originals, canonical)
        start += len(lines)
    for fault in faults:
        raise fault
    if blank:
        log.info(f"{blank:,} rows have no text; they are predicted anyway")


def _until_fault(
    rows: Iterable[tuple[int, dict[str, Any], Row]], faults: list[DataError]
) -> Iterator[tuple[int, dict[str, Any], Row]]:
    """Yield rows until the end or the first fault, which is added to `faults`."""
    try:
        yield from rows
    except DataError as error:
        faults.append(error)


def _rename_gold_spans(original: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a row, with its lists of gold spans under names that predictions do not have."""
    names = {
        name: f"gold_{name}" for name in ("spans", "entities") if isinstance(original.get(name), (list, type(None)))
    }
    return {names.get(name, name): value for name, value in original.items()}


def _with_row_columns(row: Row, recipe: Recipe, task: Task) -> Recipe:
    """Return the recipe for a row whose columns are canonical already.

    Raises:
        UsageError: If a column that the recipe needs is missing, or a column is unknown.
    """
    columns, needed = task.COLUMNS, row_columns(task, recipe)
    names = [*needed, "id"]
    for name in row:
        if name in columns.optional and name not in names:
            raise UsageError(f"the model was trained without {name}", "leave it out")
        if name not in names:
            raise UsageError(f"no canonical column is called {name!r}", did_you_mean(name, names))
    for name, instead in columns.fallback_columns.items():
        if name in row and instead in row:
            raise UsageError(f"{name} and {instead} are two forms of the same input", "give one of them")
    for name in (name for name, is_needed in needed.items() if is_needed):
        if name not in row and columns.fallback_columns.get(name) not in row:
            instead = columns.fallback_columns.get(name, name)
            raise UsageError(f"this recipe needs {instead} too", f'--row {instead}="..."')
    return recipe.changed("data", columns={name: name for name in row})


def warn_of_unread(names: Iterable[str], saved: CheckpointInfo) -> None:
    """Log the columns of a row that look like input but are not read by the model."""
    recipe = saved.recipe
    used = {column for name in row_columns(saved.task, recipe) for column in source_columns(name, recipe.data)}
    unread = [name for name in names if name not in used]
    for line in describe_unread(unread, recipe.data.model_copy(update={"ignore_columns": []}), ()):
        log.warning(f"warning: {line}")


def find_input_files(source: str | Path | None, saved: CheckpointInfo) -> Iterator[tuple[str, Path]]:
    """Yield a description and the path of each file that an output must not replace.

    These are the file with the rows, the data files of the recipe, and the files of the model.
    """
    if source is not None:
        yield "the file to predict", Path("/dev/stdin") if str(source) == "-" else expand_path(source)
    data = saved.recipe.data
    if not any(map(is_remote, (data.source, *data.files.values()))):
        with suppress(BertkitError):  # The data of the recipe need not exist.
            for files in (find_split_files(data) or {}).values():
                yield from (("a data file of the recipe", file) for file in files)
    yield "a data file of the recipe", Path(data.source)
    folders = [member.folder for member in saved.members] or [saved.folder]
    yield from (
        ("a file of the model folder", file) for folder in folders for file in folder.rglob("*") if file.is_file()
    )
