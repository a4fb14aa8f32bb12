"""Scores of late interaction in numpy, for texts whose vectors a model has computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bertkit.storage.columns import Numbers
from bertkit.tokens.features import split_by_size

_NUMBERS = 2**23  # products of tokens that are in memory at a time


def real_tokens(vectors: Numbers) -> Numbers:
    """Return the vectors of a text's tokens (tokens, dimension) without those of padding, which are 0; a copy."""
    kept: Numbers = vectors[(vectors != 0).any(axis=-1)]
    return kept


def max_sim(queries: Sequence[Numbers], documents: Sequence[Numbers]) -> Numbers:
    """Score each query with each document, (queries, documents); each is an array (its tokens, dimension).

    Two query tokens, each with its most similar token of a document: 0.8 and 1.

    >>> query, document = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[0.8, 0.6], [0.0, 1.0]])
    >>> round(float(max_sim([query], [document])[0, 0]), 2)
    1.8
    """
    starts = np.cumsum([0, *(len(query) for query in queries)])[:-1]
    stacked = np.concatenate(queries)
    scores = np.empty((len(queries), len(documents)), dtype=np.float32)
    for numbers in split_by_size(range(len(documents)), _NUMBERS // len(stacked), lambda n: len(documents[n])):
        some = [documents[number] for number in numbers]
        ends = np.cumsum([0, *(len(document) for document in some)])[:-1]
        # (tokens of all queries, tokens of these documents): the highest of each document, then sums of each query
        highest = np.maximum.reduceat(stacked @ np.concatenate(some).T, ends, axis=1)
        scores[:, numbers] = np.add.reduceat(highest, starts, axis=0)
    return scores
