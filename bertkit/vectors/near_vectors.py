"""Find vectors that are near others, block by block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bertkit.hardware.precision import bf16_is_faster_on_cpu
from bertkit.metrics import Numbers
from bertkit.progress import get_progress, stage
from bertkit.vectors.vector_files import Matrix

if TYPE_CHECKING:
    import torch


# Rows that are compared at a time with kept rows: 64 MB of cosines in bf16.
_BLOCK, _CHUNK = 4096, 8192
_ROUNDING = 2**-7
"""Largest error of a cosine that is computed in bf16: 2^-9 for each vector, and 2^-9 for the result."""
_WORTH_A_TRIAL = 10_000  # rows, which are compared before a trial of the precision has ended


class Similar(NamedTuple):
    """Index of the kept vector that each vector is near to, or -1 if the vector is kept; and their cosine."""

    kept: np.ndarray[Any, np.dtype[np.int64]]
    cosines: Matrix


def find_similar(vectors: Matrix, threshold: float, *, fixed: int = 0) -> Similar:
    """Find the vectors whose cosine with a kept one is at least the threshold.

    Vectors are looked at in their order and compared with those kept before, so that no two kept ones are similar, and
    that each of the others is similar to the kept one that is named for it.

    Args:
        vectors: float32 of length 1, (rows, dimension), in the order of preference.
        threshold: a cosine.
        fixed: Number of first rows that are always kept.

    >>> vectors = np.array([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6], [1.0, 0.0]], dtype=np.float32)
    >>> find_similar(vectors, 0.75).kept.tolist()  # the last two are similar to the first
    [-1, -1, 0, 0]
    """
    with stage("comparing vectors", len(vectors)):
        return _search_blocks(vectors, threshold, fixed)


def find_nearest(queries: Matrix, vectors: Matrix, numbers: Numbers) -> tuple[Numbers, Matrix]:
    """Find the nearest vector of each query, itself left out: its index, and their cosine.

    Args:
        queries: (queries, dimension), of length 1.
        vectors: (rows, dimension), of length 1.
        numbers: the row that each query is.
    """
    best, nearest = np.full(len(queries), -2, dtype=np.float32), np.zeros(len(queries), dtype=np.int64)
    for start in range(0, len(vectors), _CHUNK):
        cosines = queries @ vectors[start : start + _CHUNK].T
        inside = np.flatnonzero((numbers >= start) & (numbers < start + cosines.shape[1]))
        cosines[inside, numbers[inside] - start] = -2
        column = cosines.argmax(axis=1)
        value = cosines[np.arange(len(queries)), column]
        nearest = np.where(value > best, column + start, nearest)
        best = np.maximum(value, best)
    return nearest, best


def _search_blocks(vectors: Matrix, threshold: float, fixed: int) -> Similar:
    """Compare each block with all vectors kept before it, and the rest of it with itself.

    Cosines are computed in bf16 if that is faster. Those near the threshold are computed again in fp32, so the result
    is exact up to the rounding of fp32.
    """
    import torch

    rows, dtype = len(vectors), _fast_dtype(len(vectors))
    margin = _ROUNDING if dtype == torch.bfloat16 else 1e-5
    exact = torch.from_numpy(np.ascontiguousarray(vectors))
    similar = Similar(np.full(rows, -1, dtype=np.int64), np.ones(rows, dtype=np.float32))
    similar_to, cosines = similar
    # the kept vectors, (kept, dimension), one after another in the dtype that they are compared in
    compact = torch.empty(exact.shape, dtype=dtype)
    compact[:fixed] = exact[:fixed].to(dtype)
    compact_rows = np.zeros(rows, dtype=np.int64)
    compact_rows[:fixed] = np.arange(fixed)
    count = fixed
    for start in range(fixed, rows, _BLOCK):
        # its rows that are not yet found similar
        block = torch.arange(start, min(start + _BLOCK, rows))
        fast = exact[block].to(dtype)
        for first in range(0, count, _CHUNK):
            chunk = slice(first, min(first + _CHUNK, count))
            likely = ((fast @ compact[chunk].T).amax(dim=1) >= threshold - margin).nonzero()[:, 0]
            if not len(likely):
                continue
            kept_rows = torch.from_numpy(compact_rows[chunk])
            best = (exact[block[likely]] @ exact[kept_rows].T).max(dim=1)
            is_near = best.values >= threshold
            similar_rows = block[likely[is_near]].numpy()
            similar_to[similar_rows], cosines[similar_rows] = (
                kept_rows[best.indices[is_near]].numpy(),
                best.values[is_near].numpy(),
            )
            rest = torch.ones(len(block), dtype=torch.bool)
            rest[likely[is_near]] = False
            block, fast = block[rest], fast[rest]
            if not len(block):
                break
        _keep_inside(exact, block, threshold, similar)
        new = block[torch.from_numpy(similar_to[block.numpy()] < 0)]
        compact[count : count + len(new)] = exact[new].to(dtype)
        compact_rows[count : count + len(new)] = new.numpy()
        count += len(new)
        get_progress().update(min(start + _BLOCK, rows), {})
    return similar


def _keep_inside(exact: torch.Tensor, block: torch.Tensor, threshold: float, similar: Similar) -> None:
    """Look for rows of a block that are similar to earlier ones of it, and note them in `similar`."""
    similar_to, cosines = similar
    inside = (exact[block] @ exact[block].T).numpy()
    numbers = block.numpy()
    is_near = np.triu(inside >= threshold, 1)
    for row in np.flatnonzero(is_near.any(axis=1)):
        if similar_to[numbers[row]] < 0:
            later = np.flatnonzero(is_near[row])
            later = later[similar_to[numbers[later]] < 0]
            similar_to[numbers[later]], cosines[numbers[later]] = numbers[row], inside[row, later]


def _fast_dtype(rows: int) -> torch.dtype:
    """Return the dtype in which the CPU multiplies fastest: bf16 if it has units for it."""
    import torch

    return torch.bfloat16 if rows >= _WORTH_A_TRIAL and bf16_is_faster_on_cpu() else torch.float32
