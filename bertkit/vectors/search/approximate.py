"""Approximate search with faiss: candidates come from a smaller structure, and exact scores rank them.

What is lost is measured when the structure is built: the share of the 10 nearest rows that it finds, beside those of
exact search. The search is then as wide as that share needs.
"""

from __future__ import annotations

import errno
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from bertkit.errors import DataError, UsageError, closest
from bertkit.metrics import Numbers
from bertkit.metrics.linear import draw_rows
from bertkit.progress import stage
from bertkit.recipe.plugins import import_extra
from bertkit.storage.files import REMEDIES
from bertkit.storage.fingerprints import list_files
from bertkit.vectors.search.exact import exact_search, gather, rank, unmap_vectors
from bertkit.vectors.search.shard import Shard

TARGET = 0.99
"""The recall@10 that a search is made wide enough for."""

_K = 10
_SAMPLE, _TIMED = 500, 100  # queries: for the recall, and for the time of one
# rows from which clusters take the place of a graph, which takes longer to build
_LARGE = 500_000
_MORE = 20  # candidates beyond k, since 8 bits per number do not rank as exactly
# of a graph: neighbors per row, and rows that are looked at to find them
_LINKS, _BUILD_WIDTH = 32, 300
_BLOCK = 65_536  # vectors that are added at a time
_PER_CENTER = 64  # vectors that each center of a cluster is computed from
_WIDTHS = {
    "hnsw": (32, 64, 128, 256, 512, 1024),
    "ivf": (1, 2, 4, 8, 16, 32, 64, 128, 256),
    "binary": (100, 200, 400, 800, 1600, 3200),
}
"""Method -> how wide it may search, from the fastest: rows of the graph, clusters, or candidates that are ranked."""


def check_method(method: str, rows: int) -> str:
    """Return the method for so many rows that a name means; ``auto`` is a graph, or clusters where rows are many.

    Raises:
        UsageError: no method has this name.
        UnavailableError: faiss is not installed.
    """
    if method not in ("auto", *_WIDTHS):
        raise UsageError(f"no approximate search is called {method!r}", closest(method, ["auto", *_WIDTHS]))
    _load_faiss()
    return ("ivf" if rows >= _LARGE else "hnsw") if method == "auto" else method


@dataclass
class ApproximateSearch:
    """A faiss index over the first rows of an index."""

    method: str
    faiss_index: Any
    rows: int
    width: int

    @classmethod
    def open(cls, folder: Path, entry: Mapping[str, Any]) -> ApproximateSearch:
        """Open the one that a manifest describes.

        Raises:
            UnavailableError: faiss is not installed.
            DataError: the file is damaged.
        """
        faiss = _load_faiss()
        (name,) = entry["files"]
        # mapped: a search reads few of the vectors, which are as many bytes as there are numbers
        mapped = 0 if os.name == "nt" else getattr(faiss, "IO_FLAG_MMAP_IFC", 0)
        file, is_binary = str(folder / name), entry["method"] == "binary"
        try:
            read = faiss.read_index_binary(file) if is_binary else faiss.read_index(file, mapped)
            return cls(entry["method"], read, entry["rows"], entry["width"])
        except RuntimeError:
            raise DataError("a file of the index is damaged", "build the index again", file=folder / name) from None

    def search(self, shards: Sequence[Shard], queries: Numbers, k: int, deleted: Numbers) -> tuple[Numbers, Numbers]:
        """Find nearly the k nearest vectors of each query, as `exact_search` does.

        Rows beyond those of the faiss index, which were added later, are searched exactly, and so are all rows for a
        query for which too few are found.
        """
        candidates = self._candidates(queries, k, deleted)
        late = sum(shard.info.rows for shard in shards) - self.rows
        late -= len(deleted) - int(np.searchsorted(deleted, self.rows))
        if late:
            _, numbers = exact_search(shards, queries, min(k, late), deleted, first=self.rows)
            candidates = np.concatenate([candidates, numbers], axis=1)
        scores = np.zeros((len(queries), k), dtype=np.float32)
        rows = np.zeros((len(queries), k), dtype=np.int64)
        for position, query in enumerate(queries):
            values, numbers = rank(shards, query, candidates[position], k)
            if len(numbers) < k:
                values, numbers = (each[0] for each in exact_search(shards, query[None], k, deleted))
            scores[position], rows[position] = values, numbers
        unmap_vectors(shards)
        return scores, rows

    def _candidates(self, queries: Numbers, k: int, deleted: Numbers) -> Numbers:
        faiss = _load_faiss()
        if self.method == "binary":
            count = min(max(self.width, k) + min(len(deleted), self.width), self.rows)
            _, numbers = self.faiss_index.search(np.packbits(queries > 0, axis=1), count)
            return np.where(np.isin(numbers, deleted), -1, numbers)
        selector = faiss.IDSelectorNot(faiss.IDSelectorBatch(deleted)) if len(deleted) else None
        if self.method == "hnsw":
            settings = faiss.SearchParametersHNSW(efSearch=max(self.width, k + _MORE), sel=selector)
        else:
            settings = faiss.SearchParametersIVF(nprobe=self.width, sel=selector)
        _, numbers = self.faiss_index.search(queries, min(k + _MORE, self.rows), params=settings)
        return np.asarray(numbers)


def build_approximate(
    folder: Path, shards: Sequence[Shard], method: str, *, queries: Numbers | None = None
) -> dict[str, Any]:
    """Build a faiss index over all rows, measure its recall, and return what the manifest says of it.

    Args:
        folder: gets the file.
        shards: whose rows are searched.
        method: hnsw, ivf, binary or auto.
        queries: vectors that the recall is measured with; None for rows, each left out of its own results.

    Raises:
        UnavailableError: faiss is not installed.
        OSError: the disk refuses a write.
    """
    total = sum(shard.info.rows for shard in shards)
    method = check_method(method, total)
    with stage(f"building the approximate index ({method})"):
        built = _build_binary(shards) if method == "binary" else _build_floats(shards, method, total)
    search = ApproximateSearch(method, built, total, 0)
    with stage("measuring its recall"):
        measured = _widen_search(search, shards, queries)
    file = f"{method}.faiss"
    write = _load_faiss().write_index_binary if method == "binary" else _load_faiss().write_index
    try:
        write(built, str(folder / file))
    except RuntimeError as error:  # which says why in words alone
        number = next((number for number in REMEDIES if os.strerror(number) in str(error)), errno.EIO)
        raise OSError(number, os.strerror(number), str(folder / file)) from None
    return {"method": method, "rows": total, "width": search.width, **measured, "files": list_files(folder, [file])}


def _widen_search(search: ApproximateSearch, shards: Sequence[Shard], given: Numbers | None) -> dict[str, Any]:
    """Search as wide as the recall needs; return the recall, and the milliseconds of one query."""
    none = np.zeros(0, dtype=np.int64)
    if given is None:
        chosen = draw_rows(search.rows, _SAMPLE, 0)
        queries = gather(shards, chosen)
    else:
        queries, chosen = given[:_SAMPLE], np.full(len(given[:_SAMPLE]), -1)
    # A row finds itself first, which says nothing: one more is looked for.
    k = min(_K + (given is None), search.rows)
    _, nearest = exact_search(shards, queries, k, none)
    recall = 0.0
    # From narrow to wide, and no wider than the recall needs: time grows with the width.
    for width in _WIDTHS[search.method]:
        search.width = width
        _, found = search.search(shards, queries, k, none)
        # Compute the share of the nearest rows that are found, without each query's own row.
        hits = total = 0
        for truth, answer, own in zip(nearest, found, chosen, strict=True):
            wanted = set(truth.tolist()) - {own}
            hits += len(wanted & set(answer.tolist()))
            total += len(wanted)
        recall = hits / total if total else 1.0
        if recall >= TARGET:
            break
    times = []
    for query in queries[:_TIMED]:
        start = time.perf_counter()
        search.search(shards, query[None], k, none)
        times.append(time.perf_counter() - start)
    return {
        "recall_at_10": round(recall, 4),
        "queries": len(queries),
        "queries_are_rows": given is None,
        "milliseconds_per_query": round(1000 * statistics.median(times), 3),
    }


def _build_floats(shards: Sequence[Shard], method: str, total: int) -> object:
    faiss = _load_faiss()
    dimension = shards[0].vectors.shape[1]
    inner, eight_bits = faiss.METRIC_INNER_PRODUCT, faiss.ScalarQuantizer.QT_8bit
    if method == "hnsw":
        built = faiss.IndexHNSWSQ(dimension, eight_bits, _LINKS, inner)
        built.hnsw.efConstruction = _BUILD_WIDTH
        sample = min(total, 100_000)
    else:
        centers = min(4 * int(total**0.5), max(total // _PER_CENTER, 1))
        nearest = faiss.IndexFlatIP(dimension)
        built = faiss.IndexIVFScalarQuantizer(nearest, dimension, centers, eight_bits, inner, False)
        built.cp.spherical = True  # centers of length 1, as the inner product needs
        built.cp.min_points_per_centroid = 1  # else it prints a warning where rows are few
        sample = min(total, _PER_CENTER * centers)
    built.train(gather(shards, draw_rows(total, sample, 0)))
    for vectors in _blocks(shards):
        built.add(np.ascontiguousarray(vectors))
    return built


def _build_binary(shards: Sequence[Shard]) -> object:
    built = _load_faiss().IndexBinaryFlat(8 * -(-shards[0].vectors.shape[1] // 8))
    for vectors in _blocks(shards):
        built.add(np.packbits(vectors > 0, axis=1))
    return built


def _blocks(shards: Sequence[Shard]) -> Iterator[Numbers]:
    for shard in shards:
        for start in range(0, shard.info.rows, _BLOCK):
            yield shard.vectors[start : start + _BLOCK]
            unmap_vectors(shards)


def _load_faiss() -> ModuleType:
    what = "approximate search needs the package faiss-cpu"
    return import_extra("faiss", what, "search", "search exactly")
