"""Read the splits of a recipe from a folder, a file, a dataset on the Hub, the demo, or memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

from bertkit.data.columns import PAIR, Columns
from bertkit.data.demo import open_demo
from bertkit.data.draw import hold_out
from bertkit.data.files import (
    SPLIT_NAMES,
    find_files,
    find_format,
    find_splits,
    format_of,
    format_of_folder,
    not_a_file,
    not_there,
    read_records,
)
from bertkit.data.hub_sets import read_hub_split
from bertkit.data.rows import Split, read_split
from bertkit.data.text import Record
from bertkit.errors import DataError, closest
from bertkit.progress import log
from bertkit.recipe.load import assignment
from bertkit.recipe.records import Corpus, Data, Recipe
from bertkit.recipe.sections import Row
from bertkit.storage import hub
from bertkit.storage.cache import say_once

ALL = "all"
"""The name of the split that is every row of a single file."""

ROWS = "row"
"""What stands before the number of a row in memory in messages."""

Read = Callable[[Row], Row | None]
"""Checks a row for a task family, and may change it; None leaves it out."""

Choose = Callable[[str], bool]
"""Tells by its name whether a split is to be read."""

MakeSplit = Callable[..., Split]
"""`read_split` with the columns and the checks of a task family."""

Open = Callable[[], Iterable[Record]]
"""Opens a source of rows anew at each call."""


def is_validation(split: str) -> bool:
    """Tell whether a split serves to validate: MNLI has two that do."""
    return split.startswith("validation")


def read_splits(
    recipe: Recipe,
    columns: Columns,
    read: Read,
    choose: Choose,
    *,
    named: bool = False,
    check_rest: bool = False,
    collected: list[DataError] | None = None,
) -> dict[str, Split]:
    """Read the chosen splits, ``train`` first.

    Where a source has no validation split, a share of its training rows is held out as one; see `hold_out`.

    Args:
        recipe: its data section says where rows are.
        columns: canonical columns of the task family.
        read: returns a checked row, or None to leave it out.
        choose: tells which splits to read.
        named: whether gold values are label names, or lists of them.
        check_rest: check by their first row that the files of other splits can be read.
        collected: gets the faults of rows, which are then left out; without it, they are raised.

    Raises:
        DataError: no data, or rows, columns or splits that are not as the recipe says.
        RecipeError: ``data.format`` names no format.
        UnavailableError: a hub data set that cannot be reached.
    """
    data = recipe.data
    find_format(data.format)  # a wrong name is an error where no file is read too
    make_split = partial(read_split, columns=columns, read=read, collected=collected)
    opened: Mapping[str, tuple[str | Path, Open]]
    if data.source == "demo":
        data, opened = open_demo(recipe)
        return _read_opened(opened, data, columns, make_split, choose, named)
    if data.rows and ALL in data.rows:
        records = partial(enumerate, data.rows[ALL], 1)
        return _read_unsplit(ROWS, records, data, columns, make_split, choose, named)
    if data.rows is not None:
        opened = {name: (f"{name} {ROWS}", partial(enumerate, rows, 1)) for name, rows in data.rows.items()}
        return _read_opened(opened, data, columns, make_split, choose, named)
    check_source(data)
    if file := single_file(data):
        return _read_unsplit(file, partial(read_records, file, data), data, columns, make_split, choose, named)
    files = files_by_split(data)
    if files is None:
        return _read_hub(data, make_split, choose)

    # The first row of files that are read later: a wrong one is told before hours of training.
    for file in chain.from_iterable(files[name] for name in files if check_rest and not choose(name)):
        next(iter(read_records(file, data)), None)
    opened = {name: (paths[0], partial(_read_files, paths, data)) for name, paths in files.items()}
    return _read_opened(opened, data, columns, make_split, choose, named)


def as_recorded(recipe: Recipe, identity: Mapping[str, Any]) -> Recipe:
    """Return a recipe that reads and holds out rows as the run with an identity did, whatever is the default today."""
    changes: dict[str, Any] = {"hold_out": identity["hold_out"]} if "hold_out" in identity else {}
    columns = identity.get("recipe", {}).get("data", {}).get("columns")
    # A column that the run did not read stays unread, though today it would be found by its name.
    if columns is not None and PAIR not in (*columns, *recipe.data.columns):
        changes["unread"] = [*recipe.data.unread, PAIR]
    return recipe.changed("data", **changes)


def check_source(data: Data | Corpus) -> None:
    """Check that a recipe names its data.

    Raises:
        DataError: it does not.
    """
    if not data.source and not data.files:
        raise DataError("the recipe names no data", "--data FILE, a directory, or a hub data set")


def single_file(data: Data | Corpus) -> Path | None:
    """Return the file that a source is, or the folder that is read whole; None for other folders, and for the hub.

    Nor is it one where the recipe names files split by split.
    """
    file = Path(data.source)
    if data.files or not data.source:
        return None
    return file if file.is_file() or (file.is_dir() and format_of_folder(file)) else None


def unsplit_file(data: Data) -> Path | None:
    """Return the single file that does not say to which split its rows belong, so that some are held out."""
    return single_file(data) if data.split_column is None else None


def _without_limit(data: Data) -> Data:
    """Return settings that read all rows: which of them are held out must not depend on how many are used."""
    return data.model_copy(update={"limit": None})


def _hold_out(split: Split, data: Data, columns: Columns, named: bool) -> dict[str, Split]:
    both = hold_out(split, data, columns, named=named)
    return {name: part.first(data.limit) for name, part in both.items()}


def _read_files(files: Iterable[Path], data: Data) -> Iterator[Record]:
    return chain.from_iterable(read_records(file, data) for file in files)


def _read_opened(
    opened: Mapping[str, tuple[str | Path, Open]],
    data: Data,
    columns: Columns,
    make_split: MakeSplit,
    choose: Choose,
    named: bool,
) -> dict[str, Split]:
    """Read splits, each with the name of its source and what opens that."""

    def read(name: str, data: Data = data) -> Split:
        source, records = opened[name]
        return make_split(name, records(), data, source=source)

    if not any(map(is_validation, opened)) and "train" in opened and (choose("train") or choose("validation")):
        both = _hold_out(read("train", _without_limit(data)), data, columns, named)
        rest = {name: read(name) for name in opened if name != "train" and choose(name)}
        return {name: split for name, split in {**both, **rest}.items() if choose(name)}
    for name in sorted(set(data.splits) - set(opened)):
        if choose(name) and data.source:
            log.info(f"no {data.splits[name]} in {data.source}: it is not scored")
    return {name: read(name) for name in sorted(opened, key=_order) if choose(name)}


def _read_unsplit(
    source: str | Path, records: Open, data: Data, columns: Columns, make_split: MakeSplit, choose: Choose, named: bool
) -> dict[str, Split]:
    """Read rows of a single source, which are split by a column or by a draw."""
    if data.split_column is None:
        if choose(ALL):
            return {ALL: make_split(ALL, records(), data, source=source)}
        split = make_split(ALL, records(), _without_limit(data), source=source)
        first = next(iter(records()))[1] if split.unread else {}
        for column in [name for name in split.unread if {*find_splits([str(first[name])], {})} & {*SPLIT_NAMES}]:
            remedy = f"--set {assignment('data.split_column', column)} reads it"
            say_once(f"warning: column {column!r} of {source} has the split of each row and is not read; {remedy}")
        splits = _hold_out(split, data, columns, named)
        return {name: split for name, split in splits.items() if choose(name)}
    by_name: dict[str, list[Record]] = {}
    for line, values in records():
        if data.split_column not in values:
            near = closest(data.split_column, values)
            raise DataError(f"no column {data.split_column!r}", f"{near} (data.split_column)", file=source)
        by_name.setdefault(str(values[data.split_column]), []).append((line, values))
    by_split = {
        split: sorted(chain.from_iterable(map(by_name.__getitem__, names)), key=itemgetter(0))
        for split, names in find_splits(by_name, data.splits).items()
    }
    read = {split for split in by_split if choose(split)}
    unread = [f"{name!r} ({len(rows):,})" for name, rows in by_split.items() if name not in (*read, *SPLIT_NAMES)]
    if unread:
        say_once(f"rows of {source} that are not read, by their {data.split_column!r}: {', '.join(unread)}")
    return {split: make_split(split, by_split[split], data, source=source) for split in sorted(read, key=_order)}


def files_by_split(data: Data) -> dict[str, list[Path]] | None:
    """Find the files of each split of a local source; None for a source that must be on the hub, since it is not here.

    Those that ``data.files`` names come beside those of the source, or in their stead: a source that is a file holds
    the training rows.

    Raises:
        DataError: the source is a path where nothing is, or as `find_files` does.
    """
    folder = Path(data.source)
    if data.files:
        base = folder if data.source and folder.is_dir() else Path()
        named = {
            split: [file if (file := Path(data.files[name])).exists() else base / file for name in names]
            for split, names in find_splits(data.files, {}).items()
        }
        files = {**({"train": [folder]} if folder.is_file() else {}), **named}
        return {**find_files(folder, data, named=files), **files} if folder.is_dir() and data.source else files
    if folder.is_dir():
        return find_files(folder, data)
    if folder.exists():
        raise not_a_file(folder)
    # What looks like a path is not asked of the hub, where it would end in a worse error.
    name = hub.split_revision(data.source)[0]
    if name.startswith((".", "/", "~")) or Path(name).suffix or name.count("/") > 1:
        raise not_there(folder)
    return None


def missing_split(split: str, data: Data, found: Iterable[str]) -> DataError:
    """Build the error for a split that a source does not have; of a folder, it names the files that are no split."""
    what, remedy = f"no {split} split (found: {', '.join(found) or 'none'}", "name it in data.splits or data.files"
    folder = Path(data.source)
    if not data.source or not folder.is_dir():
        return DataError(f"{what})", remedy)
    taken = [path for paths in (files_by_split(data) or {}).values() for path in paths]
    unused = [path.name for path in sorted(folder.glob("[!.]*")) if path.is_file() and path not in taken]
    what += f"; other files: {', '.join(unused[:10])}{', ...' if len(unused) > 10 else ''}" if unused else ""
    readable = [name for name in unused if format_of(name)[0]]
    if readable:
        remedy = f"--set {assignment(f'data.files.{split}', readable[0] if len(readable) == 1 else 'FILE')}"
    return DataError(f"{what})", remedy, file=folder)


def _read_hub(data: Data, make_split: MakeSplit, choose: Choose) -> dict[str, Split]:
    hub_names = {name: data.splits.get(name, name) for name in ("train", "validation", "test", *data.splits)}
    return {
        name: make_split(name, read_hub_split(data, hub_name), data, source=f"{data.source}:{hub_name}")
        for name, hub_name in hub_names.items()
        if choose(name)
    }


def _order(split: str) -> tuple[int, str]:
    return (0 if split == "train" else 1, split)
