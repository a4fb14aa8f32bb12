"""Find the files of a dataset, and read each file in its format."""

from __future__ import annotations

import re
import stat
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bertkit.data.remote import find_source, name_source
from bertkit.data.text import COMPRESSED, Record, Source, without_compression
from bertkit.errors import DataError, RecipeError, ResourceError, UsageError, did_you_mean, similar_path
from bertkit.recipe.records import DataConfig
from bertkit.storage.cache import log_once

_Item = TypeVar("_Item")

SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "dev", "devel", "development", "valid", "val", "testa", "eval"),
    "test": ("test", "testb"),
}
"""Split -> names that its files may have, in lower case; CoNLL-2003 has testa and testb."""

_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})(?:-[0-9a-f]+)?")

_AS_CSV = "save it as CSV (UTF-8)"
_AS_PARQUET = "save the data with Dataset.to_parquet"

_WEB_PAGE = rb"(?i)(\xef\xbb\xbf)?\s*<(!doctype )?html"
_FOREIGN = (  # (first bytes, kind of file, remedy) of files that no format reads
    (rb"BZh[1-9]|\xfd7zXZ|7z\xbc\xaf", "a compressed file", "unpack it"),
    (rb"PK\x03\x04", "an Excel workbook or another zip archive", "let the name of a workbook end in .xlsx"),
    (rb"\xd0\xcf\x11\xe0", "an old Excel workbook", _AS_CSV),
    (rb"\x80[\x02-\x05]", "a Python pickle, which could run code", _AS_PARQUET),
    (rb"ARROW1", "an Arrow file", _AS_PARQUET),
    (_WEB_PAGE, "a web page", "download the file itself"),
    (rb"version https://git-lfs", "a Git LFS pointer, not the file itself", "run git lfs pull"),
)


@dataclass(frozen=True)
class Format:
    """File format: how its files are recognized, and the function in `bertkit.data.formats` that reads them."""

    name: str
    """Value of ``data.format``."""
    reader: str
    """Module and function, such as ``csv.read``. The module is imported with the first file of the format."""
    endings: tuple[str, ...] = ()
    """Endings of its files, in lower case and with the dot; empty if only ``data.format`` selects it."""
    magic: bytes = b""
    """First bytes of a binary file; empty for text, which may be compressed (``.csv.gz``)."""
    running_text: bool = True
    """Whether a column may hold running text, so that a model can be pretrained on such files."""
    needs_file: bool = False
    """Whether it cannot be read from a stream, such as standard input."""
    folder: str = ""
    """Pattern of file names (``*.ann``) that make their folder a single source of rows; empty if only files are."""

    def read(self, source: Source, data: DataConfig, name: str) -> Iterator[Record]:
        """Yield the rows of a file or a binary stream.

        Raises:
            DataError: If a row is wrong; the error has the name and the row.
            UsageError: If the format cannot be read from a stream.
        """
        if self.needs_file and not isinstance(source, Path):
            raise UsageError(f"{self.name} is not read from standard input", "name the file")
        module, _, function = self.reader.partition(".")
        records: Iterator[Record] = getattr(import_module(f"bertkit.data.formats.{module}"), function)(
            source, data, name
        )
        return records


FORMATS = {
    file_format.name: file_format
    for file_format in (
        Format("brat", "annotations.read_brat", (".ann",), running_text=False, needs_file=True, folder="*.ann"),
        Format("spacy", "annotations.read_spacy", (".spacy",), magic=b"x\x9c", running_text=False),
        Format("conll", "conll.read", (".conll", ".bio", ".iob", ".iob2"), running_text=False),
        Format("conllu", "conll.read_conllu", (".conllu",), running_text=False),
        Format("csv", "csv.read", (".csv",)),
        Format("tsv", "csv.read_tsv", (".tsv",)),
        Format("json", "json.read", (".json",)),
        Format("jsonl", "json.read_jsonl", (".jsonl", ".ndjson")),
        Format("parquet", "tables.read_parquet", (".parquet",), magic=b"PAR1", needs_file=True),
        Format("arrow", "tables.read_arrow", (".arrow",), b"\xff\xff\xff\xff", needs_file=True, folder="state.json"),
        Format("xlsx", "tables.read_xlsx", (".xlsx",), magic=b"PK\x03\x04"),
        Format("txt", "text.read", (".txt",)),
        Format("lines", "text.read_texts"),
        Format("documents", "text.read_documents", (".md", ".html", ".htm"), needs_file=True),
    )
}
"""Name in ``data.format`` -> format."""


def find_format(name: str) -> Format | None:
    """Return the format that ``data.format`` names, or None for ``auto``, which depends on the ending of a file.

    Raises:
        RecipeError: If no format has this name.
    """
    if name != "auto" and name not in FORMATS:
        raise RecipeError(f"data.format: no file format is called {name!r}", did_you_mean(name, ["auto", *FORMATS]))
    return FORMATS.get(name)


def guess_format(file_name: str) -> tuple[Format | None, str]:
    """Find the format of a file by its name.

    Returns:
        The format and the ending that shows it, in lower case, with ``.gz`` or ``.zst`` if it is compressed text; or
        None and an empty ending if no format has this ending.
    """
    lowered = file_name.lower()
    uncompressed = without_compression(lowered)
    for candidate in FORMATS.values():
        ending = next((ending for ending in candidate.endings if uncompressed.endswith(ending)), "")
        if ending and (uncompressed == lowered or not candidate.magic):
            return candidate, ending + lowered[len(uncompressed) :]
    return None, ""


def guess_folder_format(folder: Path) -> Format | None:
    """Return the format that reads all files of a folder as one source of rows, or None if its files are splits."""
    formats = (candidate for candidate in FORMATS.values() if candidate.folder)
    return next((candidate for candidate in formats if next(folder.glob(candidate.folder), None)), None)


def known_endings() -> str:
    """List the endings of all files that can be read, in words."""
    text = [ending for candidate in FORMATS.values() if not candidate.magic for ending in candidate.endings]
    binary = [ending for candidate in FORMATS.values() if candidate.magic for ending in candidate.endings]
    return f"{', '.join(text)} (and these with .gz or .zst) and {', '.join(sorted(binary))}"


def read_records(file: Path | str, data: DataConfig) -> Iterator[Record]:
    """Read the rows of a file in the format of ``data.format`` or of its ending.

    A folder is read if it is one source of rows, such as a saved dataset, or has documents.

    Args:
        file: Path, or the path or address that a user gave; ``-`` is standard input.
        data: Settings of the recipe.

    Raises:
        DataError: If the file is missing, has an unknown ending or the content of another format, or a row is wrong.
        RecipeError: If ``data.format`` names no format.
        UsageError: If the file is a folder without documents, a pipe or a device.
        ResourceError: If there is no permission to read the file.
        UnavailableError: If the address cannot be reached.
    """
    named_format = find_format(data.format)
    if str(file) == "-":
        return _read_stdin(data)
    path = file if isinstance(file, Path) else find_source(file)
    name = name_source(path)
    mode = _find_mode(path)
    if stat.S_ISDIR(mode):
        folder_format = named_format or guess_folder_format(path) or FORMATS["documents"]
        if folder_format.name != "documents" and not folder_format.folder:
            raise UsageError("a folder, not a file", "name one of its files", file=name)
        return folder_format.read(path, data, name)
    if not stat.S_ISREG(mode):
        raise not_a_file_error(path)
    file_format = named_format or guess_format(path.name)[0]
    # The content is checked first: that a file is a web page or compressed explains more than an unknown ending.
    _check_content(path, file_format, name)
    if file_format is None:
        hint = f"known are {known_endings()}; or name its format: --set data.format=conll"
        raise DataError("no file format has this ending", hint, file=name)
    return file_format.read(path, data, name)


def not_a_file_error(path: Path) -> UsageError:
    """Return the error for a path that exists, but is neither a file nor a folder."""
    return UsageError("a pipe or device, not a file", "for standard input write -", file=path)


def find_files(folder: Path, data: DataConfig, named: Collection[str] = ()) -> dict[str, list[Path]]:
    """Return split -> its files, which are several shards or one file, in a folder and in its ``data`` folder.

    The splits in `named`, whose files are given elsewhere, are left out; if there are any, the folder may have no other
    split. The file of a split has its name in ``data.splits``, or else train, validation (dev, valid, val) or test. If
    there is no such file, the name starts or ends with one of these, as in train-v1.1.json.

    Raises:
        DataError: If no split has a file, two different files could be one split, or a shard is missing.
        RecipeError: If ``data.format`` names no format.
        UsageError: If the folder is a file.
    """
    find_format(data.format)
    if not stat.S_ISDIR(_find_mode(folder)):
        raise UsageError("a file, not a folder", "name the folder it is in", file=folder)
    paths = _group_files(folder, data)
    files = {}
    for split, groups in _candidates(list(paths), data, named).items():
        if len(groups) > 1:
            listed = " and ".join(str(paths[group][0].relative_to(folder)) for group in groups[:2])
            hint = f"choose one: --set data.files.{split}={paths[groups[0]][0]}"
            raise DataError(f"two files could be the {split} split: {listed}", hint, file=folder)
        files[split] = paths[groups[0]]
        if len(files[split]) != groups[0].shards:
            message = f"the {split} split has {len(files[split])} of its {groups[0].shards} shards"
            raise DataError(message, "add the missing ones", file=folder)
    read = list(chain(*files.values()))
    # Only files with an ending of the read files may hold rows by mistake. A license or a README is expected.
    unread = {path.name for path in chain(*paths.values()) if path.suffix in {file.suffix for file in read}}
    if not named and (unread := unread.difference(file.name for file in read)):
        log_once(f"files of {folder} that are not read ({len(unread)}): {', '.join(sorted(unread)[:10])}")
    if not files and not named:
        listing = ", ".join(sorted(path.name for path in folder.glob("[!.]*"))[:10]) or "nothing"
        hint = "name them: --set data.files.train=..."
        raise DataError(f"no train, validation or test file; the folder holds {listing}", hint, file=folder)
    return files


class _Group(NamedTuple):
    """Files that together are one split: shards with one name, or a single file."""

    folder: Path
    name: str
    ending: str
    shards: int


def _group_files(folder: Path, data: DataConfig) -> dict[_Group, list[Path]]:
    groups: dict[_Group, list[Path]] = {}
    # `Dataset.push_to_hub` writes its files to the folder `data`.
    for path in sorted([*folder.glob("*"), *folder.glob("data/*")]):
        ending = _ending(path, data)
        is_source = guess_folder_format(path) if path.is_dir() else path.is_file() and (ending or data.format != "auto")
        if is_source and not path.name.startswith("."):
            name = path.name.lower().removesuffix(ending).strip()
            shard = _SHARD.fullmatch(name)
            group = _Group(path.parent, shard[1] if shard else name, ending, int(shard[3]) if shard else 1)
            groups.setdefault(group, []).append(path)
    return groups


def _candidates(groups: list[_Group], data: DataConfig, named: Collection[str]) -> dict[str, list[_Group]]:
    """Return the groups that could be each unnamed split: groups with its name, or else with a similar name."""
    names, splits = find_splits([group.name for group in groups], data.splits), {**SPLIT_NAMES, **data.splits}
    # 1. Files that have exactly the name of a split.
    candidates = {split: [group for group in groups if group.name in names.get(split, ())] for split in splits}
    taken = {group for exact in candidates.values() for group in exact}
    # 2. For splits without such a file, files whose name starts or ends with the name.
    similar = {split: [group for group in groups if _is_named_after(split, group)] for split in SPLIT_NAMES}
    # A file called train_test could be either split.
    splits_per_group = Counter(group for matches in similar.values() for group in matches)
    for split in SPLIT_NAMES:
        if not candidates[split] and split not in data.splits and split not in named:
            matches = [group for group in similar[split] if group not in taken and splits_per_group[group] == 1]
            candidates[split] = matches
            for group in matches:
                log_once(f"using {group.name}{group.ending} as the {split} split")
    return {split: matches for split, matches in candidates.items() if matches and split not in named}


def find_splits(names: Collection[str], mapped: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the names in a source by the split that they mean; any other name is another split.

    >>> find_splits(["Train ", "eval", "part"], {}), find_splits(["dev", "eval"], {})
    ({'part': ['part'], 'train': ['Train '], 'validation': ['eval']}, {'eval': ['eval'], 'validation': ['dev']})
    """
    folded = {name: name.strip().lower() for name in names}
    aliases = {**SPLIT_NAMES, **{split: (name.lower(),) for split, name in mapped.items()}}
    if {*aliases["validation"][:-1]} & {*folded.values()}:
        # If there is another validation split, eval may mean the test split.
        aliases["validation"] = aliases["validation"][:-1]
    groups = {split: [name for name in names if folded[name] in aliases[split]] for split in aliases}
    rest = {*names}.difference(*groups.values())
    return {name: [name] for name in sorted(rest)} | {split: group for split, group in groups.items() if group}


def _is_named_after(split: str, group: _Group) -> bool:
    """Return whether a name starts or ends with a name of the split: train-v1.1, en_ewt-ud-train, wnut17train."""
    # Between a digit and a letter too: wnut17train is split into wnut17 and train.
    words = re.split(r"[-_. ]|(?<=\d)(?=[a-z])", group.name)
    return words[0] in SPLIT_NAMES[split] or words[-1] in SPLIT_NAMES[split]


def _ending(path: Path, data: DataConfig) -> str:
    """Return the ending that shows a file's format; if the recipe names the format, ``.gz`` and ``.zst`` count too."""
    _, ending = guess_format(path.name)
    compression = path.suffix.lower()
    return ending or (compression if data.format != "auto" and compression in COMPRESSED else "")


def take_first(items: Iterable[_Item], limit: int | None) -> Iterator[_Item]:
    """Return the first `limit` items; without a limit, return all items.

    Raises:
        UsageError: If the limit is not a positive number.
    """
    # `islice` accepts no larger integer.
    if limit is not None and not 0 < limit < 2**63:
        raise UsageError(f"--limit {limit}", "give a number of rows, from 1")
    return islice(items, limit)


def _read_stdin(data: DataConfig) -> Iterator[Record]:
    """Read standard input in the format of ``data.format``, or else as jsonl if it starts with an object, or as csv."""
    stream: Any = sys.stdin.buffer
    # `peek` consumes nothing. Byte order marks, and the zero bytes of UTF-16, precede the first character.
    first = stream.peek(1).lstrip(b"\xef\xbb\xbf\xff\xfe\0 \t\r\n")[:1] if data.format == "auto" else b""
    file_format = find_format(data.format) or FORMATS["jsonl" if first == b"{" else "csv"]
    return file_format.read(stream, data, "standard input")


def _find_mode(path: Path) -> int:
    """Return the mode bits of a file or folder.

    Raises:
        DataError: If it does not exist.
        ResourceError: If there is no permission to read its folder.
    """
    try:
        return path.stat().st_mode
    except PermissionError:
        raise ResourceError("no permission to read", "check its folder's permissions", file=path) from None
    except (OSError, ValueError):
        raise missing_path_error(path) from None


def missing_path_error(path: Path) -> DataError:
    """Return the error for a path that does not exist, with similar names."""
    names = sorted(entry.name for entry in path.parent.glob("[!.]*"))  # without lock files
    listed = f"there are: {', '.join(names)}"[:200] if names else f"there is nothing in {path.parent}"
    return DataError("no such file or folder", similar_path(path) or listed, file=path)


def _check_content(path: Path, file_format: Format | None, name: str) -> None:
    """Check by its first bytes that a file has the format that it is read as, because its name can be wrong.

    Raises:
        DataError: If it has another format, or none that is known.
        ResourceError: If there is no permission to read it.
    """
    try:
        with path.open("rb") as stream:
            start = stream.read(1024)
    except PermissionError:
        raise ResourceError("no permission to read", "check its permissions", file=name) from None
    is_binary = bool(file_format and file_format.magic)
    if file_format and is_binary and start.startswith(file_format.magic):
        return
    for pattern, kind, remedy in _FOREIGN:
        is_page = pattern is _WEB_PAGE and file_format and file_format.name == "documents"
        if re.match(pattern, start) and not is_page:
            raise DataError(kind, remedy, file=name)
    binary = [(_describe_format(key), entry.magic, entry.endings) for key, entry in FORMATS.items() if entry.magic]
    compressed = [(f"a {method} file", magic, (ending,)) for ending, (method, magic) in COMPRESSED.items()]
    for kind, magic, endings in binary + compressed:
        is_named_so = path.name.lower().endswith(endings)
        # Text is read from compressed files; `data.format` can claim that such a file is binary.
        if start.startswith(magic) and (is_binary or not is_named_so or (kind, magic, endings) in binary):
            remedy = "--set data.format=auto" if is_named_so else f"let its name end in {' or '.join(endings)}"
            raise DataError(kind, remedy, file=name)
    if file_format and is_binary:
        problem = f"not {_describe_format(file_format.name)}" if start else "the file is empty"
        raise DataError(problem, "download it again, or let its name end as its format demands", file=name)


def _describe_format(name: str) -> str:
    return f"{'an' if name[0] in 'aeioux' else 'a'} {name.capitalize()} file"
