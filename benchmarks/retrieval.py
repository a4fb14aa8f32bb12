"""How well search finds the paragraph of each SQuAD question: by words, by vectors, by both, and reranked.

    python -m benchmarks.retrieval --model DIR --data DIR [--reranker DIR --late DIR --questions 500 --candidates 20]
                                   [--sparse DIR]
    python -m benchmarks.retrieval --data DIR --pairs FILE

The second command writes questions of the training split with their paragraphs, for the recipes `sparse` and
`late-interaction`. The index has the paragraphs of SQuAD's validation split, each as one row, and once more in
passages. `--reranker` is a cross-encoder, `--late` a run of late-interaction, which reranks likewise, and `--sparse` a
run that ranks all paragraphs. Reranking takes long on a CPU, so its table is of some questions, drawn at random. Writes
benchmarks/results/retrieval.json and prints the tables of docs/benchmarks.md. What the file has is not measured again.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import (
    Report,
    read_columns,
    read_lines,
    read_options,
    run_program,
    table,
    with_ends,
    write_results,
    write_rows,
)
from benchmarks.load import machine

SHOWN = ("ndcg@10", "mrr@10", "map", "recall@1", "recall@10", "recall@100")


def write_files(data: Path, folder: Path) -> dict[str, int]:
    """Write the paragraphs, and the questions with their paragraphs in random order; return how many there are."""
    rows = read_columns(data / "squad" / "validation.parquet", "context", "question")
    ids = {text: f"p{number}" for number, text in enumerate(dict.fromkeys(row["context"] for row in rows))}
    random.Random(0).shuffle(rows)
    questions = ({"query": row["question"], "relevant": ids[row["context"]]} for row in rows)
    write_rows(({"id": name, "text": text} for text, name in ids.items()), folder / "paragraphs.jsonl")
    write_rows(questions, folder / "questions.jsonl")
    return {"paragraphs": len(ids), "questions": len(rows)}


def write_pairs(data: Path, file: Path) -> None:
    """Write the training questions with their paragraphs as pairs, in random order."""
    rows = read_columns(data / "squad" / "train.parquet", "question", "context")
    random.Random(0).shuffle(rows)
    write_rows(({"anchor": row["question"], "positive": row["context"]} for row in rows), file)
    print(f"{file}: {len(rows):,} pairs")


def rank_sparse(model: str, folder: Path, threads: int) -> Report:
    """Score the ranking of all paragraphs by products of sparse vectors, as `search eval` scores others."""
    import numpy as np
    import torch

    import bertkit
    from bertkit.metrics.ranking import average_queries, query_intervals, score_rankings

    torch.set_num_threads(threads)
    began, embedder = time.monotonic(), bertkit.SparseEmbedder(model)
    paragraphs, questions = (read_lines(folder / f"{name}.jsonl") for name in ("paragraphs", "questions"))
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


def as_table(result: Report) -> str:
    """Build a table of the scores of rankings with their intervals."""

    def show(name: str) -> Any:
        return lambda ranking: with_ends(ranking["scores"][name], ranking["intervals"][name])

    return table({"ranking": "{ranking}", **{name: show(name) for name in SHOWN}}, result["rankings"])


def measure(folder: Path, asked: argparse.Namespace, done: set[str]) -> Iterator[tuple[str, Report]]:
    """Measure each case that is not done yet."""

    def search(*words: object) -> Report:
        ran = run_program("bertkit", "search", *words, "--json", threads=asked.threads, folder=folder)
        return {**ran["printed"], "seconds": ran["seconds"]}

    if asked.sparse and "sparse" not in done:
        yield "sparse", rank_sparse(str(asked.sparse.resolve()), folder, asked.threads)
    rerankers = {"reranked": asked.reranker, "late": asked.late}
    missing = {name: model.resolve() for name, model in rerankers.items() if model and name not in done}
    for name, split in (("rows", ()), ("passages", ("--passages",))):
        if name in done and (name == "passages" or not missing):
            continue
        built = search("build", "paragraphs.jsonl", "--model", asked.model.resolve(), "-o", name, *split)
        if name not in done:
            yield name, {"built": built, "scored": search("eval", name, "questions.jsonl")}
    limits = ("--limit", asked.questions, "--candidates", asked.candidates)
    for name, model in missing.items():
        scored = search("eval", "rows", "questions.jsonl", "--rerank", model, *limits)
        yield name, {"candidates": asked.candidates, "scored": scored}


def main() -> None:
    own = {"pairs": Path, "reranker": Path, "late": Path, "sparse": Path, "questions": 500, "candidates": 20}
    asked = read_options(__doc__, "model? data threads output", **own)
    if asked.pairs:
        write_pairs(asked.data, asked.pairs)
        return
    file = asked.output / "retrieval.json"
    report: Report = {"machine": machine(asked.threads)}
    if file.exists():
        report = json.loads(file.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as temporary:
        report |= write_files(asked.data, Path(temporary))
        for name, measured in measure(Path(temporary), asked, done=set(report)):
            report[name] = measured
            write_results(report, file)
            print(f"\n{name}: {measured.get('active', '')}\n\n{as_table(measured.get('scored', measured))}")


if __name__ == "__main__":
    main()
