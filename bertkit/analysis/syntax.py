"""Syntactic heads of words, as CoNLL-U files and the datasets of Universal Dependencies have them."""

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
    """A row of a file: a text, or words, which can have syntactic heads."""

    content: str | list[str]
    heads: Sequence[int] = ()
    """Position of the word that each word depends on, from 1; 0 for the root and for words without a head."""
    relations: Sequence[str] = ()
    """Relation of each word to its head."""


def parse_row(record: Record, column: str, file: str) -> ParsedRow:
    """Read the words of a row with their syntactic heads, or its text if it has no words.

    Raises:
        DataError: If the row has neither, or its heads and relations do not fit its words.
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

    Multiword tokens, such as ``don't`` before ``do`` and ``n't``, have no head, and the heads in a file do not count
    them. The returned heads do, so that a head is a position in the row.

    Raises:
        DataError: If there is not one head per word, or the heads form a circle.

    Examples:
        The first word is a multiword token. So head 2 in the file is the third word.

        >>> read_heads(["_", 2, 0, 2], 4)
        [0, 3, 0, 3]
    """
    raw = read_column(value, count, "head")
    counted = [position for position, head in enumerate(raw, 1) if head not in _NO_HEAD]
    try:
        positions = [int(raw[position - 1]) for position in counted]
    except (TypeError, ValueError):
        positions = [-1]
    if not all(0 <= head <= len(counted) for head in positions):
        message = f"{str(raw)[:60]} are not the heads of {count} words"
        raise DataError(message, "number words from 1; the root has head 0", column="head")
    heads = [0] * count
    for position, head in zip(counted, positions, strict=True):
        heads[position - 1] = counted[head - 1] if head else 0
    compute_depth(heads)
    return heads


def compute_depth(heads: Sequence[int]) -> int:
    """Return the number of words on the longest path from a root to a word.

    Raises:
        DataError: If the heads form a circle.

    >>> compute_depth([2, 0, 2, 3])
    3
    """
    # A path without a circle has at most as many words as the row. Index 0 is above all roots and has depth 0.
    depths = [0] * (len(heads) + 1)
    for word in range(1, len(heads) + 1):
        # Walk up to the first word whose depth is known. Then all words of the path get theirs, so that each word is
        # visited once.
        path = []
        while word and not depths[word]:
            path.append(word)
            if len(path) > len(heads):
                raise DataError("heads that go in a circle", "correct the row", column="head")
            word = heads[word - 1]
        for above in reversed(path):
            depths[above] = depths[heads[above - 1]] + 1
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
