"""CoNLL columns: one word and its tags per line, a blank line between sentences."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from bertkit.data.formats import Format
from bertkit.data.text import (
    Record,
    Source,
    empty_file,
    excerpt,
    is_blank_line,
    read_lines,
    refuse_duplicates,
    refuse_nul,
    source_column,
)
from bertkit.errors import DataError
from bertkit.recipe.records import Data

DOCUMENT = "-DOCSTART-"
"""How a line begins that separates documents."""

_CONLL_2003 = ["tokens", "pos_tags", "chunk_tags", "ner_tags"]


def read(source: Source, data: Data, name: str) -> Iterator[Record]:
    """Yield the sentences of a CoNLL file, each a list per column.

    Columns are separated by tabs, or by spaces in a line without a tab. ``data.header`` names them. Without it, four
    columns are those of CoNLL-2003; of any other number, the first holds the tokens and the last the tags.
    """
    return parse(read_lines(source, data.encoding, name), data, name)


def parse(lines: Iterable[str], data: Data, name: str) -> Iterator[Record]:
    """Yield the sentences of lines, each with the line of its first word.

    Raises:
        DataError: a line has another number of columns than the first, or an empty one, or there is no word.
    """
    names: list[str] = []
    words: list[list[str]] = []
    first = start = 0  # lines of the first word of the file, and of the sentence
    for row, line in enumerate(chain(lines, ["\n"]), 1):
        if is_blank_line(line) or line.startswith(DOCUMENT):
            if words:
                yield start, to_columns(names, words)
            words = []
            continue
        if not names:
            _refuse_json(line, name, row)
        fields = _split_line(line, name, row)
        if not names:
            names, first = _name_columns(len(fields), data, name, row), row
        elif len(fields) != len(names):
            raise _wrong_width(line, fields, names, first, name, row)
        start = start if words else row
        words.append(fields)
    if not names:
        raise empty_file(name)


def to_columns(names: Iterable[str], words: list[list[str]]) -> dict[str, Any]:
    """Transpose the words of a sentence into a list per column.

    >>> to_columns(["tokens", "tags"], [["to", "O"], ["Rome", "B-LOC"]])
    {'tokens': ['to', 'Rome'], 'tags': ['O', 'B-LOC']}
    """
    return dict(zip(names, map(list, zip(*words, strict=True)), strict=True))


def refuse_empty_fields(fields: list[str], line: str, name: str, row: int) -> None:
    """Refuse a word with an empty column.

    Raises:
        DataError: one is empty.
    """
    if "" in fields:
        what = f"column {fields.index('') + 1} is empty: {excerpt(line)}"
        raise DataError(what, "write _ where there is nothing", file=name, row=row)


def _refuse_json(line: str, name: str, row: int) -> None:
    """Refuse a first line that is a JSON object: a run trained on CoNLL files may be given rows of another format."""
    try:
        is_json = isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        is_json = False
    if is_json:
        what = f"JSON, not a word with its tags: {excerpt(line)}"
        raise DataError(what, "--set data.format=jsonl", file=name, row=row)


def _split_line(line: str, name: str, row: int) -> list[str]:
    """Split a line at its tabs or spaces, never at other white space of Unicode, which words may hold."""
    refuse_nul(line, name, row)
    text = line.strip(" \r\n")
    fields = [field.strip(" ") for field in text.split("\t")] if "\t" in text else re.split(" +", text)
    refuse_empty_fields(fields, line, name, row)
    return fields


def _name_columns(count: int, data: Data, name: str, row: int) -> list[str]:
    if data.header and len(data.header) != count:
        what = f"data.header has {len(data.header)} names, the file {count} columns"
        raise DataError(what, "name them all: --set data.header=[...]", file=name, row=row)
    between = [f"column_{number}" for number in range(2, count)]
    names = [source_column("tokens", data), *between, source_column("tags", data)][:count]
    names = data.header or (_CONLL_2003 if count == 4 else names)
    refuse_duplicates(names, "--set data.header=[...]", name)
    return names


def _wrong_width(line: str, fields: list[str], names: list[str], first: int, name: str, row: int) -> DataError:
    what = f"{len(fields)} column{'s' * (len(fields) > 1)} here, {len(names)} in line {first}: {excerpt(line)}"
    is_mixed = "\t" in line and any(" " in field for field in fields)
    hint = "separate columns by tabs or by spaces, not both" if is_mixed else "give every word the same columns"
    return DataError(what, hint, file=name, row=row)


FORMAT = Format("conll", read, endings=(".conll", ".bio", ".iob", ".iob2"), running_text=False)
