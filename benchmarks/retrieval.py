"""How well search finds the paragraph of each SQuAD question: by words, by vectors, by both, and reranked.

    python -m benchmarks.retrieval --model DIR --data DIR [--reranker DIR --late DIR --questions 500 --candidates 20]
                                   [--sparse DIR]
    python -m benchmarks.retrieval --data DIR --pairs FILE

The second command writes questions of the training split with their paragraphs, for the recipes `sparse` and
`late-interaction`. The index has the paragraphs of SQuAD's validation split, each as one row, and once more in
passages. Reranking takes long on a CPU, so its table is of some questions, drawn at random. Writes
benchmarks/results/retrieval.json and prints the tables of docs/vectors.md. What the file has is not measured again.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.cases import ROOT, environment, write_results
from benchmarks.load import machine
from bertkit.storage.files import split_lines

SHOWN = ("ndcg@10", "mrr@10", "map", "recall@1", "recall@10", "recall@100")


def write_files(data: Path, folder: Path) -> dict[str, int]:
    """Write the paragraphs, and the questions with their paragraphs in random order; return how many there are."""
    from pyarrow import parquet

    rows = parquet.read_table(data / "squad" / "validation.parquet").to_pylist()
    ids = {text: f"p{number}" for number, text in enumerate(dict.fromkeys(row["context"] for row in rows))}
    random.Random(0).shuffle(rows)
    questions = [{"query": row["question"], "relevant": ids[row["context"]]} for row in rows]
    for name, records in (
        ("paragraphs", [{"id": name, "text": text} for text, name in ids.items()]),
        ("questions", questions),
    ):
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    return {"paragraphs": len(ids), "questions": len(rows)}


def run(folder: Path, threads: int, *arguments: str) -> dict[str, Any]:
    """Run a command of bertkit in a folder; return what it printed as JSON, with its seconds."""
    began = time.monotonic()
    command = [sys.executable, "-m", "bertkit", *arguments, "--json"]
    ended = subprocess.run(
        command, cwd=folder, env=environment(threads, PYTHONPATH=str(ROOT)), stdout=subprocess.PIPE, check=True
    )
    printed: dict[str, Any] = json.loads(ended.stdout)
    return printed | {"seconds": time.monotonic() - began}


def write_pairs(data: Path, file: Path) -> int:
    """Write the training questions with their paragraphs as pairs, in random order; return how many there are."""
    from pyarrow import parquet

    rows = parquet.read_table(data / "squad" / "train.parquet", columns=["question", "context"]).to_pylist()
    random.Random(0).shuffle(rows)
    pairs = ({"anchor": row["question"], "positive": row["context"]} for row in rows)
    file.write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
    return len(rows)


def rank_sparse(model: str, folder: Path, threads: int) -> dict[str, Any]:
    """Score the ranking of all paragraphs by products of sparse vectors, as `search eval` scores others."""
    import numpy as np
    import torch

    import bertkit
    from bertkit.metrics.ranking import average_queries, query_intervals, score_rankings

    torch.set_num_threads(threads)
    began, embedder = time.monotonic(), bertkit.SparseEmbedder(model)
    paragraphs, questions = (
        [json.loads(line) for line in split_lines((folder / f"{name}.jsonl").read_text(encoding="utf-8"))]
        for name in ("paragraphs", "questions")
    )
    relevant: dict[str, dict[str, float]] = {}
    for row in questions:
        relevant.setdefault(row["query"], {})[row["relevant"]] = 1.0
    documents = embedder.encode([row["text"] for row in paragraphs])
    queries = embedder.encode(list(relevant), "query")
    ids = np.array([row["id"] for row in paragraphs])
    best = np.argsort(-(queries @ documents.T).toarray(), axis=1, kind="stable")[:, :100]
    scores = score_rankings([ids[row].tolist() for row in best], list(relevant.values()))
    ranking = {"scores": average_queries(scores), "intervals": query_intervals(scores).ends}
    active = {"queries": queries.nnz / len(relevant), "documents": documents.nnz / len(paragraphs)}
    seconds = time.monotonic() - began
    return {"rankings": [{"ranking": "sparse vectors", **ranking}], "active": active, "seconds": seconds}


def as_table(result: dict[str, Any]) -> str:
    """Write the scores of rankings with their intervals as a table of Markdown."""
    lines = [f"| {' | '.join(('ranking', *SHOWN))} |", f"|---|{'---:|' * len(SHOWN)}"]
    for ranking in result["rankings"]:
        cells = [f"{ranking['scores'][name]:.3f}{_interval(ranking['intervals'][name])}" for name in SHOWN]
        lines.append(f"| {' | '.join((ranking['ranking'], *cells))} |")
    return "\n".join(lines)


def _interval(ends: list[float] | None) -> str:
    return "" if ends is None else f" ({ends[0]:.3f} to {ends[1]:.3f})"


def measure(folder: Path, options: argparse.Namespace, done: set[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure each case that is not done yet."""
    if options.sparse and "sparse" not in done:
        yield "sparse", rank_sparse(str(Path(options.sparse).resolve()), folder, options.threads)
    limits = ("--limit", str(options.questions), "--candidates", str(options.candidates))
    rerankers = {"reranked": options.reranker, "late": options.late}
    wanted = {name: folder for name, folder in rerankers.items() if folder and name not in done}
    for name, split in (("rows", ()), ("passages", ("--passages",))):
        if name in done and (name == "passages" or not wanted):
            continue
        model = ("--model", str(Path(options.model).resolve()))
        built = run(folder, options.threads, "search", "build", "paragraphs.jsonl", *model, "-o", name, *split)
        if name not in done:
            scored = run(folder, options.threads, "search", "eval", name, "questions.jsonl")
            yield name, {"built": built, "scored": scored}
    for name, reranker in wanted.items():
        named = ("--rerank", str(Path(reranker).resolve()))
        scored = run(folder, options.threads, "search", "eval", "rows", "questions.jsonl", *named, *limits)
        yield name, {"candidates": options.candidates, "scored": scored}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder of the encoder, best one of sentence-transformers")
    parser.add_argument("--data", required=True, type=Path, help="folder with squad/validation.parquet")
    parser.add_argument("--pairs", type=Path, help="write pairs to train on to this file, and end")
    parser.add_argument("--reranker", help="folder of a cross-encoder")
    parser.add_argument("--late", help="folder of a run of the recipe late-interaction, which reranks likewise")
    parser.add_argument("--sparse", help="folder of a run of the recipe sparse, which ranks all paragraphs")
    parser.add_argument("--questions", type=int, default=500, help="questions that are reranked")
    parser.add_argument("--candidates", type=int, default=20, help="paragraphs per question that are reranked")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "retrieval.json")
    options = parser.parse_args()
    if options.pairs:
        print(f"{options.pairs}: {write_pairs(options.data, options.pairs):,} pairs")
        return
    report: dict[str, Any] = {"machine": machine(options.threads)}
    if options.output.exists():
        report = json.loads(options.output.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as temporary:
        report |= write_files(options.data.resolve(), Path(temporary))
        for name, measured in measure(Path(temporary), options, done=set(report)):
            report[name] = measured
            write_results(report, options.output)
            print(f"\n{name}: {measured.get('active', '')}\n\n{as_table(measured.get('scored', measured))}")


if __name__ == "__main__":
    main()
