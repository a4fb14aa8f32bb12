"""Read the splits of a recipe from a folder, a file, a dataset on the Hub, the demo, or memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

from bertkit.data.columns import PAIR, ColumnSpec
from bertkit.data.demo import open_demo
from bertkit.data.files import (
    SPLIT_NAMES,
    find_files,
    find_format,
    find_splits,
    guess_folder_format,
    guess_format,
    missing_path_error,
    not_a_file_error,
    read_records,
)
from bertkit.data.remote import find_source, name_source, read_hub_split
from bertkit.data.rows import Split, read_split
from bertkit.data.sampling import hold_out
from bertkit.data.text import Record
from bertkit.errors import DataError, did_you_mean
from bertkit.progress import log
from bertkit.recipe.load import format_assignment
from bertkit.recipe.records import CorpusConfig, DataConfig, Recipe
from bertkit.recipe.sections import Row
from bertkit.storage import hub
from bertkit.storage.cache import log_once

ALL = "all"
"""Name of the split with all rows of a single file."""

ROWS = "row"
"""Name of rows in memory in messages, before the row number."""

ReadRow = Callable[[Row], Row | None]
"""Function that checks and converts a row for a task family, or returns None to skip it."""

ChooseSplit = Callable[[str], bool]
"""Function that returns whether to read a split, by its name."""

ReadRecords = Callable[[], Iterable[Record]]
"""Function that reads a source of rows from the start."""

SplitSources = Mapping[str, tuple[str, ReadRecords]]
"""Split -> name of its source, and function that reads it."""


def is_validation(split: str) -> bool:
    """Return whether a split is a validation split; MNLI has two."""
    return split.startswith("validation")


def read_splits(
    recipe: Recipe,
    columns: ColumnSpec,
    read: ReadRow,
    choose: ChooseSplit,
    *,
    has_label_names: bool = False,
    check_rest: bool = False,
    row_errors: list[DataError] | None = None,
) -> dict[str, Split]:
    """Read some splits, ``train`` first.

    If a source has no validation split, a fraction of its training rows is held out; see `hold_out`.

    Args:
        recipe: Recipe with the source in its data section.
        columns: Canonical columns of the task family.
        read: Function that returns a checked row, or None to skip it.
        choose: Function that returns whether to read a split.
        has_label_names: Whether gold values are label names, or lists of label names.
        check_rest: Whether to read the first row of each file of the other splits, as a check.
        row_errors: List that gets the errors of rows, which are then skipped; without it, errors are raised.

    Raises:
        DataError: If there is no data, or rows, columns or splits do not match the recipe.
        RecipeError: If ``data.format`` names no format.
        UnavailableError: If a dataset on the Hub cannot be reached.
    """
    # 1. Find the splits of the source: a single file, a file per split, values of a column, or a dataset on the Hub.
    data, sources = _open_source(recipe, choose, check_rest=check_rest)
    is_single = ALL in sources
    is_by_column = is_single and data.split_column is not None
    if is_by_column:
        sources = _group_by_column(*sources[ALL], data, choose)

    def read_one(name: str, settings: DataConfig = data) -> Split:
        source, records = sources[name]
        return read_split(name, records(), settings, columns, read, source, row_errors)

    # 2. Without validation rows, divide the rows of a single file, or the training rows.
    undivided_name = ALL if is_single else "train"
    lacks_validation = undivided_name in sources and not is_by_column and not any(map(is_validation, sources))
    if lacks_validation and not (is_single and choose(ALL)) and (choose("train") or choose("validation")):
        # Read all rows, because the limit must not change which rows are held out.
        undivided_rows = read_one(undivided_name, data.model_copy(update={"limit": None}))
        if is_single:
            _warn_of_split_column(undivided_rows, sources[ALL][1])
        parts = hold_out(undivided_rows, data, columns, has_label_names=has_label_names)
        splits = {name: part.head(data.limit) for name, part in parts.items()}
        splits |= {name: read_one(name) for name in sources if name != undivided_name and choose(name)}
        return {name: split for name, split in splits.items() if choose(name)}
    # 3. Otherwise, read each split, and log the recipe's splits that the source lacks.
    for name in sorted(set(data.splits) - set(sources)):
        if choose(name) and data.source and not is_single:
            log.info(f"no {data.splits[name]} in {data.source}, so it is not scored")
    return {name: read_one(name) for name in sorted(sources, key=lambda name: (name != "train", name)) if choose(name)}


def _open_source(recipe: Recipe, choose: ChooseSplit, *, check_rest: bool) -> tuple[DataConfig, SplitSources]:
    """Return the data settings, and the source of each split, or of `ALL` rows."""
    data = recipe.data
    find_format(data.format)  # raise an error for a wrong name even if no file is read
    if data.source == "demo":
        return open_demo(recipe)
    if data.rows is not None:
        source_names = {name: ROWS if name == ALL else f"{name} {ROWS}" for name in data.rows}
        return data, {name: (source_names[name], partial(enumerate, rows, 1)) for name, rows in data.rows.items()}
    check_source(data)
    if file := find_single_file(data):
        return data, {ALL: (name_source(file), partial(read_records, file, data))}
    files = find_split_files(data)
    if files is None:
        source_names = {name: data.splits.get(name, name) for name in ("train", "validation", "test", *data.splits)}
        return data, {
            name: (f"{data.source}:{split}", partial(read_hub_split, data, split))
            for name, split in source_names.items()
        }
    # Read the first row of files that are needed later, to find errors before hours of training.
    for file in chain.from_iterable(files[name] for name in files if check_rest and not choose(name)):
        next(iter(read_records(file, data)), None)
    return data, {name: (name_source(paths[0]), partial(_read_files, paths, data)) for name, paths in files.items()}


def _warn_of_split_column(rows: Split, records: ReadRecords) -> None:
    """Warn about an unread column that seems to name the split of each row."""
    first = next(iter(records()))[1] if rows.unread_columns else {}
    for column in [name for name in rows.unread_columns if {*find_splits([str(first[name])], {})} & {*SPLIT_NAMES}]:
        remedy = f"--set {format_assignment('data.split_column', column)} reads it"
        log_once(f"warning: column {column!r} of {rows.source} names the split of each row and is not read; {remedy}")


def _group_by_column(source: str, records: ReadRecords, data: DataConfig, choose: ChooseSplit) -> SplitSources:
    """Read all rows, and group them by the split that a column names."""
    by_name: dict[str, list[Record]] = {}
    for line, values in records():
        if data.split_column not in values:
            hint = did_you_mean(str(data.split_column), values)
            raise DataError(f"data.split_column: no column {data.split_column!r}", hint, file=source)
        by_name.setdefault(str(values[data.split_column]), []).append((line, values))
    by_split = {
        split: sorted(chain.from_iterable(map(by_name.__getitem__, names)), key=itemgetter(0))
        for split, names in find_splits(by_name, data.splits).items()
    }
    selected = {split for split in by_split if choose(split)}
    unread = [f"{name!r} ({len(rows):,})" for name, rows in by_split.items() if name not in (*selected, *SPLIT_NAMES)]
    if unread:
        log_once(f"rows of {source} that are not read, by their {data.split_column!r}: {', '.join(unread)}")
    return {split: (source, partial(iter, rows)) for split, rows in by_split.items()}


def use_recorded_data(recipe: Recipe, identity: Mapping[str, Any]) -> Recipe:
    """Return the recipe with the data settings of an earlier run, so that it reads and holds out the same rows."""
    changes: dict[str, Any] = {"hold_out": identity["hold_out"]} if "hold_out" in identity else {}
    columns = identity.get("recipe", {}).get("data", {}).get("columns")
    # Ignore a column `text_pair` if the run did not read it; by default, it would be read.
    if columns is not None and PAIR not in (*columns, *recipe.data.columns):
        changes["ignore_columns"] = [*recipe.data.ignore_columns, PAIR]
    return recipe.replace("data", **changes)


def check_source(data: DataConfig | CorpusConfig) -> None:
    """Check that a recipe names its data.

    Raises:
        DataError: If the recipe names no data.
    """
    if not data.source and not data.files:
        raise DataError("the recipe names no data", "add --data FILE, a directory, or a dataset on the Hub")


def find_single_file(data: DataConfig | CorpusConfig) -> Path | None:
    """Return the file with all rows, or the folder that is read as one source, or None for other sources.

    If the source is an address, the file is its copy in the cache.
    """
    if data.files or not data.source:
        return None
    file = find_source(data.source)
    return file if file.is_file() or (file.is_dir() and guess_folder_format(file)) else None


def find_unsplit_file(data: DataConfig) -> Path | None:
    """Return the single file whose rows are divided into splits, or None if the source has splits."""
    return find_single_file(data) if data.split_column is None else None


def _read_files(files: Iterable[Path], data: DataConfig) -> Iterator[Record]:
    return chain.from_iterable(read_records(file, data) for file in files)


def find_split_files(data: DataConfig) -> dict[str, list[Path]] | None:
    """Return split -> its files, or None if the source is a name on the Hub.

    ``data.files`` adds or replaces splits of the source. If the source is a file, it has the training rows.

    Raises:
        DataError: If the source does not exist, or `find_files` finds no files.
        UnavailableError: If an address cannot be reached.
    """
    folder = find_source(data.source)
    if data.files:
        base = folder if data.source and folder.is_dir() else Path()
        paths = {name: find_source(file) for name, file in data.files.items()}
        given_files = {
            split: [paths[name] if paths[name].exists() else base / paths[name] for name in names]
            for split, names in find_splits(data.files, {}).items()
        }
        files = {**({"train": [folder]} if folder.is_file() else {}), **given_files}
        return {**find_files(folder, data, given_splits=files), **files} if folder.is_dir() and data.source else files
    if folder.is_dir():
        return find_files(folder, data)
    if folder.exists():
        raise not_a_file_error(folder)
    # A name that looks like a path is a missing file; the Hub's error would be less helpful.
    name = hub.split_revision(data.source)[0]
    if name.startswith((".", "/", "~")) or Path(name).suffix or name.count("/") > 1:
        raise missing_path_error(folder)
    return None


def missing_split_error(split: str, data: DataConfig, splits: Iterable[str]) -> DataError:
    """Return the error for a missing split; for a folder, it lists the files that are not used as splits."""
    message = f"no {split} split (found: {', '.join(splits) or 'none'}"
    remedy = "name it in data.splits or data.files"
    folder = Path(data.source)
    if not data.source or not folder.is_dir():
        return DataError(f"{message})", remedy)
    split_files = [path for paths in (find_split_files(data) or {}).values() for path in paths]
    unused = [path.name for path in sorted(folder.glob("[!.]*")) if path.is_file() and path not in split_files]
    message += f"; other files: {', '.join(unused[:10])}{', ...' if len(unused) > 10 else ''}" if unused else ""
    readable = [name for name in unused if guess_format(name)[0]]
    if readable:
        remedy = f"add --set {format_assignment(f'data.files.{split}', readable[0] if len(readable) == 1 else 'FILE')}"
    return DataError(f"{message})", remedy, file=folder)
