"""Find the files of a data set, see what they are, and read them."""

from __future__ import annotations

import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.data.csv_files import Record, read_csv
from bertkit.data.json_files import read_json, read_jsonl
from bertkit.data.parquet_files import read_parquet
from bertkit.errors import DataError, ResourceError, UsageError
from bertkit.recipe import Data, closest

_READERS = {
    ".csv": read_csv,
    ".tsv": read_csv,
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".json": read_json,
}
_SUFFIXES = (*_READERS, *(f"{suffix}.gz" for suffix in _READERS), ".parquet")

SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "dev", "valid", "val"),
    "test": ("test",),
}
"""Split -> the names it goes by."""

_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})(?:-[0-9a-f]+)?")

_AS_CSV = "save it as CSV (UTF-8)"
_AS_PARQUET = "save the data with Dataset.to_parquet"

_FOREIGN = (  # how a file begins, the suffix that may, what it is, what to do
    (rb"PAR1", ".parquet", "a Parquet file", "let its name end in .parquet"),
    (rb"\x1f\x8b", ".gz", "a gzip file", "let its name end in .gz, as in train.csv.gz"),
    (rb"BZh[1-9]|\xfd7zXZ|\x28\xb5\x2f\xfd|7z\xbc\xaf", "", "a compressed file", "unpack it"),
    (rb"PK\x03\x04", "", "an Excel workbook or another zip archive", _AS_CSV),
    (rb"\xd0\xcf\x11\xe0", "", "an old Excel workbook", _AS_CSV),
    (rb"\x80[\x02-\x05]", "", "a Python pickle, which could run code", _AS_PARQUET),
    (rb"ARROW1|\xff\xff\xff\xff", "", "an Arrow file", _AS_PARQUET),
    (rb"(?i)(\xef\xbb\xbf)?\s*<(!doctype )?html", "", "a web page", "download the file itself"),
    (rb"version https://git-lfs", "", "a Git LFS pointer, not the file itself", "run git lfs pull"),
)


def read_records(file: Path | str, data: Data) -> Iterator[Record]:
    """Give the rows of a file, read as its suffix says; ``-`` is standard input, csv or jsonl.

    Raises:
        DataError: the file is missing, of another kind than its name says, or a row of it is wrong.
        UsageError: it is a folder, a pipe or a device.
        ResourceError: it may not be read.
    """
    if str(file) == "-":
        return _read_stdin(data)
    path = Path(file)
    mode = _find_mode(path)
    if stat.S_ISDIR(mode):
        _refuse_arrow(path)
        raise UsageError("a folder, not a file", "name one of its files", file=path)
    if not stat.S_ISREG(mode):
        raise UsageError("a pipe or device, not a file", "for standard input write -", file=path)
    suffix = _suffix(path)
    _refuse_foreign(path, suffix)
    if suffix == ".parquet":
        return read_parquet(path)
    if not suffix:
        raise DataError("files of this kind are not read", f"known are {', '.join(_SUFFIXES)}", file=path)
    return _READERS[suffix.removesuffix(".gz")](path, data, str(path))


def find_files(folder: Path, data: Data) -> dict[str, list[Path]]:
    """Give split -> its files, several where it comes in shards.

    A split's file is named as ``data.splits`` says, else train, validation (dev, valid, val) or test. It lies
    in the folder itself or in its ``data`` folder.

    Raises:
        DataError: no split has a file, two different files could be one split, or a shard is missing.
    """
    if not stat.S_ISDIR(_find_mode(folder)):
        raise UsageError("a file, not a folder", "name the folder it is in", file=folder)
    _refuse_arrow(folder)
    there = _group_files(folder)
    found = {}
    for split in dict.fromkeys([*SPLIT_NAMES, *data.splits]):
        names = (data.splits[split].lower(),) if split in data.splits else SPLIT_NAMES[split]
        groups = [group for group in there if group.name in names]
        if len(groups) > 1:
            both = " and ".join(str(there[group][0].relative_to(folder)) for group in groups[:2])
            hint = f"choose one: --set data.files.{split}={there[groups[0]][0]}"
            raise DataError(f"two files could be the {split} split: {both}", hint, file=folder)
        if groups:
            found[split] = there[groups[0]]
            if len(found[split]) != groups[0].shards:
                what = f"{len(found[split])} of the {groups[0].shards} shards of the {split} split are there"
                raise DataError(what, "get the others", file=folder)
    if not found:
        held = ", ".join(sorted(path.name for path in folder.iterdir())[:10]) or "nothing"
        hint = "name them: --set data.files.train=..."
        raise DataError(f"no train, validation or test file; the folder holds {held}", hint, file=folder)
    return found


class _Group(NamedTuple):
    """Files that together hold one split."""

    folder: Path
    name: str
    suffix: str
    shards: int


def _group_files(folder: Path) -> dict[_Group, list[Path]]:
    groups: dict[_Group, list[Path]] = {}
    for path in sorted([*folder.glob("*"), *folder.glob("data/*")]):
        suffix = _suffix(path)
        if suffix and path.is_file():
            name = path.name.lower().removesuffix(suffix)
            shard = _SHARD.fullmatch(name)
            group = _Group(path.parent, shard[1] if shard else name, suffix, int(shard[3]) if shard else 1)
            groups.setdefault(group, []).append(path)
    return groups


def _suffix(path: Path) -> str:
    return next((suffix for suffix in _SUFFIXES if path.name.lower().endswith(suffix)), "")


def _read_stdin(data: Data) -> Iterator[Record]:
    stream: Any = sys.stdin.buffer
    first = stream.peek(1).lstrip(b"\xef\xbb\xbf\xff\xfe\0 \t\r\n")[:1]
    return (read_jsonl if first == b"{" else read_csv)(stream, data, "standard input")


def _find_mode(path: Path) -> int:
    """Give the mode bits of a file or folder that must be there."""
    try:
        return path.stat().st_mode
    except PermissionError:
        raise ResourceError("no permission to read", "see its folder's permissions", file=path) from None
    except (OSError, ValueError):
        folder = path.parent
        names = sorted(each.name for each in folder.glob("*"))
        hint = closest(path.name, names)[:200] if names else f"there is nothing in {folder}"
        raise DataError("no such file or folder", hint, file=path) from None


def _refuse_arrow(folder: Path) -> None:
    if any(next(folder.glob(pattern), None) for pattern in ("*.arrow", "*/*.arrow", "dataset_dict.json")):
        raise DataError("a folder of Arrow files", _AS_PARQUET, file=folder)


def _refuse_foreign(path: Path, suffix: str) -> None:
    """Look at the first bytes, since a name can lie."""
    try:
        with path.open("rb") as stream:
            start = stream.read(1024)
    except PermissionError:
        raise ResourceError("no permission to read", "see its permissions", file=path) from None
    for pattern, allowed, what, remedy in _FOREIGN:
        if re.match(pattern, start) and not (allowed and suffix.endswith(allowed)):
            raise DataError(what, remedy, file=path)
