"""How well search finds the paragraph of each SQuAD question: by words, by vectors, by both, and reranked.

    python -m benchmarks.retrieval --model DIR --data DIR [--reranker DIR --questions 500 --candidates 20]

The index has the paragraphs of SQuAD's validation split, each as one row, and once more in passages. Reranking takes
long on a CPU, so its table is of some questions, drawn at random. Writes benchmarks/results/retrieval.json and prints
the tables of docs/vectors.md.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.cases import ROOT, environment, write_results
from benchmarks.load import machine

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


def as_table(result: dict[str, Any]) -> str:
    """Write the scores of rankings with their intervals as a table of Markdown."""
    lines = [f"| {' | '.join(('ranking', *SHOWN))} |", f"|---|{'---:|' * len(SHOWN)}"]
    for ranking in result["rankings"]:
        cells = [f"{ranking['scores'][name]:.3f}{_interval(ranking['intervals'][name])}" for name in SHOWN]
        lines.append(f"| {' | '.join((ranking['ranking'], *cells))} |")
    return "\n".join(lines)


def _interval(ends: list[float] | None) -> str:
    return "" if ends is None else f" ({ends[0]:.3f} to {ends[1]:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of the encoder, best one of sentence-transformers")
    parser.add_argument("--data", required=True, type=Path, help="folder with squad/validation.parquet")
    parser.add_argument("--reranker", help="folder of a cross-encoder")
    parser.add_argument("--questions", type=int, default=500, help="questions that are reranked")
    parser.add_argument("--candidates", type=int, default=20, help="paragraphs per question that are reranked")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "retrieval.json")
    options = parser.parse_args()
    report: dict[str, Any] = {"machine": machine(options.threads)}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        report |= write_files(options.data.resolve(), folder)
        model = ("--model", str(Path(options.model).resolve()))
        for name, split in (("rows", ()), ("passages", ("--passages",))):
            built = run(folder, options.threads, "search", "build", "paragraphs.jsonl", *model, "-o", name, *split)
            scored = run(folder, options.threads, "search", "eval", name, "questions.jsonl")
            report[name] = {"built": built, "scored": scored}
            print(f"\n{name}: {built['rows']:,}, {scored['queries']:,} questions\n\n{as_table(scored)}")
        if options.reranker:
            limits = ("--limit", str(options.questions), "--candidates", str(options.candidates))
            reranker = ("--rerank", str(Path(options.reranker).resolve()))
            scored = run(folder, options.threads, "search", "eval", "rows", "questions.jsonl", *reranker, *limits)
            report["reranked"] = {"candidates": options.candidates, "scored": scored}
            print(f"\nreranked: {scored['queries']:,} questions\n\n{as_table(scored)}")
    write_results(report, options.output)


if __name__ == "__main__":
    main()
