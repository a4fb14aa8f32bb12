"""Scores of late interaction in numpy, for texts whose vectors a model has computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Vectors = np.ndarray[Any, Any]

_NUMBERS = 2**23  # products of tokens that are in memory at a time


def real_tokens(vectors: Vectors) -> Vectors:
    """Return the vectors of a text's tokens (tokens, dimension) without those of padding, which are 0; a copy."""
    kept: Vectors = vectors[(vectors != 0).any(axis=-1)]
    return kept


def max_sim(queries: Sequence[Vectors], documents: Sequence[Vectors]) -> Vectors:
    """Score each query with each document, (queries, documents); each is an array (its tokens, dimension)."""
    starts = np.cumsum([0, *(len(query) for query in queries)])[:-1]
    stacked = np.concatenate(queries)
    scores = np.empty((len(queries), len(documents)), dtype=np.float32)
    for first, last in _blocks([len(document) for document in documents], _NUMBERS // len(stacked)):
        some = documents[first:last]
        ends = np.cumsum([0, *(len(document) for document in some)])[:-1]
        # (tokens of all queries, tokens of these documents): the highest of each document, then sums of each query
        highest = np.maximum.reduceat(stacked @ np.concatenate(some).T, ends, axis=1)
        scores[:, first:last] = np.add.reduceat(highest, starts, axis=0)
    return scores


def _blocks(lengths: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Split documents into runs of at most so many tokens, or one document: where each begins and ends."""
    runs, start, total = [], 0, 0
    for number, length in enumerate(lengths):
        total += length
        if total > most and number > start:
            runs.append((start, number))
            start, total = number, length
    return [*runs, (start, len(lengths))]
