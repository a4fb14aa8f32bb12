"""The texts of rows, whatever their columns are called, and digests without case, white space and last marks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from bertkit.data.columns import Columns
from bertkit.data.rows import Digests
from bertkit.data.text import normalize
from bertkit.recipe.sections import Row
from bertkit.vectors.minhash import digest_text

_LAST_MARKS = ".!?…。！？ "
_SEPARATOR = "\x1f"  # between the columns of a row, and in no text once it is normalized


def input_columns(columns: Columns) -> list[str]:
    """Return the columns that a model reads."""
    return [name for name in columns.names if name not in (columns.gold, "id")]


def read_texts(row: Row, columns: Columns) -> dict[str, str]:
    """Return the texts of a row by column; words or choices are joined by spaces.

    >>> read_texts({"text": "A cat", "label": "good"}, Columns(given=("text",), gold="label"))
    {'text': 'A cat'}
    """
    texts = {}
    for name in input_columns(columns):
        value = row.get(name)
        if isinstance(value, (list, tuple)) and value and all(isinstance(part, str) for part in value):
            texts[name] = " ".join(value)
        elif isinstance(value, str):
            texts[name] = value
    return texts


def digest_inputs(rows: Sequence[Row], columns: Columns) -> Digests:
    """Return a digest of each row's inputs; rows are alike if only case, white space and last marks differ."""
    return np.fromiter((digest_text(_SEPARATOR.join(_parts(row, columns))) for row in rows), np.uint64, len(rows))


def digest_others(row: Row, columns: Columns, column: str) -> int:
    """Return a digest of all columns that a model reads but one."""
    return hash(tuple(_parts({**row, column: None}, columns)))


def _parts(row: Row, columns: Columns) -> list[str]:
    texts = read_texts(row, columns)
    return [_normalize_text(texts[name]) if name in texts else repr(row.get(name)) for name in input_columns(columns)]


@lru_cache(50_000)  # several questions are about one paragraph
def _normalize_text(text: str) -> str:
    normalized = normalize(text)
    return normalized.rstrip(_LAST_MARKS) or normalized
