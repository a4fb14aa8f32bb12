"""Find vectors that are near others, block by block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bertkit.hardware.precision import bf16_is_faster_on_cpu
from bertkit.progress import get_progress, stage
from bertkit.vectors.vector_files import Matrix

if TYPE_CHECKING:
    import torch


# Rows that are compared at a time with kept rows: 64 MB of cosines in bf16.
_BLOCK, _CHUNK = 4096, 8192
_ROUNDING = 2**-7
"""Largest error of a cosine that is computed in bf16: 2^-9 for each vector, and 2^-9 for the result."""
_MIN_ROWS_FOR_TRIAL = 10_000  # with fewer rows, the comparison ends sooner than a trial of the precision


class NearDuplicates(NamedTuple):
    """Index of the kept vector that each vector is near to, or -1 if the vector is kept; and their cosine."""

    matches: np.ndarray[Any, np.dtype[np.int64]]
    cosines: Matrix


def find_similar(vectors: Matrix, threshold: float, *, fixed: int = 0) -> NearDuplicates:
    """Find the vectors whose cosine with a kept one is at least the threshold.

    Vectors are compared in their order with those kept before. So no two kept vectors are similar, and each of the
    others is similar to the kept vector that is named for it. The result is exact up to the rounding of float32.

    Args:
        vectors: float32 of length 1, (rows, dimension), in the order of preference.
        threshold: Minimum cosine of similar vectors.
        fixed: Number of first rows that are always kept.

    >>> vectors = np.array([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6], [1.0, 0.0]], dtype=np.float32)
    >>> find_similar(vectors, 0.75).matches.tolist()  # the last two are similar to the first
    [-1, -1, 0, 0]
    """
    import torch

    rows, dtype = len(vectors), _fast_dtype(len(vectors))
    # In float32, both products below differ only by the order of summation.
    margin = _ROUNDING if dtype == torch.bfloat16 else 1e-5
    exact = torch.from_numpy(np.ascontiguousarray(vectors))
    similar = NearDuplicates(np.full(rows, -1, dtype=np.int64), np.ones(rows, dtype=np.float32))
    kept_rows = np.arange(fixed)
    with stage("comparing vectors", rows):
        for start in range(fixed, rows, _BLOCK):
            block = np.arange(start, min(start + _BLOCK, rows))
            # 1. Compare the block with all rows kept before it. Rows that are similar to one leave the block.
            for first in range(0, len(kept_rows), _CHUNK):
                chunk = kept_rows[first : first + _CHUNK]
                # The fast dtype only finds candidates; float32 decides which are similar.
                highest = (exact[block].to(dtype) @ exact[chunk].to(dtype).T).amax(dim=1)
                likely = block[(highest >= threshold - margin).numpy()]
                if len(likely):
                    best = (exact[likely] @ exact[chunk].T).max(dim=1)
                    is_near = (best.values >= threshold).numpy()
                    similar.matches[likely[is_near]] = chunk[best.indices.numpy()[is_near]]
                    similar.cosines[likely[is_near]] = best.values.numpy()[is_near]
                    block = block[similar.matches[block] < 0]
            # 2. Compare the rest of the block with itself, in order.
            cosines = (exact[block] @ exact[block].T).numpy()
            # (block, block), above the diagonal: row i has the rows after i that are similar to it.
            is_near = np.triu(cosines >= threshold, 1)
            for row in np.flatnonzero(is_near.any(axis=1)):
                # A row that is similar to an earlier kept row is not kept, so no row is removed because of it.
                if similar.matches[block[row]] < 0:
                    later = np.flatnonzero(is_near[row])
                    later = later[similar.matches[block[later]] < 0]
                    similar.matches[block[later]], similar.cosines[block[later]] = block[row], cosines[row, later]
            kept_rows = np.append(kept_rows, block[similar.matches[block] < 0])
            get_progress().update(min(start + _BLOCK, rows), {})
    return similar


def find_nearest(queries: Matrix, vectors: Matrix, query_rows: np.ndarray) -> tuple[np.ndarray, Matrix]:
    """Find the nearest vector of each query other than the query itself, and return its index and the cosine.

    Args:
        queries: Some of the vectors, (queries, dimension).
        vectors: Vectors of length 1, (rows, dimension).
        query_rows: Index of each query in `vectors`, (queries,).
    """
    # -2 is less than any cosine.
    best, nearest = np.full(len(queries), -2, dtype=np.float32), np.zeros(len(queries), dtype=np.int64)
    for start in range(0, len(vectors), _CHUNK):
        cosines = queries @ vectors[start : start + _CHUNK].T
        # Hide each query from itself, if it is in this chunk of rows.
        inside = np.flatnonzero((query_rows >= start) & (query_rows < start + cosines.shape[1]))
        cosines[inside, query_rows[inside] - start] = -2
        column = cosines.argmax(axis=1)
        value = cosines[np.arange(len(queries)), column]
        nearest = np.where(value > best, column + start, nearest)
        best = np.maximum(value, best)
    return nearest, best


def _fast_dtype(rows: int) -> torch.dtype:
    """Return the dtype in which the CPU multiplies fastest: bf16 if it has units for it."""
    import torch

    return torch.bfloat16 if rows >= _MIN_ROWS_FOR_TRIAL and bf16_is_faster_on_cpu() else torch.float32
