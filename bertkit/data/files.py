"""Find the files of a dataset, and read each file in its format."""

from __future__ import annotations

import re
import stat
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bertkit.data.remote import find_source, name_source
from bertkit.data.text import COMPRESSED, Record, Source, strip_compression
from bertkit.errors import DataError, RecipeError, ResourceError, UsageError, did_you_mean, similar_path
from bertkit.recipe.records import DataConfig
from bertkit.storage.cache import log_once

_Item = TypeVar("_Item")

SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "dev", "devel", "development", "valid", "val", "testa", "eval"),
    "test": ("test", "testb"),
}
"""Split -> names that its files can have, in lower case; CoNLL-2003 has testa and testb."""

_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})(?:-[0-9a-f]+)?")

_AS_CSV = "save it as CSV (UTF-8)"
_AS_PARQUET = "save the data with Dataset.to_parquet"

_WEB_PAGE = rb"(?i)(\xef\xbb\xbf)?\s*<(!doctype )?html"
# Files that no format reads: pattern of the first bytes, kind of file, remedy.
_FOREIGN_FILES = (
    (rb"BZh[1-9]|\xfd7zXZ|7z\xbc\xaf", "a compressed file", "unpack it"),
    (rb"PK\x03\x04", "an Excel workbook or another zip archive", "rename a workbook to end in .xlsx"),
    (rb"\xd0\xcf\x11\xe0", "an old Excel workbook", _AS_CSV),
    (rb"\x80[\x02-\x05]", "a Python pickle, which could run code", _AS_PARQUET),
    (rb"ARROW1", "an Arrow file", _AS_PARQUET),
    (_WEB_PAGE, "a web page, not a data file", "download the file itself"),
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
    """Endings of its files, in lower case and with the dot; empty if only ``data.format`` selects the format."""
    magic: bytes = b""
    """First bytes of a binary file; empty for text, which can be compressed (``.csv.gz``)."""
    running_text: bool = True
    """Whether a column can hold running text, on which a model can be pretrained."""
    needs_file: bool = False
    """Whether the format cannot be read from a stream, such as standard input."""
    folder: str = ""
    """Pattern of file names (``*.ann``); a folder with such a file is read as one source. Empty if only files are."""

    def read(self, source: Source, data: DataConfig, name: str) -> Iterator[Record]:
        """Yield the rows of a file or a binary stream.

        Raises:
            DataError: If a row is wrong; the error names the file and the row.
            UsageError: If the format cannot be read from a stream.
        """
        if self.needs_file and not isinstance(source, Path):
            raise UsageError(f"{self.name} cannot be read from standard input", "name the file")
        module, _, function = self.reader.partition(".")
        reader: Callable[..., Iterator[Record]] = getattr(import_module(f"bertkit.data.formats.{module}"), function)
        return reader(source, data, name)


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
    """Return the format that ``data.format`` names, or None for ``auto``, which means the ending of each file.

    Raises:
        RecipeError: If no format has this name.
    """
    if name != "auto" and name not in FORMATS:
        raise RecipeError(f"data.format: no file format is called {name!r}", did_you_mean(name, ["auto", *FORMATS]))
    return FORMATS.get(name)


def guess_format(file_name: str) -> tuple[Format | None, str]:
    """Find the format of a file by its name.

    Returns:
        The format, and the ending in lower case, with ``.gz`` or ``.zst`` for compressed text; or None and an empty
        ending if no format has this ending.
    """
    lowered = file_name.lower()
    uncompressed = strip_compression(lowered)
    for candidate in FORMATS.values():
        ending = next((ending for ending in candidate.endings if uncompressed.endswith(ending)), "")
        if ending and (uncompressed == lowered or not candidate.magic):
            return candidate, ending + lowered[len(uncompressed) :]
    return None, ""


def guess_folder_format(folder: Path) -> Format | None:
    """Return the format that reads a folder as one source of rows, or None if the folder has a file per split."""
    formats = (candidate for candidate in FORMATS.values() if candidate.folder)
    return next((candidate for candidate in formats if next(folder.glob(candidate.folder), None)), None)


def list_endings() -> str:
    """List the endings of all files that can be read, for a message."""
    text_endings = [ending for candidate in FORMATS.values() if not candidate.magic for ending in candidate.endings]
    binary_endings = [ending for candidate in FORMATS.values() if candidate.magic for ending in candidate.endings]
    return f"{', '.join(text_endings)} (and these with .gz or .zst) and {', '.join(sorted(binary_endings))}"


def read_records(file: Path | str, data: DataConfig) -> Iterator[Record]:
    """Read the rows of a file, in the format of ``data.format`` or of the file's ending.

    A folder can be read if it is one source of rows, such as a saved dataset, or if it has documents.

    Args:
        file: Path, or a path or address as the user wrote it; ``-`` is standard input.
        data: Settings of the recipe.

    Raises:
        DataError: If the file is missing, has an unknown ending, has the content of another format, or a row is wrong.
        RecipeError: If ``data.format`` names no format.
        UsageError: If the file is a folder without documents, a pipe or a device.
        ResourceError: If there is no permission to read the file.
        UnavailableError: If the address cannot be reached.
    """
    recipe_format = find_format(data.format)
    if str(file) == "-":
        return _read_stdin(data)
    path = file if isinstance(file, Path) else find_source(file)
    name = name_source(path)
    mode = _find_mode(path)
    if stat.S_ISDIR(mode):
        folder_format = recipe_format or guess_folder_format(path) or FORMATS["documents"]
        if folder_format.name != "documents" and not folder_format.folder:
            raise UsageError("a folder, not a file", "name one of its files", file=name)
        return folder_format.read(path, data, name)
    if not stat.S_ISREG(mode):
        raise not_a_file_error(path)
    file_format = recipe_format or guess_format(path.name)[0]
    # Check the content first: "a web page" explains more than an unknown ending.
    _check_content(path, file_format, name)
    if file_format is None:
        hint = f"supported are {list_endings()}; or name its format: --set data.format=conll"
        raise DataError("unknown file ending", hint, file=name)
    return file_format.read(path, data, name)


def not_a_file_error(path: Path) -> UsageError:
    """Return the error for a path that is neither a file nor a folder."""
    return UsageError("a pipe or device, not a file", "to read standard input, write -", file=path)


def find_files(folder: Path, data: DataConfig, given_splits: Collection[str] = ()) -> dict[str, list[Path]]:
    """Return split -> its files (one file or several shards) in a folder and in the subfolder ``data``.

    A file is named after its split: as in ``data.splits``, or else train, validation (dev, valid, val) or test. If
    there is no such file, its name can start or end with one of these, as in train-v1.1.json. Splits in `given_splits`
    are skipped, because ``data.files`` names their files; the folder then need not contain any split.

    Raises:
        DataError: If no split has a file, two different files could be one split, or a shard is missing.
        RecipeError: If ``data.format`` names no format.
        UsageError: If the folder is a file.
    """
    find_format(data.format)
    if not stat.S_ISDIR(_find_mode(folder)):
        raise UsageError("a file, not a folder", "name its folder", file=folder)
    paths = _group_files(folder, data)
    files = {}
    for split, groups in _find_candidates(list(paths), data, given_splits).items():
        if len(groups) > 1:
            names = " and ".join(str(paths[group][0].relative_to(folder)) for group in groups[:2])
            hint = f"choose one: --set data.files.{split}={paths[groups[0]][0]}"
            raise DataError(f"two files could be the {split} split: {names}", hint, file=folder)
        files[split] = paths[groups[0]]
        if len(files[split]) != groups[0].shards:
            message = f"the {split} split has {len(files[split])} of its {groups[0].shards} shards"
            raise DataError(message, "add the missing shards", file=folder)
    used = list(chain(*files.values()))
    # Log unread files only if they have the ending of a split, unlike a license or a README.
    unread = {path.name for path in chain(*paths.values()) if path.suffix in {file.suffix for file in used}}
    if not given_splits and (unread := unread.difference(file.name for file in used)):
        log_once(f"files of {folder} that are not read ({len(unread)}): {', '.join(sorted(unread)[:10])}")
    if not files and not given_splits:
        listing = ", ".join(sorted(path.name for path in folder.glob("[!.]*"))[:10]) or "nothing"
        hint = "name the files: --set data.files.train=..."
        raise DataError(f"no train, validation or test file; the folder contains {listing}", hint, file=folder)
    return files


class _Group(NamedTuple):
    """Files that can form a split: a single file, or shards with the same name."""

    folder: Path
    name: str
    ending: str
    shards: int


def _group_files(folder: Path, data: DataConfig) -> dict[_Group, list[Path]]:
    groups: dict[_Group, list[Path]] = {}
    # `Dataset.push_to_hub` writes its files to the folder `data`.
    for path in sorted([*folder.glob("*"), *folder.glob("data/*")]):
        ending = _find_ending(path, data)
        is_source = guess_folder_format(path) if path.is_dir() else path.is_file() and (ending or data.format != "auto")
        if is_source and not path.name.startswith("."):
            name = path.name.lower().removesuffix(ending).strip()
            shard = _SHARD.fullmatch(name)
            group = _Group(path.parent, shard[1] if shard else name, ending, int(shard[3]) if shard else 1)
            groups.setdefault(group, []).append(path)
    return groups


def _find_candidates(groups: list[_Group], data: DataConfig, given_splits: Collection[str]) -> dict[str, list[_Group]]:
    """Return split -> groups of files with the name of the split, or else with a similar name."""
    names, splits = find_splits([group.name for group in groups], data.splits), {**SPLIT_NAMES, **data.splits}
    # 1. Find files with exactly the name of a split.
    candidates = {split: [group for group in groups if group.name in names.get(split, ())] for split in splits}
    exact_groups = {group for matches in candidates.values() for group in matches}
    # 2. For other splits, find files whose names start or end with the name of the split.
    similar = {split: [group for group in groups if _is_named_after(split, group)] for split in SPLIT_NAMES}
    # A file called train_test could be either split.
    splits_per_group = Counter(group for matches in similar.values() for group in matches)
    for split in SPLIT_NAMES:
        if not candidates[split] and split not in data.splits and split not in given_splits:
            matches = [group for group in similar[split] if group not in exact_groups and splits_per_group[group] == 1]
            candidates[split] = matches
            for group in matches:
                log_once(f"using {group.name}{group.ending} as the {split} split")
    return {split: matches for split, matches in candidates.items() if matches and split not in given_splits}


def find_splits(names: Collection[str], custom_names: Mapping[str, str]) -> dict[str, list[str]]:
    """Return split -> the names in a source that mean this split; an unknown name is another split.

    >>> find_splits(["Train ", "eval", "part"], {}), find_splits(["dev", "eval"], {})
    ({'part': ['part'], 'train': ['Train '], 'validation': ['eval']}, {'eval': ['eval'], 'validation': ['dev']})
    """
    lowered = {name: name.strip().lower() for name in names}
    aliases = {**SPLIT_NAMES, **{split: (name.lower(),) for split, name in custom_names.items()}}
    if {*aliases["validation"][:-1]} & {*lowered.values()}:
        # The last alias is eval. Next to another validation split, it can mean the test split.
        aliases["validation"] = aliases["validation"][:-1]
    groups = {split: [name for name in names if lowered[name] in aliases[split]] for split in aliases}
    unknown = {*names}.difference(*groups.values())
    return {name: [name] for name in sorted(unknown)} | {split: group for split, group in groups.items() if group}


def _is_named_after(split: str, group: _Group) -> bool:
    """Return whether a name starts or ends with a name of the split: train-v1.1, en_ewt-ud-train, wnut17train."""
    # Split between a digit and a letter too: wnut17train becomes wnut17 and train.
    words = re.split(r"[-_. ]|(?<=\d)(?=[a-z])", group.name)
    return words[0] in SPLIT_NAMES[split] or words[-1] in SPLIT_NAMES[split]


def _find_ending(path: Path, data: DataConfig) -> str:
    """Return the ending of a known format; if the recipe names the format, also ``.gz`` or ``.zst``."""
    _, ending = guess_format(path.name)
    compression = path.suffix.lower()
    return ending or (compression if data.format != "auto" and compression in COMPRESSED else "")


def take_first(items: Iterable[_Item], limit: int | None) -> Iterator[_Item]:
    """Return an iterator over the first `limit` items, or over all items if there is no limit.

    Raises:
        UsageError: If the limit is not positive.
    """
    # `islice` rejects larger integers.
    if limit is not None and not 0 < limit < 2**63:
        raise UsageError(f"--limit must be at least 1, got {limit}", "give a number of rows")
    return islice(items, limit)


def _read_stdin(data: DataConfig) -> Iterator[Record]:
    """Read standard input in the format of ``data.format``; by default, as JSON Lines after {, or else CSV."""
    stream: Any = sys.stdin.buffer
    # `peek` consumes nothing. Byte order marks and the zero bytes of UTF-16 can precede the first character.
    first_byte = stream.peek(1).lstrip(b"\xef\xbb\xbf\xff\xfe\0 \t\r\n")[:1] if data.format == "auto" else b""
    file_format = find_format(data.format) or FORMATS["jsonl" if first_byte == b"{" else "csv"]
    return file_format.read(stream, data, "standard input")


def _find_mode(path: Path) -> int:
    """Return the mode bits of a file or folder.

    Raises:
        DataError: If the path does not exist.
        ResourceError: If there is no permission to read its folder.
    """
    try:
        return path.stat().st_mode
    except PermissionError:
        raise ResourceError("no permission to read", "check the permissions of its folder", file=path) from None
    except (OSError, ValueError):
        raise missing_path_error(path) from None


def missing_path_error(path: Path) -> DataError:
    """Return the error for a path that does not exist, with similar names."""
    names = sorted(entry.name for entry in path.parent.glob("[!.]*"))  # without lock files
    listed = f"there are: {', '.join(names)}"[:200] if names else f"the folder {path.parent} is empty or missing"
    return DataError("no such file or folder", similar_path(path) or listed, file=path)


def _check_content(path: Path, file_format: Format | None, name: str) -> None:
    """Check by the first bytes that a file has the format that its name or the recipe claims.

    Raises:
        DataError: If the file has another format or an unknown format.
        ResourceError: If there is no permission to read the file.
    """
    try:
        with path.open("rb") as stream:
            first_bytes = stream.read(1024)
    except PermissionError:
        raise ResourceError("no permission to read", "check its permissions", file=name) from None
    is_binary = bool(file_format and file_format.magic)
    if file_format and is_binary and first_bytes.startswith(file_format.magic):
        return
    for pattern, kind, remedy in _FOREIGN_FILES:
        is_page = pattern is _WEB_PAGE and file_format and file_format.name == "documents"
        if re.match(pattern, first_bytes) and not is_page:
            raise DataError(kind, remedy, file=name)
    binary = [(_describe_format(key), entry.magic, entry.endings) for key, entry in FORMATS.items() if entry.magic]
    compressed = [(f"a {method} file", magic, (ending,)) for ending, (method, magic) in COMPRESSED.items()]
    for kind, magic, endings in binary + compressed:
        has_ending = path.name.lower().endswith(endings)
        # A compressed file can hold text, but not a binary format, which `data.format` can claim.
        if first_bytes.startswith(magic) and (is_binary or not has_ending or (kind, magic, endings) in binary):
            remedy = "add --set data.format=auto" if has_ending else f"rename it to end in {' or '.join(endings)}"
            raise DataError(kind, remedy, file=name)
    if file_format and is_binary:
        problem = f"not {_describe_format(file_format.name)}" if first_bytes else "the file is empty"
        raise DataError(problem, "download it again, or rename it with the ending of its format", file=name)


def _describe_format(name: str) -> str:
    return f"{'an' if name[0] in 'aeioux' else 'a'} {name.capitalize()} file"
