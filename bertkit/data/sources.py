"""Where rows come from: the demo grammar, a directory, a file, or a data set on the hub."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from bertkit.data.files import SPLIT_NAMES, find_files, read_records
from bertkit.data.formats.csv import Record
from bertkit.data.hub_sets import read_hub_split
from bertkit.data.rows import Columns, Split, read_split
from bertkit.demo.rows import DEMO_KINDS, demo_rows
from bertkit.errors import DataError, closest
from bertkit.recipe import Data, Recipe, Row

log = logging.getLogger("bertkit")

ALL = "all"
_ALIASES = {alias: split for split, aliases in SPLIT_NAMES.items() for alias in aliases}

Read = Callable[[Row], Row | None]


def is_validation(split: str) -> bool:
    """Tell whether a split serves to validate: MNLI has two that do."""
    return split.startswith("validation")


def read_splits(recipe: Recipe, columns: Columns, read: Read, wanted: Callable[[str], bool]) -> dict[str, Split]:
    """Read the splits whose names are wanted, ``train`` first.

    A source without a validation split gives up a seeded share of its training rows for one.

    Raises:
        DataError: nothing there, or rows, columns or splits that are not as the recipe says.
        UnavailableError: a hub data set that cannot be reached.
    """
    data = recipe.data
    if data.source == "demo":
        return _read_demo(recipe, columns, read, wanted)
    if not data.source and not data.files:
        raise DataError("the recipe names no data", "--data FILE, a directory, or a hub data set")
    if not data.files and Path(data.source).expanduser().is_file():
        return _read_one_file(Path(data.source).expanduser(), data, columns, read, wanted)
    files = files_by_split(data)
    if files is None:
        return _read_hub(data, columns, read, wanted)

    def read_files(name: str) -> Split:
        records = chain.from_iterable(read_records(file, data) for file in files[name])
        return read_split(name, records, data, columns, read, files[name][0])

    if not any(map(is_validation, files)) and "train" in files and (wanted("train") or wanted("validation")):
        held_out = hold_out(read_files("train"), data.validation_share)
        others = {name: read_files(name) for name in files if name != "train" and wanted(name)}
        return {name: split for name, split in {**held_out, **others}.items() if wanted(name)}
    for name in sorted(set(data.splits) - set(files)):
        if wanted(name):
            log.info(f"no {data.splits[name]} in {data.source}: it is not scored")
    return {name: read_files(name) for name in sorted(files, key=_order) if wanted(name)}


def hold_out(split: Split, share: float) -> dict[str, Split]:
    """Part rows into ``train`` and ``validation``; the same rows part the same way in every run.

    Raises:
        DataError: fewer than two rows.
    """
    if len(split.rows) < 2:
        raise DataError("one row cannot be parted into training and validation", "give more rows", file=split.source)
    chosen = set(
        random.Random(0).sample(
            range(len(split.rows)), k=min(max(1, round(len(split.rows) * share)), len(split.rows) - 1)
        )
    )
    log.info(f"no validation split: {len(chosen):,} of {len(split.rows):,} rows of {split.source} are held out for it")
    train = [number for number in range(len(split.rows)) if number not in chosen]
    return {"train": _part(split, "train", train), "validation": _part(split, "validation", sorted(chosen))}


def _read_one_file(
    file: Path, data: Data, columns: Columns, read: Read, wanted: Callable[[str], bool]
) -> dict[str, Split]:
    if data.split_column is None:
        split = read_split(ALL, read_records(file, data), data, columns, read, file)
        parts = {ALL: split} if wanted(ALL) else hold_out(split, data.validation_share)
        return {name: part for name, part in parts.items() if wanted(name)}
    by_split: dict[str, list[Record]] = {}
    for line, values in read_records(file, data):
        if data.split_column not in values:
            near = closest(data.split_column, values)
            raise DataError(f"no column {data.split_column!r}", f"{near} (data.split_column)", file=file)
        name = str(values[data.split_column])
        by_split.setdefault(_ALIASES.get(name, name), []).append((line, values))
    return {
        name: read_split(name, by_split[name], data, columns, read, file)
        for name in sorted(by_split, key=_order)
        if wanted(name)
    }


def files_by_split(data: Data) -> dict[str, list[Path]] | None:
    """Give the files of each split of a local source; None where the source is not here, so must be on the hub.

    A source that is a file holds the training rows, where ``data.files`` names only others.
    """
    folder = Path(data.source).expanduser()
    if data.files:
        beside = folder if data.source and folder.is_dir() else Path()
        files = {_ALIASES.get(name, name): Path(file).expanduser() for name, file in data.files.items()}
        if folder.is_file():
            files.setdefault("train", folder)
        return {name: [file if file.exists() else beside / file] for name, file in files.items()}
    if folder.is_dir():
        return find_files(folder, data)
    if data.source.startswith((".", "/", "~")) or folder.suffix or data.source.count("/") > 1:
        names = sorted(entry.name for entry in folder.parent.iterdir()) if folder.parent.is_dir() else []
        raise DataError(f"no such file or directory: {data.source}", closest(folder.name, names) if names else "")
    return None


def _read_hub(data: Data, columns: Columns, read: Read, wanted: Callable[[str], bool]) -> dict[str, Split]:
    named = {name: data.splits.get(name, name) for name in ("train", "validation", "test", *data.splits)}
    return {
        name: read_split(name, read_hub_split(data, actual), data, columns, read, f"{data.source}:{actual}")
        for name, actual in named.items()
        if wanted(name)
    }


def _read_demo(recipe: Recipe, columns: Columns, read: Read, wanted: Callable[[str], bool]) -> dict[str, Split]:
    kind = recipe.data.config if recipe.data.config in DEMO_KINDS else recipe.name
    named = ["train", "validation", *(name for name in recipe.data.splits if is_validation(name)), "test"]
    splits = {}
    for name in dict.fromkeys(named):
        if wanted(name):
            rows = demo_rows(kind, name, recipe.data.limit)
            data = recipe.data.model_copy(update={"columns": {column: column for column in rows[0]}})
            splits[name] = read_split(name, _numbered(rows), data, columns, read, f"demo/{kind}/{name}")
    return splits


def _part(split: Split, name: str, numbers: Sequence[int]) -> Split:
    return Split(name, split.source, [split.rows[n] for n in numbers], [split.lines[n] for n in numbers])


def _numbered(rows: Iterable[dict[str, Any]]) -> Iterable[Record]:
    return enumerate(rows, start=1)


def _order(split: str) -> tuple[int, str]:
    return (0 if split == "train" else 1, split)
