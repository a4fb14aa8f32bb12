"""Syntactic heads of words in CoNLL-U files and datasets of Universal Dependencies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bertkit.data.text import Record
from bertkit.errors import DataError, error_location
from bertkit.tokens.words import read_list
from bertkit.vectors.text_files import get_text

_NO_HEAD = frozenset({"_", "None", "", None})


@dataclass(frozen=True)
class ParsedRow:
    """A row of a file: a text, or words with or without syntactic heads."""

    content: str | list[str]
    heads: Sequence[int] = ()
    """Position of each word's head, from 1; 0 for the root and for words without a head."""
    relations: Sequence[str] = ()
    """Relation of each word to its head."""


def parse_row(record: Record, column: str, file: str) -> ParsedRow:
    """Read the words of a row with their syntactic heads, or its text if it has no words.

    Raises:
        DataError: If the row has neither words nor a text, or its heads and relations do not match its words.
    """
    line, values = record
    words = values.get("tokens" if column == "text" else column)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return ParsedRow(get_text(record, column, file))
    if not all(isinstance(values.get(name), list) for name in ("head", "deprel")):
        return ParsedRow(words)
    with error_location(file=file, row=line):
        heads = read_heads(values["head"], len(words))
        relations = read_column(values["deprel"], len(words), "deprel")
    return ParsedRow(words, heads, list(map(str, relations)))


def read_heads(value: object, count: int) -> list[int]:
    """Read the head of each word: the position of a word from 1, or 0 for the root and for words without a head.

    Multiword tokens, such as ``don't`` before ``do`` and ``n't``, have no head. Heads in a file count words without
    multiword tokens; the returned heads are positions in the row, which includes them.

    Raises:
        DataError: If there is not one head per word, or the heads form a cycle.

    Examples:
        The first word is a multiword token, so head 2 in the file is the third word of the row.

        >>> read_heads(["_", 2, 0, 2], 4)
        [0, 3, 0, 3]
    """
    values = read_column(value, count, "head")
    word_positions = [position for position, head in enumerate(values, 1) if head not in _NO_HEAD]
    try:
        file_heads = [int(values[position - 1]) for position in word_positions]
    except (TypeError, ValueError):
        file_heads = [-1]
    if not all(0 <= head <= len(word_positions) for head in file_heads):
        message = f"{str(values)[:60]} are not the heads of {count} words"
        raise DataError(message, "number words from 1; the root has head 0", column="head")
    heads = [0] * count
    for position, head in zip(word_positions, file_heads, strict=True):
        heads[position - 1] = word_positions[head - 1] if head else 0
    compute_depth(heads)
    return heads


def compute_depth(heads: Sequence[int]) -> int:
    """Return the number of words on the longest path from a root to a word.

    Raises:
        DataError: If the heads form a cycle.

    >>> compute_depth([2, 0, 2, 3])
    3
    """
    # Index 0 is the parent of all roots, with depth 0.
    depths = [0] * (len(heads) + 1)
    for word in range(1, len(heads) + 1):
        # Walk up to a word whose depth is known, then set the depths of the path, so that each word is visited once.
        path = []
        while word and not depths[word]:
            path.append(word)
            if len(path) > len(heads):
                raise DataError("the heads form a cycle", "correct the row", column="head")
            word = heads[word - 1]
        for node in reversed(path):
            depths[node] = depths[heads[node - 1]] + 1
    return max(depths)


def read_column(value: object, count: int, column: str) -> list[Any]:
    """Read a column with one value per word.

    Raises:
        DataError: If there are more or fewer values than words.
    """
    values = read_list(value, column)
    if len(values) != count:
        raise DataError(f"{count} words but {len(values)} values", "write one value per word", column=column)
    return values
