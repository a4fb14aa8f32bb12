"""Find the files of a data set, see what they are, and read them."""

from __future__ import annotations

import logging
import re
import stat
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.data.formats.conll import read_columns, read_conllu, read_text_lines, read_txt
from bertkit.data.formats.csv import Record, read_csv
from bertkit.data.formats.json import read_json, read_jsonl
from bertkit.data.formats.parquet import read_parquet
from bertkit.errors import DataError, ResourceError, UsageError, closest
from bertkit.recipe import Data

_READERS = {
    ".csv": read_csv,
    ".tsv": read_csv,
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".json": read_json,
    ".conll": read_columns,
    ".bio": read_columns,
    ".iob": read_columns,
    ".iob2": read_columns,
    ".conllu": read_conllu,
    ".txt": read_txt,
}
_FORMATS = {
    "csv": read_csv,
    "jsonl": read_jsonl,
    "json": read_json,
    "conll": read_columns,
    "conllu": read_conllu,
    "lines": read_text_lines,
}
_SUFFIXES = (*_READERS, *(f"{suffix}.gz" for suffix in _READERS), ".parquet")

SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "dev", "valid", "val", "testa"),
    "test": ("test", "testb"),
}
"""Split -> the names it goes by; testa and testb are those of CoNLL-2003."""

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
    """Give the rows of a file, read as ``data.format`` or its suffix says; ``-`` is standard input.

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
    suffix = _suffix(path, data)
    text = ".gz" if suffix.endswith(".gz") else ""
    _refuse_foreign(path, {"auto": suffix, "parquet": ".parquet"}.get(data.format, text))
    if data.format == "parquet" or (data.format == "auto" and suffix == ".parquet"):
        return read_parquet(path)
    if data.format != "auto":
        return _FORMATS[data.format](path, data, str(path))
    if not suffix:
        hint = f"known are {', '.join(_READERS)} (and these with .gz) and .parquet; or say what it is: "
        raise DataError("files of this kind are not read", hint + "--set data.format=conll", file=path)
    return _READERS[suffix.removesuffix(".gz")](path, data, str(path))


def find_files(folder: Path, data: Data) -> dict[str, list[Path]]:
    """Give split -> its files, several where it comes in shards.

    A split's file is named as ``data.splits`` says, else train, validation (dev, valid, val) or test; where there is
    no such file, its name begins or ends so, as in train-v1.1.json. It lies in the folder itself or in its ``data``
    folder.

    Raises:
        DataError: no split has a file, two different files could be one split, or a shard is missing.
    """
    if not stat.S_ISDIR(_find_mode(folder)):
        raise UsageError("a file, not a folder", "name the folder it is in", file=folder)
    _refuse_arrow(folder)
    there = _group_files(folder, data)
    found = {}
    for split, groups in _candidates(list(there), data).items():
        if len(groups) > 1:
            both = " and ".join(str(there[group][0].relative_to(folder)) for group in groups[:2])
            hint = f"choose one: --set data.files.{split}={there[groups[0]][0]}"
            raise DataError(f"two files could be the {split} split: {both}", hint, file=folder)
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


def _group_files(folder: Path, data: Data) -> dict[_Group, list[Path]]:
    groups: dict[_Group, list[Path]] = {}
    for path in sorted([*folder.glob("*"), *folder.glob("data/*")]):
        suffix = _suffix(path, data)
        if (suffix or data.format != "auto") and path.is_file() and not path.name.startswith("."):
            name = path.name.lower().removesuffix(suffix)
            shard = _SHARD.fullmatch(name)
            group = _Group(path.parent, shard[1] if shard else name, suffix, int(shard[3]) if shard else 1)
            groups.setdefault(group, []).append(path)
    return groups


def _candidates(there: list[_Group], data: Data) -> dict[str, list[_Group]]:
    """Give what could be each split: files of its very name, else those whose names begin or end with it."""
    splits = [*SPLIT_NAMES, *(split for split in data.splits if split not in SPLIT_NAMES)]
    exact = {split: (data.splits[split].lower(),) if split in data.splits else SPLIT_NAMES[split] for split in splits}
    found = {split: [group for group in there if group.name in exact[split]] for split in splits}
    taken = {group for groups in found.values() for group in groups}
    fits = {split: [group for group in there if _is_named_after(split, group)] for split in SPLIT_NAMES}
    # a file called train_test is no sign of either split
    once = Counter(group for groups in fits.values() for group in groups)
    for split in SPLIT_NAMES:
        if not found[split] and split not in data.splits:
            found[split] = [group for group in fits[split] if group not in taken and once[group] == 1]
            for group in found[split]:
                logging.getLogger("bertkit").info("%s is taken for the %s split", group.name + group.suffix, split)
    return {split: groups for split, groups in found.items() if groups}


def _is_named_after(split: str, group: _Group) -> bool:
    """Tell whether the first or last part of a name is one of the split's, as in train-v1.1 and en_ewt-ud-train."""
    parts = re.split("[-_.]", group.name)
    return parts[0] in SPLIT_NAMES[split] or parts[-1] in SPLIT_NAMES[split]


def _suffix(path: Path, data: Data) -> str:
    """Give the known ending of a name; where the format is given, .gz by itself is one too."""
    known = (*_SUFFIXES, ".gz") if data.format != "auto" else _SUFFIXES
    return next((suffix for suffix in known if path.name.lower().endswith(suffix)), "")


def _read_stdin(data: Data) -> Iterator[Record]:
    stream: Any = sys.stdin.buffer
    if data.format == "parquet":
        raise UsageError("Parquet is not read from standard input", "name the file")
    if data.format != "auto":
        return _FORMATS[data.format](stream, data, "standard input")
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
            is_named_so = allowed and path.name.lower().endswith(allowed)
            raise DataError(what, "--set data.format=auto" if is_named_so else remedy, file=path)
