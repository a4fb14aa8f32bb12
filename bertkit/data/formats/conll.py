"""Read text line by line: a word and its tags a line (CoNLL, CoNLL-U), or one text a line."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any

from bertkit.data.formats.csv import Record, Source, excerpt, nul_remedy, read_lines
from bertkit.errors import DataError
from bertkit.recipe.records import Data

_Parser = Callable[[Iterable[str], Data, str], Iterator[Record]]

_CONLL_2003 = ["tokens", "pos_tags", "chunk_tags", "ner_tags"]
_CONLLU = ("tokens", "lemmas", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_DOCUMENT = "-DOCSTART-"

_COMMENT = re.compile(r"# *(sent_id|text) *=(.*)")
_UNCOUNTED = re.compile(r"[0-9]+-[0-9]+|[0-9]+\.[0-9]+")  # a word of several, or one that was left unsaid
_CONLLU_LINE = re.compile(r"[0-9]+([-.][0-9]+)?(\t[^\t]*){9}")
_TAGGED = re.compile(r"[^ \t].*[ \t](O|[BIESLUO]-[^ \t]+)")


def read_columns(source: Source, data: Data, name: str) -> Iterator[Record]:
    """Yield the sentences of a CoNLL file, each a list per column: a word a line, a blank line between sentences.

    Columns are parted by tabs, or by spaces in a line without a tab. They are named as ``data.header`` says; else
    four are those of CoNLL-2003, and of any other number the first holds the tokens, the last the tags.
    """
    return _parse_columns(read_lines(source, data.encoding, name), data, name)


def read_conllu(source: Source, data: Data, name: str) -> Iterator[Record]:
    """Yield the sentences of a CoNLL-U file, each with its id, its text, and a list per column.

    Only syntactic words count: the lines of multiword tokens (``1-2``) and of empty nodes (``8.1``) are left out.
    """
    return _parse_conllu(read_lines(source, data.encoding, name), data, name)


def read_text_lines(source: Source, data: Data, name: str) -> Iterator[Record]:
    """Yield each line as a text; a blank line is one too, but for those after the last text."""
    return _parse_texts(read_lines(source, data.encoding, name), data, name)


def read_txt(source: Source, data: Data, name: str) -> Iterator[Record]:
    """Yield the rows of a file whose name does not tell: CoNLL-U, CoNLL columns or texts, as its first lines look."""
    lines = read_lines(source, data.encoding, name)
    head = list(islice(lines, 200))
    parse, kind = _find_parser(head)
    if kind:
        log = logging.getLogger("bertkit")
        log.info("%s is read as %s; if it is text, --set data.format=lines", name, kind)
    yield from parse(chain(head, lines), data, name)


def _find_parser(head: list[str]) -> tuple[_Parser, str]:
    """Give what reads a file that begins like this, and the name of that format where it is not plain text."""
    stripped = (line.strip(" \t\r\n") for line in head)
    lines = list(islice(filter(None, stripped), 50))
    first = next((line for line in lines if not line.startswith("#")), "")
    if _CONLLU_LINE.fullmatch(first):
        return _parse_conllu, "CoNLL-U"
    if lines and all(line.startswith(_DOCUMENT) or _TAGGED.fullmatch(line) for line in lines):
        return _parse_columns, "CoNLL columns"
    if lines and lines[0].startswith(_DOCUMENT):
        return _parse_columns, "CoNLL columns"
    return _parse_texts, ""


def _parse_columns(lines: Iterable[str], data: Data, name: str) -> Iterator[Record]:
    names: list[str] = []
    words: list[list[str]] = []
    first = start = 0  # lines of the first word of the file, and of the sentence
    for row, line in enumerate(chain(lines, ["\n"]), 1):
        if _is_blank(line) or line.startswith(_DOCUMENT):
            if words:
                yield start, _as_columns(names, words)
            words = []
            continue
        fields = _split_columns(line, name, row)
        if not names:
            names, first = _name_columns(len(fields), data, name, row), row
        elif len(fields) != len(names):
            raise _wrong_width(line, fields, names, first, name, row)
        start = start if words else row
        words.append(fields)
    if not names:
        raise _empty(name)


def _parse_conllu(lines: Iterable[str], data: Data, name: str) -> Iterator[Record]:
    words: list[list[str]] = []
    about: dict[str, str] = {}  # what the comments say of the sentence
    start = number = 0
    for row, line in enumerate(chain(lines, ["\n"]), 1):
        if _is_blank(line):
            if words:
                number += 1
                yield start, _as_sentence(words, about, number)
            words, about = [], {}
        elif line.startswith("#"):
            _refuse_nul(line, name, row)
            if comment := _COMMENT.match(line):
                about[comment[1]] = comment[2].strip()
        elif fields := _split_conllu(line, len(words) + 1, name, row):
            start = start if words else row
            words.append(fields)
    if not number:
        raise _empty(name)


def _parse_texts(lines: Iterable[str], data: Data, name: str) -> Iterator[Record]:
    column, row = _actual("text", data), 0
    blank: list[Record] = []
    for row, line in enumerate(lines, 1):
        _refuse_nul(line, name, row)
        blank.append((row, {column: line.rstrip("\r\n")}))
        if line.strip():
            yield from blank
            blank = []
    if len(blank) == row:
        raise _empty(name)


def _is_blank(line: str) -> bool:
    return not line.strip(" \t\r\n")


def _as_columns(names: Iterable[str], words: list[list[str]]) -> dict[str, Any]:
    """Turn a sentence around.

    >>> _as_columns(["tokens", "tags"], [["to", "O"], ["Rome", "B-LOC"]])
    {'tokens': ['to', 'Rome'], 'tags': ['O', 'B-LOC']}
    """
    return dict(zip(names, map(list, zip(*words, strict=True)), strict=True))


def _as_sentence(words: list[list[str]], about: dict[str, str], number: int) -> dict[str, Any]:
    columns = _as_columns(_CONLLU, words)
    name, text = about.get("sent_id") or str(number), about.get("text") or " ".join(columns["tokens"])
    return {"id": name, "text": text, **columns}


def _split_columns(line: str, name: str, row: int) -> list[str]:
    """Part a line at its tabs, or at its spaces: never at the other blanks of Unicode, which words may hold."""
    _refuse_nul(line, name, row)
    text = line.strip(" \r\n")
    fields = [field.strip(" ") for field in text.split("\t")] if "\t" in text else re.split(" +", text)
    _refuse_empty(fields, line, name, row)
    return fields


def _split_conllu(line: str, place: int, name: str, row: int) -> list[str]:
    """Give the columns of a word after its id; none of a line that is not counted as a word."""
    _refuse_nul(line, name, row)
    fields = line.rstrip("\r\n").split("\t")
    if len(fields) != 10:
        width = f"{len(fields)} column{'s' * (len(fields) > 1)} instead of 10: {excerpt(line)}"
        raise DataError(width, "part them by tabs; if it is not CoNLL-U, --set data.format=conll", file=name, row=row)
    _refuse_empty(fields, line, name, row)
    if _UNCOUNTED.fullmatch(fields[0]):
        return []
    if fields[0] != str(place):
        hint = "number the words of a sentence from 1, with a blank line after the last"
        raise DataError(f"id {fields[0][:20]!r} where {place} belongs", hint, file=name, row=row)
    return fields[1:]


def _name_columns(count: int, data: Data, name: str, row: int) -> list[str]:
    if data.header and len(data.header) != count:
        what = f"data.header has {len(data.header)} names, the file {count} columns"
        raise DataError(what, "name them all: --set data.header=[...]", file=name, row=row)
    between = [f"column_{place}" for place in range(2, count)]
    names = [_actual("tokens", data), *between, _actual("tags", data)][:count]
    names = data.header or (_CONLL_2003 if count == 4 else names)
    twice = next((column for column in names if names.count(column) > 1), None)
    if twice is not None:
        raise DataError("two columns have one name", "--set data.header=[...]", file=name, column=twice)
    return names


def _actual(canonical: str, data: Data) -> str:
    """Give the name that the recipe expects a column to have in its source."""
    actual = data.columns.get(canonical)
    return actual if isinstance(actual, str) else canonical


def _wrong_width(line: str, fields: list[str], names: list[str], first: int, name: str, row: int) -> DataError:
    what = f"{len(fields)} column{'s' * (len(fields) > 1)} here, {len(names)} in line {first}: {excerpt(line)}"
    is_mixed = "\t" in line and any(" " in field for field in fields)
    hint = "part columns by tabs or by spaces, not both" if is_mixed else "give every word the same columns"
    return DataError(what, hint, file=name, row=row)


def _refuse_nul(line: str, name: str, row: int) -> None:
    if "\0" in line:
        raise DataError("a NUL character", nul_remedy(line), file=name, row=row)


def _refuse_empty(fields: list[str], line: str, name: str, row: int) -> None:
    if "" in fields:
        what = f"column {fields.index('') + 1} is empty: {excerpt(line)}"
        raise DataError(what, "write _ where there is nothing", file=name, row=row)


def _empty(name: str) -> DataError:
    return DataError("the file is empty", "give it rows", file=name)
