"""Compare the texts of pairs by the cosine of their vectors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.columns import refuse_clash
from bertkit.data.files import read_records
from bertkit.errors import DataError
from bertkit.progress import stage
from bertkit.recipe import Data, typed_path
from bertkit.vectors.embedder import Embedder
from bertkit.vectors.text_files import text_of

_CHUNK = 4096  # pairs that are embedded at a time: enough to sort by length
_RESULT = "cosine"

Pair = tuple[dict[str, Any], str, str]
"""A row, and the two texts of it that are compared."""


def similar(embedder: Embedder, pairs: Iterable[Pair]) -> Iterator[dict[str, Any]]:
    """Yield each row with the ``cosine`` of the vectors of its two texts, in order.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    remaining = iter(pairs)
    # a file that cannot be read ends in its error before the model is loaded
    first = list(islice(remaining, _CHUNK))
    _ = embedder.modules
    with stage(f"loading {embedder.model}"):
        embedder.encode(["."])
    return _compare_pairs(embedder, chain(first, remaining))


def read_pairs(file: str | Path, columns: tuple[str, str] = ("text", "text_pair")) -> Iterator[Pair]:
    """Read the pairs of a file, or of standard input (``-``).

    Raises:
        DataError: a text is empty, or a column is missing.
    """
    for line, row in read_records(typed_path(file), Data()):
        texts = []
        for column, option in zip(columns, ("--column", "--pair-column"), strict=True):
            text = text_of((line, row), column, file, option)
            if not text.strip():
                raise DataError("no text", "fill it in, or remove the row", file=file, row=line, column=column)
            texts.append(text)
        refuse_clash(row, [_RESULT], "results have", file)
        yield row, texts[0], texts[1]


def _compare_pairs(embedder: Embedder, pairs: Iterable[Pair]) -> Iterator[dict[str, Any]]:
    remaining = iter(pairs)
    while chunk := list(islice(remaining, _CHUNK)):
        # each text once
        texts = list(dict.fromkeys(text for _, *both in chunk for text in both))
        vectors = embedder.encode(texts).astype(np.float64)
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
        vector_of = dict(zip(texts, vectors, strict=True))
        for row, text, other in chunk:
            yield {**row, _RESULT: float(np.float32(vector_of[text] @ vector_of[other]))}
