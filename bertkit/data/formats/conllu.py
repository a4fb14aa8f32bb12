"""CoNLL-U, the format of Universal Dependencies: ten columns, with comments about each sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain

from bertkit.data.formats import Format
from bertkit.data.formats.conll import refuse_empty_fields, to_columns
from bertkit.data.text import Record, Source, empty_file, excerpt, is_blank_line, read_lines, refuse_nul
from bertkit.errors import DataError
from bertkit.recipe.records import Data

# the columns of CoNLL-U after the id
_COLUMNS = ("tokens", "lemmas", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_COMMENT = re.compile(r"# *(sent_id|text) *=(.*)")
# the id of a multiword token, or of an empty node
_NOT_A_WORD = re.compile(r"[0-9]+-[0-9]+|[0-9]+\.[0-9]+")


def read(source: Source, data: Data, name: str) -> Iterator[Record]:
    """Yield the sentences of a CoNLL-U file, each with its id, its text, and a list per column.

    Only syntactic words are read: the lines of multiword tokens (``1-2``) and of empty nodes (``8.1``) are left out.
    """
    return parse(read_lines(source, data.encoding, name), data, name)


def parse(lines: Iterable[str], data: Data, name: str) -> Iterator[Record]:
    """Yield the sentences of lines, each with the line of its first word.

    Raises:
        DataError: a line is not CoNLL-U, or there is no sentence.
    """
    words: list[list[str]] = []
    comments: dict[str, str] = {}  # `sent_id` and `text` of the sentence
    start = number = 0
    for row, line in enumerate(chain(lines, ["\n"]), 1):
        if is_blank_line(line):
            if words:
                number += 1
                columns = to_columns(_COLUMNS, words)
                text = comments.get("text") or " ".join(columns["tokens"])
                yield start, {"id": comments.get("sent_id") or str(number), "text": text, **columns}
            words, comments = [], {}
        elif line.startswith("#"):
            refuse_nul(line, name, row)
            if comment := _COMMENT.match(line):
                comments[comment[1]] = comment[2].strip()
        elif fields := _split_line(line, len(words) + 1, name, row):
            start = start if words else row
            words.append(fields)
    if not number:
        raise empty_file(name)


def _split_line(line: str, expected_id: int, name: str, row: int) -> list[str]:
    """Return the columns of a word after its id; none for a line that is not a syntactic word."""
    refuse_nul(line, name, row)
    fields = line.rstrip("\r\n").split("\t")
    if len(fields) != 10:
        width = f"{len(fields)} column{'s' * (len(fields) > 1)} instead of 10: {excerpt(line)}"
        hint = "separate them by tabs; if it is not CoNLL-U, --set data.format=conll"
        raise DataError(width, hint, file=name, row=row)
    refuse_empty_fields(fields, line, name, row)
    if _NOT_A_WORD.fullmatch(fields[0]):
        return []
    if fields[0] != str(expected_id):
        hint = "number the words of a sentence from 1, with a blank line after the last"
        raise DataError(f"id {fields[0][:20]!r} where {expected_id} belongs", hint, file=name, row=row)
    return fields[1:]


FORMAT = Format("conllu", read, endings=(".conllu",), running_text=False)
