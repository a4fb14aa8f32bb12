"""Readers of CoNLL columns and CoNLL-U: one word and its tags per line, a blank line between sentences."""

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
"""First characters of a line between documents."""

ENTITY_TAG = re.compile(r"O|[BIESLU]-[^ \t]+")

_HEAD_LINES = 10_000
_CONLL_2003 = ["tokens", "pos_tags", "chunk_tags", "ner_tags"]


def read(source: Source, data: DataConfig, name: str) -> Iterator[Record]:
    """Yield the sentences of a CoNLL file, with a list per column.

    Columns are separated by tabs, or by spaces in a line without a tab. ``data.header`` names them. Without it, four
    columns get the names of CoNLL-2003; otherwise, the first column holds the tokens and the last one the tags.
    """
    return parse(read_lines(source, data.encoding, name), data, name)


def parse(lines: Iterable[str], data: DataConfig, name: str) -> Iterator[Record]:
    """Yield the sentences of lines, each with the line of its first word.

    Comments before a sentence are skipped. A first column that counts the words is named ``column_1``.

    Raises:
        DataError: If the number of columns changes, a column is empty, or there are no words.
    """
    # 1. Read ahead. The number of columns and the tags of the first lines distinguish words from comments.
    head = list(islice(lines := iter(lines), _HEAD_LINES))
    sample = [_split_fields(line) for line in head if not (is_blank_line(line) or line.startswith((DOCUMENT, "#")))]
    known_tags = {fields[-1] for fields in sample}
    names: list[str] = []
    words: list[list[str]] = []
    comments: list[int] = []
    # 2. Collect the words of each sentence. The added blank line ends the last sentence.
    first_row = sentence_row = 0  # line of the first word of the file, and of the sentence
    for row, line in enumerate(chain(head, lines, ["\n"]), 1):
        if is_blank_line(line) or line.startswith(DOCUMENT):
            if words:
                yield sentence_row, to_columns(names, words)
            words = []
            continue
        fields = _split_fields(line)
        if sample and not words and line.startswith(("# ", "#\t", "##", "#begin", "#end")):
            # The word "#" has the usual number of columns and a known tag, unlike a comment.
            has_odd_tag = fields[-1] not in known_tags and ("=" in line or all(map(ENTITY_TAG.fullmatch, known_tags)))
            if len(fields) != len(sample[0]) or (has_odd_tag and len(fields) > 1):
                comments.append(row)
                continue
        check_nul(line, name, row)
        check_fields(fields, line, name, row)
        if not names:
            names, first_row = _name_columns(line, len(fields), sample, data, name, row), row
        elif len(fields) != len(names):
            raise _width_error(line, fields, names, first_row, name, row)
        sentence_row = sentence_row if words else row
        words.append(fields)
    if comments:
        log_once(f"{name}: {len(comments):,} comments that start with # are skipped (first in line {comments[0]})")
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


def _split_fields(line: str) -> list[str]:
    """Split a line at its tabs, or else at its spaces; words can contain other Unicode whitespace."""
    text = line.strip(" \r\n")
    return [field.strip(" ") for field in text.split("\t")] if "\t" in text else re.split(" +", text)


def _name_columns(line: str, width: int, sample: list[list[str]], data: DataConfig, name: str, row: int) -> list[str]:
    if re.match(r'\{ *".*\}\s*$', line):
        problem = f"JSON, not a word with its tags: {excerpt(line)}"
        raise DataError(problem, "read it as JSON Lines: --set data.format=jsonl", file=name, row=row)
    if data.header and len(data.header) != width:
        message = f"data.header must name the {width} columns of the file, got {len(data.header)}"
        raise DataError(message, "name all columns: --set data.header=[...]", file=name, row=row)
    names = [f"column_{index}" for index in range(1, width + 1)]
    tag_columns = [i for i in range(1, width) if all(ENTITY_TAG.fullmatch(word[i]) for word in sample if i < len(word))]
    is_numbered = width > 1 and 1 not in tag_columns and _are_word_ids([word[0] for word in sample])
    # `is_numbered` is used as an index: tokens are in column 0, or in column 1 after the word numbers.
    names[is_numbered] = source_column("tokens", data)
    if width > 1 + is_numbered and not (is_numbered and len(tag_columns) > 1):
        names[tag_columns[0] if is_numbered and tag_columns else -1] = source_column("tags", data)
    names = data.header or (_CONLL_2003 if width == 4 and not is_numbered else names)
    check_duplicates(names, "name the columns: --set data.header=[...]", name)
    return names


def _are_word_ids(values: list[str]) -> bool:
    """Return whether values are word numbers, from 0 or 1 in each sentence or throughout the file.

    >>> _are_word_ids(["1", "2", "1", "2", "3"]), _are_word_ids(["In", "1900"])
    (True, False)
    """
    has_numbers = len({*values}) > 1 and all(map(str.isdecimal, values))
    return has_numbers and all(int(after) == int(before) + 1 or int(after) < 2 for before, after in pairwise(values))


def _width_error(line: str, fields: list[str], names: list[str], first_row: int, name: str, row: int) -> DataError:
    message = f"{len(fields)} column{'s' * (len(fields) > 1)}, but {len(names)} in line {first_row}: {excerpt(line)}"
    is_mixed = "\t" in line and any(" " in field for field in fields)
    hint = "separate columns by tabs or by spaces, not both" if is_mixed else "give every word the same columns"
    return DataError(message, hint, file=name, row=row)


# Columns of CoNLL-U after the id.
_COLUMNS = ("tokens", "lemmas", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_COMMENT = re.compile(r"# *(sent_id|text) *=(.*)")
# Ids of multiword tokens and of empty nodes.
_NOT_A_WORD = re.compile(r"[0-9]+-[0-9]+|[0-9]+\.[0-9]+")


def read_conllu(source: Source, data: DataConfig, name: str) -> Iterator[Record]:
    """Yield the sentences of a CoNLL-U file, with an id, the text, and a list per column.

    Only syntactic words are read; lines of multiword tokens (``1-2``) and of empty nodes (``8.1``) are skipped.
    """
    return parse_conllu(read_lines(source, data.encoding, name), data, name)


def parse_conllu(lines: Iterable[str], data: DataConfig, name: str) -> Iterator[Record]:
    """Yield the sentences of lines, each with the line of its first word.

    Raises:
        DataError: If a line is not CoNLL-U, or there are no sentences.
    """
    words: list[list[str]] = []
    comments: dict[str, str] = {}  # `sent_id` and `text` of the sentence
    sentence_row = count = 0
    for row, line in enumerate(chain(lines, ["\n"]), 1):
        if is_blank_line(line):
            if words:
                count += 1
                columns = to_columns(_COLUMNS, words)
                text = comments.get("text") or " ".join(columns["tokens"])
                yield sentence_row, {"id": comments.get("sent_id") or str(count), "text": text, **columns}
            words, comments = [], {}
        elif line.startswith("#"):
            check_nul(line, name, row)
            if comment := _COMMENT.match(line):
                comments[comment[1]] = comment[2].strip()
        elif fields := _split_line(line, len(words) + 1, name, row):
            sentence_row = sentence_row if words else row
            words.append(fields)
    if not count:
        raise empty_file_error(name)


def _split_line(line: str, expected_id: int, name: str, row: int) -> list[str]:
    """Return the columns of a word after its id, or an empty list if the line is not a syntactic word."""
    check_nul(line, name, row)
    fields = line.rstrip("\r\n").split("\t")
    if len(fields) != 10:
        width = f"{len(fields)} column{'s' * (len(fields) > 1)} instead of 10: {excerpt(line)}"
        hint = "separate columns by tabs; if the file is not CoNLL-U: --set data.format=conll"
        raise DataError(width, hint, file=name, row=row)
    check_fields(fields, line, name, row)
    if _NOT_A_WORD.fullmatch(fields[0]):
        return []
    if fields[0] != str(expected_id):
        hint = "number the words of a sentence from 1, with a blank line after the last"
        raise DataError(f"id {fields[0][:20]!r} instead of {expected_id}", hint, file=name, row=row)
    return fields[1:]
