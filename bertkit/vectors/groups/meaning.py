"""Vectors that are near others that are kept: exactly block by block, or by an index where there are many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bertkit.hardware.precision import bf16_is_faster_on_cpu
from bertkit.metrics import Numbers
from bertkit.progress import get_progress, log, stage
from bertkit.recipe.plugins import import_extra
from bertkit.vectors.vector_files import Matrix

if TYPE_CHECKING:
    import torch


MAX_EXACT = 250_000
"""Rows up to which all pairs are compared: an hour's work at a million, where an index needs minutes."""

# rows that are compared with so many kept ones: 64 MB of bf16 cosines at a time
_BLOCK, _CHUNK = 4096, 8192
_ROUNDING = 2**-7
"""The most that a cosine differs that was computed in bf16: each vector by 2^-9 of its length, the result by 2^-9."""
_WORTH_A_TRIAL = 10_000  # rows, which are compared before a trial of the precision has ended
_TRIED = (8, 16, 32, 64, 128)  # lists of the index that are searched
_SAMPLE = 4000  # rows whose pairs found by the index are compared with all there are
_ENOUGH = 0.99  # of the pairs


class Similar(NamedTuple):
    """For each vector the index of the kept one that it is near to, -1 where it is kept; and their cosine."""

    kept: np.ndarray[Any, np.dtype[np.int64]]
    cosines: Matrix
    recall: float | None = None
    """The share of the pairs that an index finds, measured on a sample; None where all pairs were compared."""


def find_similar(vectors: Matrix, threshold: float, *, fixed: int = 0) -> Similar:
    """Find the vectors whose cosine with a kept one is at least the threshold.

    Vectors are looked at in their order and compared with those kept before, so that no two kept ones are similar, and
    that each of the others is similar to the kept one that is named for it.

    Args:
        vectors: float32 of length 1, (rows, dimension), in the order of preference.
        threshold: a cosine.
        fixed: the first rows, which are kept whatever they are near to.

    Raises:
        UnavailableError: there are more than ``MAX_EXACT`` rows, and faiss is not installed.

    >>> vectors = np.array([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6], [1.0, 0.0]], dtype=np.float32)
    >>> find_similar(vectors, 0.75).kept.tolist()  # the last two are similar to the first
    [-1, -1, 0, 0]
    """
    search = _search_blocks if len(vectors) <= MAX_EXACT else _search_index
    with stage("comparing vectors", len(vectors)):
        return search(vectors, threshold, fixed)


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

    Cosines are computed in bf16 where that is faster. Those that may reach the threshold are computed again in fp32, so
    the result is that of fp32.
    """
    import torch

    rows, dtype = len(vectors), _fast_dtype(len(vectors))
    margin = _ROUNDING if dtype == torch.bfloat16 else 1e-5
    exact = torch.from_numpy(np.ascontiguousarray(vectors))
    similar = Similar(np.full(rows, -1, dtype=np.int64), np.ones(rows, dtype=np.float32))
    similar_to, cosines, _ = similar
    # the kept vectors, (kept, dimension), one after another in the dtype that they are compared in
    compact = torch.empty(exact.shape, dtype=dtype)
    compact[:fixed] = exact[:fixed].to(dtype)
    of_compact = np.zeros(rows, dtype=np.int64)
    of_compact[:fixed] = np.arange(fixed)
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
            others = torch.from_numpy(of_compact[chunk])
            best = (exact[block[likely]] @ exact[others].T).max(dim=1)
            near = best.values >= threshold
            found = block[likely[near]].numpy()
            similar_to[found], cosines[found] = others[best.indices[near]].numpy(), best.values[near].numpy()
            rest = torch.ones(len(block), dtype=torch.bool)
            rest[likely[near]] = False
            block, fast = block[rest], fast[rest]
            if not len(block):
                break
        _keep_inside(exact, block, threshold, similar)
        new = block[torch.from_numpy(similar_to[block.numpy()] < 0)]
        compact[count : count + len(new)] = exact[new].to(dtype)
        of_compact[count : count + len(new)] = new.numpy()
        count += len(new)
        get_progress().update(min(start + _BLOCK, rows), {})
    return similar


def _keep_inside(exact: torch.Tensor, block: torch.Tensor, threshold: float, similar: Similar) -> None:
    """Look for rows of a block that are similar to earlier ones of it, and note them in `similar`."""
    similar_to, cosines, _ = similar
    inside = (exact[block] @ exact[block].T).numpy()
    numbers = block.numpy()
    near = np.triu(inside >= threshold, 1)
    for row in np.flatnonzero(near.any(axis=1)):
        if similar_to[numbers[row]] < 0:
            later = np.flatnonzero(near[row])
            later = later[similar_to[numbers[later]] < 0]
            similar_to[numbers[later]], cosines[numbers[later]] = numbers[row], inside[row, later]


def _search_index(vectors: Matrix, threshold: float, fixed: int) -> Similar:
    """Search the neighbors of each vector in the lists of an inverted file that are nearest to it."""
    what = f"more than {MAX_EXACT:,} rows are compared by an index of faiss, which is not installed"
    faiss = import_extra("faiss", what, "search")
    rows, dimension = vectors.shape
    lists = 2 ** round(np.log2(2 * np.sqrt(rows)))
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dimension), dimension, lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.seed, index.cp.niter = 42, 10
    index.train(vectors[np.random.default_rng(42).choice(rows, min(rows, 40 * lists), replace=False)])
    index.add(vectors)
    # The index searches as few lists as find enough of a sample's pairs.
    sample = np.random.default_rng(42).choice(len(vectors), min(_SAMPLE, len(vectors)), replace=False)
    # the pair of a row with itself is always found, and does not count
    pairs = -len(sample) + sum(
        int((vectors[sample] @ vectors[start : start + _CHUNK].T >= threshold).sum())
        for start in range(0, len(vectors), _CHUNK)
    )
    pairs_found = 0
    for index.nprobe in _TRIED:
        # a cosine at the threshold may be rounded otherwise by the index
        pairs_found = min(pairs, int(index.range_search(vectors[sample], threshold)[0][-1]) - len(sample))
        if pairs_found >= _ENOUGH * pairs and index.nprobe >= _TRIED[1]:
            break
    searched = f"{index.nprobe} of {index.nlist} lists"
    log.info(f"an index finds {pairs_found:,} of {pairs:,} similar pairs of {len(sample):,} rows, in {searched}")
    recall = pairs_found / pairs if pairs > 0 else 1.0
    similar_to, cosines = np.full(rows, -1, dtype=np.int64), np.ones(rows, dtype=np.float32)
    for start in range(fixed, rows, _BLOCK):
        limits, values, neighbors = index.range_search(vectors[start : start + _BLOCK], threshold)
        # each row finds at least itself
        for position in np.flatnonzero(np.diff(limits.astype(np.int64)) > 1):
            row, near = start + int(position), slice(limits[position], limits[position + 1])
            others = neighbors[near]
            is_kept = (others < row) & (similar_to[others] < 0)
            if is_kept.any():
                best = np.where(is_kept, values[near], -2).argmax()
                similar_to[row], cosines[row] = others[best], values[near][best]
        get_progress().update(min(start + _BLOCK, rows), {})
    return Similar(similar_to, cosines, recall)


def _fast_dtype(rows: int) -> torch.dtype:
    """Return the dtype in which the CPU multiplies fastest: bf16 where it has units for it."""
    import torch

    return torch.bfloat16 if rows >= _WORTH_A_TRIAL and bf16_is_faster_on_cpu() else torch.float32
