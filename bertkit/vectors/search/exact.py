"""Exact search: a scan in bf16 finds candidates, float64 ranks them, and a bound proves that none is missing.

A product in bf16 reads half the bytes of one in fp32, and CPUs with matrix units for it compute it ten times as fast.
Rounding moves a score by no more than a bound that is known for each shard. So where the last candidate is further
below the k-th result than that, the result is that of a full scan in float64. Where it is not, as among many copies
of one text, the query is scanned again in fp32.

In bf16, four scores become three. So the bf16 scan finds candidates beyond k, and float64 tells the first two apart:

>>> widen(round_to_bf16(np.float32([1.0, 1.003, 1.009, 1.02]))).tolist()
[1.0, 1.0, 1.0078125, 1.0234375]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bertkit.metrics import Numbers
from bertkit.storage.disk import unmap_rows
from bertkit.tokens.features import Tensor
from bertkit.vectors.search.shard import Shard, round_to_bf16, widen

_CANDIDATES = 40  # beyond k, per query
# vectors of a product; more at a time for one query, which is no matrix
_BLOCK, _BLOCK_OF_ONE = 8192, 65536
_GROUP = 32  # rows whose highest product is looked at first
_QUERIES = 256  # of a pass over the vectors
_HALF_STEP = 2.0**-8  # by which rounding to bf16 moves a number, relative to it
# by which adding products in fp32 moves a score, relative to the lengths; far more than it is
_SUMMATION = 1e-4
# bytes of vectors that stay in memory for the next query; what is beyond comes from the cache of the disk each time
_MAPPED = 1 << 30


def exact_search(shards: Sequence[Shard], queries: Numbers, k: int, deleted: Numbers) -> tuple[Numbers, Numbers]:
    """Find the k nearest vectors of each query.

    Memory holds a block of scores, never one for each pair of query and vector.

    Args:
        shards: in order; row numbers run on from one to the next.
        queries: float32 of shape (queries, dimension), prepared as the vectors are.
        k: At most the number of rows that are not deleted.
        deleted: numbers of rows to leave out, ascending.

    Returns:
        scores (queries, k), descending, and row numbers (queries, k); the earlier row comes first where two score
        alike.
    """
    scores = np.zeros((len(queries), k), dtype=np.float32)
    rows = np.zeros((len(queries), k), dtype=np.int64)
    for start in range(0, len(queries) if k else 0, _QUERIES):
        part = slice(start, start + _QUERIES)
        scores[part], rows[part] = _search(shards, queries[part], k, deleted)
    return scores, rows


def rank(shards: Sequence[Shard], query: Numbers, candidates: Numbers, k: int) -> tuple[Numbers, Numbers]:
    """Return the scores and numbers of the k best of some rows, computed in float64; negative numbers are not rows."""
    candidates = np.unique(candidates[candidates >= 0])
    products = gather(shards, candidates).astype(np.float64) @ query.astype(np.float64)
    scores = products.astype(np.float32)
    # stable: candidates ascend, so the earlier row wins
    best = np.argsort(-scores, kind="stable")[:k]
    return scores[best], candidates[best]


def gather(shards: Sequence[Shard], numbers: Numbers) -> Numbers:
    """Read the vectors of some rows, float32 of shape (numbers, dimension)."""
    if len(shards) == 1:
        return np.asarray(shards[0].vectors[numbers])
    vectors = np.empty((len(numbers), shards[0].vectors.shape[1]), dtype=np.float32)
    for shard, positions, rows in by_shard(shards, numbers):
        vectors[positions] = shard.vectors[rows]
    return vectors


def by_shard(shards: Sequence[Shard], numbers: Numbers) -> Iterator[tuple[Shard, Numbers, Numbers]]:
    """Yield each shard that has some of these rows, their positions among the numbers, and their rows in it."""
    ends = np.cumsum([shard.info.rows for shard in shards])
    owners = np.searchsorted(ends, numbers, side="right")
    for owner in np.unique(owners):
        positions = np.flatnonzero(owners == owner)
        yield shards[owner], positions, numbers[positions] - (ends[owner] - shards[owner].info.rows)


def _search(shards: Sequence[Shard], queries: Numbers, k: int, deleted: Numbers) -> tuple[Numbers, Numbers]:
    values, candidates = _scan_rows(shards, queries, k + _CANDIDATES, deleted, rounded=True)
    scores = np.zeros((len(queries), k), dtype=np.float32)
    rows = np.zeros((len(queries), k), dtype=np.int64)
    for position, query in enumerate(queries):
        scores[position], rows[position] = rank(shards, query, candidates[position], k)
    total = sum(shard.info.rows for shard in shards)
    unproven = np.flatnonzero(_highest_missed(shards, queries, values[:, -1]) >= scores[:, -1])
    if total > values.shape[1] and len(unproven):
        _, candidates = _scan_rows(shards, queries[unproven], k + _CANDIDATES, deleted, rounded=False)
        for number, found in zip(unproven, candidates, strict=True):
            scores[number], rows[number] = rank(shards, queries[number], found, k)
    unmap_vectors(shards)
    return scores, rows


def unmap_vectors(shards: Sequence[Shard]) -> None:
    """Drop what queries have read of float32 vectors that are many, since each candidate is in other pages."""
    if sum(shard.vectors.nbytes for shard in shards) > _MAPPED:
        for shard in shards:
            unmap_rows(shard.vectors, 0, shard.info.rows)


def _highest_missed(shards: Sequence[Shard], queries: Numbers, lowest: Numbers) -> Numbers:
    """Compute the highest score that a vector can have whose score in bf16 is not above the lowest candidate's.

    With u and v rounded from the query and a vector, |q.v - u.v'| <= |q - u| |v'| + |q| |v - v'|; then the score
    itself is rounded.
    """
    lengths = np.linalg.norm(queries, axis=1)
    moved = np.linalg.norm(queries - widen(round_to_bf16(queries)), axis=1)
    longest = max(shard.info.longest + shard.info.rounding for shard in shards)
    rounding = max(shard.info.rounding for shard in shards)
    error = moved * longest + lengths * rounding + _SUMMATION * lengths * longest
    # minus infinity where all rows are candidates, which none misses
    finite = np.where(np.isfinite(lowest), lowest, 0)
    return np.asarray(lowest + np.abs(finite) * _HALF_STEP + error)


def _scan_rows(
    shards: Sequence[Shard], queries: Numbers, count: int, deleted: Numbers, *, rounded: bool
) -> tuple[Numbers, Numbers]:
    """Find the rows with the highest products: values and numbers (queries, count), fewer where there are fewer rows.

    Rows that are deleted come with minus infinity and the number -1.
    """
    import torch

    size = _BLOCK if len(queries) > 1 else _BLOCK_OF_ONE
    wanted = torch.from_numpy(round_to_bf16(queries)).view(torch.bfloat16) if rounded else torch.from_numpy(queries)
    values = torch.empty((len(queries), 0), dtype=wanted.dtype)
    numbers = torch.empty((len(queries), 0), dtype=torch.int64)
    for start, vectors in _blocks(shards, size, rounded):
        # (rows, queries): this way round, a product takes half the time
        products = vectors @ wanted.T if len(queries) > 1 else (vectors @ wanted[0])[:, None]
        here = deleted[np.searchsorted(deleted, start) : np.searchsorted(deleted, start + len(vectors))] - start
        if len(here):
            products[torch.from_numpy(here)] = float("-inf")
        if values.shape[1] < count or len(vectors) < size:
            found, rows = products.T.topk(min(count, len(vectors)), dim=1)
        else:
            found, rows = _above(products, values[:, -1])
        values, numbers = torch.cat([values, found], dim=1), torch.cat([numbers, rows + start], dim=1)
        values, chosen = values.topk(min(count, values.shape[1]), dim=1)
        numbers = numbers.gather(1, chosen)
    numbers.masked_fill_(values == float("-inf"), -1)
    return values.float().numpy(), numbers.numpy()


def _above(products: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
    """Find the products (rows, queries) that are above the threshold of their query.

    Sorting takes longer than multiplying. After some blocks hardly any product is above the least candidate, which the
    maxima of groups of rows tell at an eighth of the cost.

    Returns:
        values and rows (queries, most of one query), filled up with minus infinity.
    """
    import torch

    # members of a group are far apart, so maxima are of vectors
    groups = products.view(_GROUP, -1, products.shape[1])
    group, query = (groups.amax(dim=0) > threshold).nonzero(as_tuple=True)
    member, pair = (groups[:, group, query] > threshold[query]).nonzero(as_tuple=True)
    row, query = member * groups.shape[1] + group[pair], query[pair]
    query, order = query.sort(stable=True)
    counts = torch.bincount(query, minlength=len(threshold))
    column = torch.arange(len(query)) - (counts.cumsum(0) - counts)[query]
    values = torch.full((len(threshold), int(counts.max())), float("-inf"), dtype=products.dtype)
    rows = torch.zeros(values.shape, dtype=torch.int64)
    values[query, column], rows[query, column] = products[row[order], query], row[order]
    return values, rows


def _blocks(shards: Sequence[Shard], size: int, rounded: bool) -> Iterator[tuple[int, Any]]:
    """Yield the number of the first row of each block, and its vectors as a tensor (rows, dimension)."""
    import torch

    before, read = 0, 0
    for shard in shards:
        mapped = shard.rounded if rounded else shard.vectors
        for start in range(0, shard.info.rows, size):
            vectors = torch.from_numpy(mapped[start : start + size])
            yield before + start, vectors.view(torch.bfloat16) if rounded else vectors
            read += vectors.nbytes
            if read > _MAPPED:
                unmap_rows(mapped, start, start + len(vectors))
        before += shard.info.rows
