"""CoNLL columns and CoNLL-U: one word and its tags per line, a blank line between sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice, pairwise
from typing import Any

from bertkit.data.text import (
    Record,
    Source,
    check_duplicates,
    check_nul,
    empty_file_error,
    excerpt,
    is_blank_line,
    read_lines,
    source_column,
)
from bertkit.errors import DataError
from bertkit.recipe.records import DataConfig
from bertkit.storage.cache import log_once

DOCUMENT = "-DOCSTART-"
"""Start of a line that separates documents."""

ENTITY_TAG = re.compile(r"O|[BIESLU]-[^ \t]+")

_HEAD_LINES = 10_000
_CONLL_2003 = ["tokens", "pos_tags", "chunk_tags", "ner_tags"]


def read(source: Source, data: DataConfig, name: str) -> Iterator[Record]:
    """Yield the sentences of a CoNLL file, each a list per column.

    Columns are separated by tabs, or by spaces in a line without a tab. ``data.header`` names them. Without it, four
    columns have the names of CoNLL-2003; otherwise the first column holds the tokens and the last holds the tags.
    """
    return parse(read_lines(source, data.encoding, name), data, name)


def parse(lines: Iterable[str], data: DataConfig, name: str) -> Iterator[Record]:
    """Yield the sentences of lines, each with the line of its first word.

    Comments before a sentence are skipped. A first column with the numbers of words is named ``column_1``.

    Raises:
        DataError: If the number of columns changes, a column is empty, or there are no words.
    """
    # 1. Read ahead. The first lines show the number of columns and the tags, by which comments are distinguished from
    # words.
    head = list(islice(lines := iter(lines), _HEAD_LINES))
    sample = [_split(line) for line in head if not (is_blank_line(line) or line.startswith((DOCUMENT, "#")))]
    tags = {fields[-1] for fields in sample}
    names: list[str] = []
    words: list[list[str]] = []
    comments: list[int] = []
    # 2. Collect the words of each sentence. A blank line is added at the end, so that the last sentence is completed
    # like the others.
    first = start = 0  # lines of the first word of the file, and of the sentence
    for row, line in enumerate(chain(head, lines, ["\n"]), 1):
        if is_blank_line(line) or line.startswith(DOCUMENT):
            if words:
                yield start, to_columns(names, words)
            words = []
            continue
        fields = _split(line)
        if sample and not words and line.startswith(("# ", "#\t", "##", "#begin", "#end")):
            # A line of the word "#" is not a comment: it has the usual number of columns, and a tag of other words.
            is_odd = fields[-1] not in tags and ("=" in line or all(map(ENTITY_TAG.fullmatch, tags)))
            if len(fields) != len(sample[0]) or (is_odd and len(fields) > 1):
                comments.append(row)
                continue
        check_nul(line, name, row)
        check_fields(fields, line, name, row)
        if not names:
            names, first = _name_columns(line, len(fields), sample, data, name, row), row
        elif len(fields) != len(names):
            raise _wrong_width(line, fields, names, first, name, row)
        start = start if words else row
        words.append(fields)
    if comments:
        log_once(f"{name}: comments that start with # are skipped ({len(comments):,}, from line {comments[0]} on)")
    if not names:
        raise empty_file_error(name)


def to_columns(names: Iterable[str], words: list[list[str]]) -> dict[str, Any]:
    """Transpose the words of a sentence into a list per column.

    >>> to_columns(["tokens", "tags"], [["to", "O"], ["Rome", "B-LOC"]])
    {'tokens': ['to', 'Rome'], 'tags': ['O', 'B-LOC']}
    """
    return dict(zip(names, map(list, zip(*words, strict=True)), strict=True))


def check_fields(fields: list[str], line: str, name: str, row: int) -> None:
    """Check that no column of a word is empty.

    Raises:
        DataError: If a column is empty.
    """
    if "" in fields:
        message = f"column {fields.index('') + 1} is empty: {excerpt(line)}"
        raise DataError(message, "write _ for an empty value", file=name, row=row)


def _split(line: str) -> list[str]:
    """Split a line at its tabs or spaces, but not at other Unicode whitespace, which words may contain."""
    text = line.strip(" \r\n")
    return [field.strip(" ") for field in text.split("\t")] if "\t" in text else re.split(" +", text)


def _name_columns(line: str, count: int, sample: list[list[str]], data: DataConfig, name: str, row: int) -> list[str]:
    if re.match(r'\{ *".*\}\s*$', line):
        problem = f"JSON, not a word with its tags: {excerpt(line)}"
        raise DataError(problem, "--set data.format=jsonl", file=name, row=row)
    if data.header and len(data.header) != count:
        message = f"data.header has {len(data.header)} names, the file {count} columns"
        raise DataError(message, "name them all: --set data.header=[...]", file=name, row=row)
    names = [f"column_{index}" for index in range(1, count + 1)]
    tagged = [at for at in range(1, count) if all(ENTITY_TAG.fullmatch(word[at]) for word in sample if at < len(word))]
    is_numbered = count > 1 and 1 not in tagged and _count_up([word[0] for word in sample])
    # `is_numbered` is an index here: the tokens are in column 0, or in column 1 after the numbers of the words.
    names[is_numbered] = source_column("tokens", data)
    if count > 1 + is_numbered and not (is_numbered and len(tagged) > 1):
        names[tagged[0] if is_numbered and tagged else -1] = source_column("tags", data)
    names = data.header or (_CONLL_2003 if count == 4 and not is_numbered else names)
    check_duplicates(names, "--set data.header=[...]", name)
    return names


def _count_up(values: list[str]) -> bool:
    """Return whether values number words, from 0 or 1 in each sentence or throughout the file.

    >>> _count_up(["1", "2", "1", "2", "3"]), _count_up(["In", "1900"])
    (True, False)
    """
    has_numbers = len({*values}) > 1 and all(map(str.isdecimal, values))
    return has_numbers and all(int(after) == int(before) + 1 or int(after) < 2 for before, after in pairwise(values))


def _wrong_width(line: str, fields: list[str], names: list[str], first: int, name: str, row: int) -> DataError:
    message = f"{len(fields)} column{'s' * (len(fields) > 1)} here, {len(names)} in line {first}: {excerpt(line)}"
    is_mixed = "\t" in line and any(" " in field for field in fields)
    hint = "separate columns by tabs or by spaces, not both" if is_mixed else "give every word the same columns"
    return DataError(message, hint, file=name, row=row)


# Columns of CoNLL-U after the id.
_COLUMNS = ("tokens", "lemmas", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_COMMENT = re.compile(r"# *(sent_id|text) *=(.*)")
# Id of a multiword token or of an empty node.
_NOT_A_WORD = re.compile(r"[0-9]+-[0-9]+|[0-9]+\.[0-9]+")


def read_conllu(source: Source, data: DataConfig, name: str) -> Iterator[Record]:
    """Yield the sentences of a CoNLL-U file with their id, their text, and a list per column.

    Only syntactic words are read: the lines of multiword tokens (``1-2``) and of empty nodes (``8.1``) are left out.
    """
    return parse_conllu(read_lines(source, data.encoding, name), data, name)


def parse_conllu(lines: Iterable[str], data: DataConfig, name: str) -> Iterator[Record]:
    """Yield the sentences of lines, each with the line of its first word.

    Raises:
        DataError: If a line is not CoNLL-U, or there are no sentences.
    """
    words: list[list[str]] = []
    comments: dict[str, str] = {}  # `sent_id` and `text` of the sentence
    start = count = 0
    for row, line in enumerate(chain(lines, ["\n"]), 1):
        if is_blank_line(line):
            if words:
                count += 1
                columns = to_columns(_COLUMNS, words)
                text = comments.get("text") or " ".join(columns["tokens"])
                yield start, {"id": comments.get("sent_id") or str(count), "text": text, **columns}
            words, comments = [], {}
        elif line.startswith("#"):
            check_nul(line, name, row)
            if comment := _COMMENT.match(line):
                comments[comment[1]] = comment[2].strip()
        elif fields := _split_line(line, len(words) + 1, name, row):
            start = start if words else row
            words.append(fields)
    if not count:
        raise empty_file_error(name)


def _split_line(line: str, expected_id: int, name: str, row: int) -> list[str]:
    """Return the columns of a word after its id, or an empty list if the line is not a syntactic word."""
    check_nul(line, name, row)
    fields = line.rstrip("\r\n").split("\t")
    if len(fields) != 10:
        width = f"{len(fields)} column{'s' * (len(fields) > 1)} instead of 10: {excerpt(line)}"
        hint = "separate them by tabs; if it is not CoNLL-U, --set data.format=conll"
        raise DataError(width, hint, file=name, row=row)
    check_fields(fields, line, name, row)
    if _NOT_A_WORD.fullmatch(fields[0]):
        return []
    if fields[0] != str(expected_id):
        hint = "number the words of a sentence from 1, with a blank line after the last"
        raise DataError(f"id {fields[0][:20]!r} instead of {expected_id}", hint, file=name, row=row)
    return fields[1:]
