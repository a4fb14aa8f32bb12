"""How fast and how exactly an index is searched, beside faiss, numpy and sentence-transformers.

    python -m benchmarks.search --model DIR --data DIR [--limit 5000 --synthetic 20000]

Two collections: the training sentences of SST-2, with its validation sentences as queries, and synthetic vectors in
clusters. All engines take turns in one process, on the same vectors and with the same threads. Recall@10 is that of a
plain scan in fp32. Writes benchmarks/results/search.json and prints the tables of docs/benchmarks.md.
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

from benchmarks.harness import Report, read_columns, read_options, table, write_results, write_rows
from benchmarks.load import machine
from bertkit.vectors.embedder import Embedder
from bertkit.vectors.search.index import Chunk, Index, Manifest
from bertkit.vectors.search.passages import Coverage
from bertkit.vectors.search.rows import TextRows
from bertkit.workflows.search import build

K, BATCH, TURN = 10, 256, 10  # results; queries of a batch; single queries before the next engine's turn
DIMENSION, CLUSTERS, CHUNK = 384, 2000, 16_384  # of synthetic vectors

SweepSpace = Callable[[Any], Any]
"""Queries (queries, dimension) -> row numbers (queries, 10)."""


@dataclass
class Engine:
    """One way to search, and what was measured of it."""

    name: str
    search: SweepSpace
    size: int
    build_seconds: float
    single: list[float] = field(default_factory=list)
    batch: list[float] = field(default_factory=list)
    recall: float = 0.0

    def report(self) -> Report:
        """Return the figures: milliseconds of single queries, milliseconds per query in batches, megabytes."""
        p50, p99 = np.percentile(self.single, [50, 99])
        figures = {"p50_ms": p50, "p99_ms": p99, "batch_ms": min(self.batch), "recall@10": self.recall}
        figures |= {"megabytes": self.size / 1e6, "build_seconds": self.build_seconds}
        return {"engine": self.name, **{name: round(float(value), 4) for name, value in figures.items()}}


def synthetic(rows: int, queries: int) -> tuple[Callable[[int], Iterator[Chunk]], Any]:
    """Return the chunks of vectors that lie around some centers, and queries of the same kind."""
    random = np.random.default_rng(0)
    centers = random.standard_normal((CLUSTERS, DIMENSION), dtype=np.float32)

    def draw(count: int, generator: np.random.Generator) -> Any:
        noise = generator.standard_normal((count, DIMENSION), dtype=np.float32)
        return centers[generator.integers(0, CLUSTERS, count)] + noise

    def chunks(done: int) -> Iterator[Chunk]:
        for start in range(done, rows, CHUNK):
            count = min(CHUNK, rows - start)
            records = [{"id": start + number, "text": f"row {start + number}"} for number in range(count)]
            yield records, draw(count, np.random.default_rng([1, start])), Coverage()

    return chunks, draw(queries, np.random.default_rng(2))


def make_engines(index: Index, seconds: float) -> list[Engine]:
    """Open every engine on the vectors of an index."""
    import faiss
    import torch
    from sentence_transformers.util import semantic_search

    vectors = np.array(index.vectors)
    tensor = torch.from_numpy(vectors)
    flat = faiss.IndexFlatIP(vectors.shape[1])
    flat.add(vectors)

    def by_numpy(queries: Any) -> Any:
        scores = queries @ vectors.T
        best = np.argpartition(-scores, K, axis=1)[:, :K]
        return np.take_along_axis(best, np.argsort(-np.take_along_axis(scores, best, 1), axis=1), 1)

    def by_library(queries: Any) -> Any:
        found = semantic_search(torch.from_numpy(queries), tensor, top_k=K)
        return np.array([[hit["corpus_id"] for hit in hits] for hits in found])

    return [
        Engine("bertkit exact", lambda queries: index.search(queries, K)[1], vectors.nbytes, seconds),
        Engine("numpy", by_numpy, vectors.nbytes, 0.0),
        Engine("faiss flat", lambda queries: flat.search(queries, K)[1], vectors.nbytes, 0.0),
        Engine("sentence-transformers", by_library, vectors.nbytes, 0.0),
    ]


def measure(engines: list[Engine], queries: Any, rounds: int) -> None:
    """Time all engines in turns, and compare what they find with faiss's full scan in fp32."""
    truth = next(engine for engine in engines if engine.name == "faiss flat").search(queries)
    for engine in engines:
        found = engine.search(queries)
        hits = [len(set(best) & set(some)) for best, some in zip(truth.tolist(), found.tolist(), strict=True)]
        engine.recall = sum(hits) / truth.size
    for _ in range(rounds):
        for engine in engines:
            began = time.perf_counter()
            engine.search(queries[:BATCH])
            engine.batch.append(1000 * (time.perf_counter() - began) / len(queries[:BATCH]))
        for start in range(0, len(queries), TURN):
            for engine in engines:
                for query in queries[start : start + TURN]:
                    began = time.perf_counter()
                    engine.search(query[None])
                    engine.single.append(1000 * (time.perf_counter() - began))


def as_table(engines: list[Report]) -> str:
    """Build a table of the figures of engines."""
    columns = {
        "engine": "{engine}",
        "one query p50": "{p50_ms:.2f} ms",
        "p99": "{p99_ms:.2f} ms",
        "in batches": "{batch_ms:.2f} ms",
        "recall@10": lambda each: f"{each['recall@10']:.4f}",
        "MB": "{megabytes:.0f}",
        "built in": lambda each: f"{each['build_seconds']:.0f} s" if each["build_seconds"] else "-",
    }
    return table(columns, engines)


def build_collections(asked: argparse.Namespace, work: Path) -> Iterator[tuple[str, Index, Any, float]]:
    """Build both indexes; yield the name of each, the index, its queries, and the seconds that it took."""
    sentences, asking = (asked.data / "glue" / "sst2" / f"{split}.parquet" for split in ("train", "validation"))
    texts = [row["sentence"] for row in read_columns(sentences, "sentence")[: asked.limit]]
    write_rows(({"sentence": text} for text in texts), work / "rows.jsonl")
    queries = [row["sentence"] for row in read_columns(asking, "sentence")[: asked.queries]]
    embedder, began = Embedder(str(asked.model)), time.monotonic()
    build(TextRows.open(work / "rows.jsonl", "sentence"), embedder, work / "sst2")
    seconds = time.monotonic() - began
    yield "sst2", Index.open(work / "sst2"), embedder.encode(queries), seconds
    chunks, vectors = synthetic(asked.synthetic, asked.queries)
    began = time.monotonic()
    index = Index.create(work / "synthetic", Manifest(DIMENSION), chunks)
    seconds = time.monotonic() - began
    yield "synthetic", index, vectors / np.linalg.norm(vectors, axis=1, keepdims=True), seconds


def main() -> None:
    own = {"synthetic": (1_000_000, "synthetic vectors"), "queries": (300, "single queries of a round")}
    asked = read_options(__doc__, "model data limit threads output", **own, rounds=3)
    import faiss
    import torch

    torch.set_num_threads(asked.threads)
    faiss.omp_set_num_threads(asked.threads)
    report: Report = {"machine": machine(asked.threads), "collections": {}}
    with tempfile.TemporaryDirectory() as work:
        for name, index, queries, seconds in build_collections(asked, Path(work)):
            engines = make_engines(index, seconds)
            measure(engines, queries, asked.rounds)
            figures = [engine.report() for engine in engines]
            report["collections"][name] = {"rows": len(index), "engines": figures}
            print(f"{name}, {len(index):,} rows\n\n{as_table(figures)}\n", flush=True)
    write_results(report, asked.output / "search.json")


if __name__ == "__main__":
    main()
