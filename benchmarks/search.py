"""Speed and recall of an index compared with faiss, numpy and sentence-transformers.

    python -m benchmarks.search --model DIR --data DIR [--limit 5000 --synthetic 20000]

There are two collections: the training sentences of SST-2, with its validation sentences as queries, and synthetic
vectors in clusters. All engines take turns in one process, on the same vectors and with the same threads. The reference
of recall@10 is a full scan in fp32. Writes benchmarks/results/search.json and prints the tables of docs/benchmarks.md.
It needs the package faiss-cpu.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Report, make_table, read_column, read_options, write_results, write_rows
from benchmarks.load import machine
from bertkit.vectors.embedder import Embedder
from bertkit.vectors.search.index import Chunk, Index, Manifest
from bertkit.vectors.search.passages import Coverage
from bertkit.vectors.search.rows import TextRows
from bertkit.workflows.search import build

K, BATCH, TURN = 10, 256, 10  # results, queries per batch, single queries per turn
DIMENSION, CLUSTERS, CHUNK = 384, 2000, 16_384  # for synthetic vectors

Search = Callable[[Any], Any]
"""Queries (queries, dimension) -> row indices (queries, 10)."""


@dataclass
class Engine:
    """Search engine and its measurements: milliseconds of single queries, and per query in batches."""

    name: str
    search: Search
    size: int
    build_seconds: float
    single: list[float] = field(default_factory=list)
    batch: list[float] = field(default_factory=list)
    recall: float = 0.0

    def report(self) -> Report:
        """Return the figures."""
        p50, p99 = np.percentile(self.single, [50, 99])
        figures = {"p50_ms": p50, "p99_ms": p99, "batch_ms": min(self.batch), "recall@10": self.recall}
        figures |= {"megabytes": self.size / 1e6, "build_seconds": self.build_seconds}
        return {"engine": self.name, **{name: round(float(value), 4) for name, value in figures.items()}}


def draw_synthetic(rows: int, queries: int) -> tuple[Callable[[int], Iterator[Chunk]], Any]:
    """Return the chunks of vectors around some centers, and queries with the same distribution."""
    centers = np.random.default_rng(0).standard_normal((CLUSTERS, DIMENSION), dtype=np.float32)

    def draw(count: int, generator: np.random.Generator) -> Any:
        noise = generator.standard_normal((count, DIMENSION), dtype=np.float32)
        return centers[generator.integers(0, CLUSTERS, count)] + noise

    def chunks(done: int) -> Iterator[Chunk]:
        for start in range(done, rows, CHUNK):
            count = min(CHUNK, rows - start)
            records = [{"id": row, "text": f"row {row}"} for row in range(start, start + count)]
            yield records, draw(count, np.random.default_rng([1, start])), Coverage()

    return chunks, draw(queries, np.random.default_rng(2))


def make_engines(index: Index, seconds: float) -> list[Engine]:
    """Load the vectors of an index into every engine."""
    import faiss
    import torch
    from sentence_transformers.util import semantic_search

    vectors = np.array(index.vectors)
    tensor = torch.from_numpy(vectors)
    flat = faiss.IndexFlatIP(vectors.shape[1])
    flat.add(vectors)

    def search_numpy(queries: Any) -> Any:
        scores = queries @ vectors.T
        best = np.argpartition(-scores, K, axis=1)[:, :K]
        return np.take_along_axis(best, np.argsort(-np.take_along_axis(scores, best, 1), axis=1), 1)

    def search_library(queries: Any) -> Any:
        results = semantic_search(torch.from_numpy(queries), tensor, top_k=K)
        return np.array([[hit["corpus_id"] for hit in hits] for hits in results])

    return [
        Engine("bertkit exact", lambda queries: index.search(queries, K)[1], vectors.nbytes, seconds),
        Engine("numpy", search_numpy, vectors.nbytes, 0.0),
        Engine("faiss flat", lambda queries: flat.search(queries, K)[1], vectors.nbytes, 0.0),
        Engine("sentence-transformers", search_library, vectors.nbytes, 0.0),
    ]


def measure(engines: list[Engine], queries: Any, rounds: int) -> None:
    """Time all engines in turns, and compare their results with the full scan of faiss in fp32."""
    truth = next(engine for engine in engines if engine.name == "faiss flat").search(queries)
    for engine in engines:
        results = engine.search(queries)
        hits = [len({*best} & {*rows}) for best, rows in zip(truth.tolist(), results.tolist(), strict=True)]
        engine.recall = sum(hits) / truth.size
    for _ in range(rounds):
        for engine in engines:
            start = time.perf_counter()
            engine.search(queries[:BATCH])
            engine.batch.append(1000 * (time.perf_counter() - start) / len(queries[:BATCH]))
        for first in range(0, len(queries), TURN):
            for engine in engines:
                for query in queries[first : first + TURN]:
                    start = time.perf_counter()
                    engine.search(query[None])
                    engine.single.append(1000 * (time.perf_counter() - start))


def search_table(engines: list[Report]) -> str:
    """Build a table of the figures of engines."""
    columns = {
        "engine": "{engine}",
        "one query p50": "{p50_ms:.2f} ms",
        "p99": "{p99_ms:.2f} ms",
        "in batches": "{batch_ms:.2f} ms",
        "recall@10": lambda row: f"{row['recall@10']:.4f}",
        "MB": "{megabytes:.0f}",
        "built in": lambda row: f"{row['build_seconds']:.0f} s" if row["build_seconds"] else "-",
    }
    return make_table(columns, engines)


def build_collections(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Index, Any, float]]:
    """Build both indexes; yield the name, the index, its queries, and the seconds of the build."""
    files = (options.data / "glue" / "sst2" / f"{split}.parquet" for split in ("train", "validation"))
    texts, queries = (read_column(file, "sentence") for file in files)
    write_rows(({"sentence": text} for text in texts[: options.limit]), folder / "rows.jsonl")
    embedder, start = Embedder(str(options.model)), time.monotonic()
    build(TextRows.open(folder / "rows.jsonl", "sentence"), embedder, folder / "sst2")
    seconds = time.monotonic() - start
    yield "sst2", Index.open(folder / "sst2"), embedder.encode(queries[: options.queries]), seconds
    chunks, vectors = draw_synthetic(options.synthetic, options.queries)
    start = time.monotonic()
    index = Index.create(folder / "synthetic", Manifest(DIMENSION), chunks)
    seconds = time.monotonic() - start
    yield "synthetic", index, vectors / np.linalg.norm(vectors, axis=1, keepdims=True), seconds


def main() -> None:
    settings = {"synthetic": (1_000_000, "synthetic vectors"), "queries": (300, "single queries per round")}
    options = read_options(__doc__, "model data limit threads output", **settings, rounds=3)
    import faiss
    import torch

    torch.set_num_threads(options.threads)
    faiss.omp_set_num_threads(options.threads)
    report: Report = {"machine": machine(options.threads), "collections": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name, index, queries, seconds in build_collections(options, Path(folder)):
            engines = make_engines(index, seconds)
            measure(engines, queries, options.rounds)
            figures = [engine.report() for engine in engines]
            report["collections"][name] = {"rows": len(index), "engines": figures}
            print(f"{name}, {len(index):,} rows\n\n{search_table(figures)}\n", flush=True)
    write_results(report, options.output / "search.json")


if __name__ == "__main__":
    main()
