"""Rows to predict, read in chunks; each row is kept with its original columns and with canonical columns."""

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
from bertkit.tasks import Task, get_input_columns

# Enough rows to sort them by length, and few enough to hold in memory.
CHUNK_ROWS = 4096


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of a source."""

    source: str
    """Name of the file or stream, for error messages."""
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
    info: CheckpointInfo, source: str | Path | None, row: Row | None
) -> tuple[CheckpointInfo, Iterable[Record]]:
    """Return the checkpoint with a recipe that fits the rows, and the rows of a file or a single row.

    Raises:
        UsageError: If there is neither a file nor a row, or the row lacks a column.
    """
    if row is not None:
        return replace(info, recipe=_with_row_columns(row, info.recipe, info.task)), [(1, row)]
    if source is None:
        raise UsageError("nothing to predict", "name a FILE, or `-`, or give --text or --row column=value")
    return info, read_records(find_source(source), info.recipe.data)


def read_chunks(info: CheckpointInfo, records: Iterable[Record], source: str) -> Iterator[Chunk]:
    """Yield rows in chunks.

    A stream (``-``) cannot be corrected and read again, so the rows before an invalid row are yielded first.

    Raises:
        DataError: If a row or a column is wrong.
    """
    recipe, task = info.recipe, info.task
    # Rows can lack the gold column, which is copied to the output but not read.
    columns = replace(task.COLUMNS, gold="")
    blank_count, start, errors = 0, 0, list[DataError]()
    rows = canonical_records(records, recipe.data, columns, source)
    rows = _until_error(rows, errors) if source == "-" else rows
    while chunk := list(itertools.islice(rows, CHUNK_ROWS)):
        originals, canonical_rows = [], []
        for line_number, original, row in chunk:
            with error_location(**locate_row(source, line_number, original)._asdict()):
                canonical_rows.append(task.read(row, recipe) or row)
            originals.append(_rename_gold_spans(original) if columns.spans else original)
            blank_count += any(is_blank(value) for name, value in row.items() if name not in columns.blank)
        yield Chunk(source, start, originals, canonical_rows)
        start += len(chunk)
    for error in errors:
        raise error
    if blank_count:
        log.info(f"{blank_count:,} rows have no text; they are predicted anyway")


def _until_error(
    rows: Iterable[tuple[int, dict[str, Any], Row]], errors: list[DataError]
) -> Iterator[tuple[int, dict[str, Any], Row]]:
    """Yield rows until the first error, which is added to `errors`."""
    try:
        yield from rows
    except DataError as error:
        errors.append(error)


def _rename_gold_spans(original: dict[str, Any]) -> dict[str, Any]:
    """Rename the columns of gold spans, because predictions have columns of these names."""
    names = {
        name: f"gold_{name}" for name in ("spans", "entities") if isinstance(original.get(name), (list, type(None)))
    }
    return {names.get(name, name): value for name, value in original.items()}


def _with_row_columns(row: Row, recipe: Recipe, task: Task) -> Recipe:
    """Return the recipe for a row with canonical columns.

    Raises:
        UsageError: If a required column is missing, or a column is unknown.
    """
    columns, required = task.COLUMNS, get_input_columns(task, recipe)
    names = [*required, "id"]
    for name in row:
        if name in columns.optional and name not in names:
            raise UsageError(f"the model was trained without {name}", "leave it out")
        if name not in names:
            raise UsageError(f"no canonical column is called {name!r}", did_you_mean(name, names))
    for name, fallback in columns.fallback_columns.items():
        if name in row and fallback in row:
            raise UsageError(f"{name} and {fallback} are two forms of the same input", "give one of them")
    for name in (name for name, is_required in required.items() if is_required):
        if name not in row and columns.fallback_columns.get(name) not in row:
            fallback = columns.fallback_columns.get(name, name)
            raise UsageError(f"this recipe needs {fallback} too", f'add --row {fallback}="..."')
    return recipe.replace("data", columns={name: name for name in row})


def warn_of_unread(names: Iterable[str], info: CheckpointInfo) -> None:
    """Log the columns of a row that look like input but are not read by the model."""
    recipe = info.recipe
    used = {column for name in get_input_columns(info.task, recipe) for column in source_columns(name, recipe.data)}
    unread = [name for name in names if name not in used]
    for line in describe_unread(unread, recipe.data.model_copy(update={"ignore_columns": []}), ()):
        log.warning(f"warning: {line}")


def find_input_files(source: str | Path | None, info: CheckpointInfo) -> Iterator[tuple[str, Path]]:
    """Yield a description and the path of each file that an output must not replace.

    These are the file with the rows, the data files of the recipe, and the files of the model.
    """
    if source is not None:
        yield "the file to predict", Path("/dev/stdin") if str(source) == "-" else expand_path(source)
    data = info.recipe.data
    if not any(map(is_remote, (data.source, *data.files.values()))):
        with suppress(BertkitError):  # The data of the recipe need not exist.
            for files in (find_split_files(data) or {}).values():
                yield from (("a data file of the recipe", file) for file in files)
    yield "a data file of the recipe", Path(data.source)
    folders = [member.folder for member in info.members] or [info.folder]
    yield from (
        ("a file of the model folder", file) for folder in folders for file in folder.rglob("*") if file.is_file()
    )
