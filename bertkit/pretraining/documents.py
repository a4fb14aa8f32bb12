"""Documents to pretrain on, from files, folders and datasets of the Hub."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from bertkit.data.demo import TEXT
from bertkit.data.files import (
    FORMATS,
    SPLIT_NAMES,
    find_splits,
    guess_format,
    missing_path_error,
    not_a_file_error,
    read_records,
)
from bertkit.data.remote import find_source, name_source, read_hub_split
from bertkit.data.sources import check_source, find_single_file, find_split_files
from bertkit.data.text import MAX_CHARS, Record, strip_compression
from bertkit.errors import DataError, RecipeError
from bertkit.recipe.records import CorpusConfig, DataConfig
from bertkit.storage.cache import log_once

_FORMATS = [file_format for file_format in FORMATS.values() if file_format.running_text]
_ENDINGS = [ending for file_format in _FORMATS for ending in file_format.endings]
_NUMBER_SUFFIX = r"([-_.]?\d[-_.\w]*)?"  # as in train-00001-of-00010 and train_1
_NAME_COLUMN = "name the column of the text: --set data.column=NAME"
_SETTING_PATTERN = re.compile(r"--set '?data\.(\w+)")
# Headings of wikitext are ` = Title = ` and ` = = Section = = `.
_HEADING = re.compile(r"\s*(=(?: ?=)*) (.*\S) \1\s*")


@dataclass(frozen=True)
class CorpusSource:
    """Corpus section of a recipe, with the files that it names."""

    data: CorpusConfig
    files: Mapping[str, list[Path]] | None
    """Split (``train`` and perhaps ``validation``) -> files, or None if the text is on the Hub."""


Text: TypeAlias = str | bytes
"""A text, or bytes with the uint32 ids of its tokens, if the column has token ids."""


class Document(NamedTuple):
    """A text and its position in a source."""

    text: Text
    source: str
    """File, or dataset and split."""
    line: int
    """Line number in text files, csv and jsonl; row number in json, Parquet and datasets of the Hub."""


class SourceFile(NamedTuple):
    """A file of a split, or a complete split if it is on the Hub or `data.limit` is set."""

    paths: list[Path]
    read: Callable[[], Iterator[Document]]
    """Function that reads the documents from the start, without empty documents."""
    weight: float = 1.0
    """Mean number of times that each document is in the corpus."""

    @property
    def bytes(self) -> int:
        """Total size of the files, or 0 without files."""
        return sum(path.stat().st_size for path in self.paths)


def read_documents(source: CorpusSource, split: str) -> Iterator[Document]:
    """Read the documents of a split in the order of the source, without empty documents.

    Raises:
        DataError: If the source has no text, or does not match the recipe.
        RecipeError: If ``data.documents`` does not fit the source.
        UnavailableError: If the Hub cannot be reached.
    """
    return chain.from_iterable(file.read() for file in list_source_files(source, split))


def has_validation(source: CorpusSource) -> bool:
    """Return whether a source has a validation split."""
    if source.files is not None:
        return "validation" in source.files
    if "validation" in source.data.splits:
        return True
    # To find out whether a dataset of the Hub has the split, try to read it.
    try:
        next(_read_hub(source.data, "validation"), None)
    except DataError:  # The split does not exist. Any other error also occurs in the training split.
        return False
    return True


def find_corpus(data: CorpusConfig) -> CorpusSource:
    """Find the files of a corpus.

    Raises:
        DataError: If there are no files, a file has an unknown type, or a weight matches no file.
        RecipeError: If there are weights, but the source has no files or `data.limit` is set.
    """
    if data.source == "demo":
        data = data.model_copy(update={"source": str(TEXT), "documents": "lines", "encoding": "utf-8"})
    files = _files_by_split(data)
    if data.weights and (files is None or data.limit is not None):
        message = "data.weights needs files" if files is None else "data.weights with data.limit"
        raise RecipeError(message, "leave one of them out" if files else "give a folder, a pattern, or data.files")
    for pattern in data.weights:
        if not any(file.match(pattern) for file in (files or {})["train"]):
            raise DataError(f"data.weights: no training file matches {pattern!r}", "see data.source for their names")
    return CorpusSource(data, files)


def _files_by_split(data: CorpusConfig) -> dict[str, list[Path]] | None:
    check_source(data)
    source = find_source(data.source)
    if not data.files and (source.is_dir() or _find_base_folder(source) != source):
        return _find_files(source, data)
    if file := find_single_file(data):
        return {"train": [_check_ending(file)]}
    by_split = find_split_files(DataConfig(source=data.source, files=data.files))
    if by_split is None:
        return None
    if "train" not in by_split:
        raise DataError(f"no train split (found: {', '.join(by_split)})", "add --set data.files.train=FILE")
    expanded = {split: [file for path in paths for file in _expand_path(path)] for split, paths in by_split.items()}
    return {split: files for split, files in expanded.items() if split in ("train", "validation")}


def _expand_path(path: Path) -> list[Path]:
    """Return the files of a folder, the files that match a pattern, or the file itself."""
    if (folder := _find_base_folder(path)) != path:
        return _match_files(folder, path)
    if not path.exists():
        raise missing_path_error(path)
    if path.is_dir():
        return _find_text_files(path)
    if not path.is_file():
        raise not_a_file_error(path)
    return [_check_ending(path)]


def _find_base_folder(pattern: Path) -> Path:
    """Return the folder before the first wildcard, or the path itself without a wildcard."""
    while not pattern.exists() and any(wildcard in str(pattern) for wildcard in "*?["):
        pattern = pattern.parent
    return pattern


def _match_files(folder: Path, pattern: Path) -> list[Path]:
    files = sorted(filter(Path.is_file, folder.glob(str(pattern.relative_to(folder)))))
    if not files:
        raise DataError("no file matches", "* matches part of a name, and ** matches folders", file=pattern)
    return list(map(_check_ending, files))


def _find_files(path: Path, data: CorpusConfig) -> dict[str, list[Path]]:
    """Assign the files of a folder or pattern to splits, by the names of files and folders.

    If no name contains a split, all files are training files.
    """
    folder = _find_base_folder(path)
    files = _find_text_files(folder) if folder == path else _match_files(folder, path)
    by_split: dict[str | None, list[Path]] = {}
    for file in files:
        by_split.setdefault(_find_split(file.relative_to(folder), data), []).append(file)
    if "train" not in by_split and "validation" not in by_split:
        return {"train": files}
    if None in by_split and "train" not in by_split:
        by_split["train"] = by_split.pop(None)
    if "train" not in by_split:
        hint = "name its files: --set data.files.train=..."
        raise DataError("the folder has a validation split, but none to train on", hint, file=folder)
    unused = sum(len(paths) for split, paths in by_split.items() if split not in ("train", "validation"))
    for split in ("train", "validation"):
        log_once(f"{split}: {_count_files(len(by_split.get(split, ())))} of {folder}")
    if unused:
        log_once(f"{_count_files(unused)} of {folder} left out: named after neither split")
    return {split: by_split[split] for split in ("train", "validation") if split in by_split}


def _find_text_files(folder: Path) -> list[Path]:
    files = sorted(
        file
        for file in folder.rglob("*")
        if _get_ending(file) and file.is_file() and not any(name[0] == "." for name in file.relative_to(folder).parts)
        if file.suffix != ".arrow"
        # `datasets` stores results of `map` in files next to the rows.
        or not file.name.startswith("cache-")
    )
    if not files:
        names = ", ".join(sorted(path.name for path in folder.iterdir())[:10]) or "nothing"
        raise DataError(f"no text in the folder; it holds {names}", f"known are {', '.join(_ENDINGS)}", file=folder)
    return files


def _find_split(path: Path, data: CorpusConfig) -> str | None:
    """Return the split in the name of a file or of its parent folders, or None if no name contains a split."""
    names = [*path.parts[:-1], strip_compression(path.name).removesuffix(_get_ending(path))]
    splits = find_splits([re.sub(f"{_NUMBER_SUFFIX}$", "", name.lower()) for name in names], data.splits)
    # If the names of a file and of its folder contain different splits, the order of `SPLIT_NAMES` decides.
    return next((split for split in SPLIT_NAMES if split in splits), None)


def _get_ending(path: Path) -> str:
    file_format, ending = guess_format(path.name)
    return strip_compression(ending) if file_format and file_format.running_text else ""


def _check_ending(file: Path) -> Path:
    if not _get_ending(file):
        hint = f"known are {', '.join(_ENDINGS)}; text files may also end in .gz or .zst"
        raise DataError("files of this type are not read", hint, file=file)
    return file


def list_source_files(source: CorpusSource, split: str) -> list[SourceFile]:
    """List the files of a split, in reading order."""
    data = source.data
    if source.files is None:
        files = [SourceFile([], partial(_read_hub_documents, data, split))]
    else:
        files = [
            SourceFile([path], partial(_read_file_documents, path, data), _find_weight(path, split, data))
            for path in source.files.get(split, ())
        ]
    if data.limit is None or not files:
        return files
    paths = [path for file in files for path in file.paths]
    return [SourceFile(paths, lambda: islice(chain.from_iterable(file.read() for file in files), data.limit))]


def _find_weight(file: Path, split: str, data: CorpusConfig) -> float:
    """Return the weight of the first pattern that a file matches."""
    weights = data.weights if split == "train" else {}
    return next((weight for pattern, weight in weights.items() if file.match(pattern)), 1.0)


def _read_hub_documents(data: CorpusConfig, split: str) -> Iterator[Document]:
    name = f"{data.source}:{data.splits.get(split, split)}"
    return _chunk_documents(_read_texts(_read_hub(data, split), data, data.column, name), data, name, is_lines=False)


def _read_file_documents(file: Path, data: CorpusConfig) -> Iterator[Document]:
    is_lines, name = _get_ending(file) == ".txt", name_source(file)
    texts = _read_texts(_read_file(file, data, is_lines), data, "text" if is_lines else data.column, name)
    return _chunk_documents(texts, data, name, is_lines)


def _read_hub(data: CorpusConfig, split: str) -> Iterator[Record]:
    dataset = DataConfig(source=data.source, config=data.config, revision=data.revision)
    return read_hub_split(dataset, data.splits.get(split, split), streaming=data.streaming)


def _read_file(file: Path, data: CorpusConfig, is_lines: bool) -> Iterator[Record]:
    try:
        settings = DataConfig(encoding=data.encoding, format="lines" if is_lines else "auto")
        settings._same_keys = False  # Only the text is read; other keys may be missing.
        yield from read_records(file, settings)
    except DataError as error:
        keys = _SETTING_PATTERN.findall(error.remedy)
        # The remedy can name a setting that only exists for rows, not for a corpus.
        if not set(keys) <= set(CorpusConfig.model_fields):
            error.remedy = "repair the file, or save it as .jsonl"
        raise


def plain_text(document: Document) -> str:
    """Return the text of a document.

    Raises:
        DataError: If the document has token ids instead of text.
    """
    if isinstance(document.text, bytes):
        raise DataError("token ids instead of text", _NAME_COLUMN, file=document.source, row=document.line)
    return document.text


def encode_text(text: Text) -> bytes:
    """Return the bytes of a text, to compare and count documents."""
    return text.encode() if isinstance(text, str) else text


def _read_texts(records: Iterable[Record], data: CorpusConfig, column: str, name: str) -> Iterator[tuple[int, Text]]:
    are_rows = data.documents in ("auto", "rows")
    for line, record in records:
        if column not in record:
            hint = f"there are {', '.join(map(str, record))}: --set data.column=NAME"
            raise DataError(f"no column {column!r}", hint, file=name)
        value: object = record[column]
        if are_rows and isinstance(value, list) and all(type(token) is int and 0 <= token < 2**32 for token in value):
            # Four bytes per id; a list of Python integers would take several times as much memory.
            yield line, array("I", value).tobytes()
            continue
        if value is not None and not isinstance(value, str):
            raise DataError(f"{type(value).__name__} instead of text", _NAME_COLUMN, file=name, row=line, column=column)
        yield line, value or ""


def _chunk_documents(
    texts: Iterable[tuple[int, Any]], data: CorpusConfig, name: str, is_lines: bool
) -> Iterator[Document]:
    """Build documents from lines or rows, according to ``data.documents``.

    Rows can also be treated as lines, so that empty rows separate documents; such a row can have several lines.
    """
    unit = ("blank_lines" if is_lines else "rows") if data.documents == "auto" else data.documents
    if unit == "rows" and is_lines:
        hint = "add --set data.documents=blank_lines, or lines"
        raise RecipeError("data.documents: a text file has lines, not rows", hint)
    # From here on, a table is read like a text file; each line keeps the number of its row.
    if unit != "rows" and not is_lines:
        texts = ((row, line) for row, text in texts for line in text.splitlines() or ("",))
    if unit == "articles":
        texts = _separate_articles(texts, name)
    if unit in ("articles", "blank_lines"):
        texts = _join_lines(texts, name)
    documents = (Document(text, name, line) for line, text in texts if text and not text.isspace())
    return _warn_about_titles(documents) if data.documents == "auto" else documents


def _warn_about_titles(documents: Iterable[Document]) -> Iterator[Document]:
    """Yield the documents, and log once if a title of wikitext is a document."""
    for document in documents:
        text = document.text
        if isinstance(text, str) and text[:3] == " = " and _HEADING.fullmatch(text):
            log_once(f"{document.source}: a title is a separate document; --set data.documents=articles joins articles")
        yield document


def _separate_articles(lines: Iterable[tuple[int, str]], name: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with blank lines only between articles, and without headings, as in BERT's text.

    Only lines between blank lines are headings, because wikitext has formulas that look like headings.
    """
    titles = 0
    for line, text in _join_lines(lines, name):
        heading = _HEADING.fullmatch(text)
        if heading is None:
            yield line, text
        # Only a title has a single equals sign. It becomes a blank line, which separates articles.
        elif heading[1] == "=":
            titles += 1
            yield line, ""
    if not titles:
        message = "no title of an article, such as ' = Title = ' between blank lines"
        raise DataError(message, "--set data.documents=auto, or another value", file=name)


def _join_lines(lines: Iterable[tuple[int, str]], name: str) -> Iterator[tuple[int, str]]:
    """Join the lines between blank lines, and yield each text with the number of its first line."""
    start, size, parts = 0, 0, list[str]()
    for position, line in lines:
        if not line or line.isspace():
            if parts:
                yield start, "\n".join(parts)
            size, parts = 0, []
            continue
        start = start if parts else position
        parts.append(line)
        size += len(line)
        if size > MAX_CHARS:
            hint = "put a blank line after each, or --set data.documents=lines"
            raise DataError(f"a document of more than {MAX_CHARS:,} characters", hint, file=name, row=start)
    if parts:
        yield start, "\n".join(parts)


def _count_files(count: int) -> str:
    return f"{count} file{'' if count == 1 else 's'}"
