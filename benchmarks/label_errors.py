"""Labels of SST-2 that were flipped, and how many of them `check --label-errors` ranks first.

    python -m benchmarks.label_errors --model DIR --data DIR [--rows N ...] [--seeds N] [--work DIR]

`--data` has glue/sst2/train.parquet in the columns of the hub. Adds one JSON line per case to
benchmarks/results/label_errors.jsonl; a case that is there is not measured again. Vectors are kept in bertkit's cache.

With `--counts FILE...`, files of rows with `text` and `label`, it measures how many errors are expected where none, 2,
5 and 10 % of the labels were replaced by another one.

With `--work`, the same is measured of the model fine-tuned for an epoch on two thirds of the rows, for each third, and
of the mean of its probabilities and those of `check`. Its runs are kept there, so a command that was stopped goes on.
With MiniLM, 10,000 rows take about 6 minutes of a core, all 67,349 about 40.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import ROOT
from benchmarks.long_texts import write_rows
from bertkit.storage.files import split_lines

SHARE = 0.05
RESULTS = ROOT / "benchmarks" / "results" / "label_errors.jsonl"


def flip_labels(labels: list[int], seed: int) -> tuple[list[int], set[int]]:
    """Flip a share of labels that are 0 or 1, and return them with the indices of those.

    >>> flipped, indices = flip_labels([0, 1] * 50, seed=0)
    >>> len(indices), sum(old != new for old, new in zip([0, 1] * 50, flipped, strict=True))
    (5, 5)
    """
    chosen = np.random.default_rng(seed).choice(len(labels), round(SHARE * len(labels)), replace=False)
    indices = set(chosen.tolist())
    return [1 - label if number in indices else label for number, label in enumerate(labels)], indices


def read_rows(file: Path, rows: int, seed: int) -> tuple[list[dict[str, str]], set[int]]:
    """Return the first rows of SST-2, some of them with flipped labels, and the indices of those."""
    from pyarrow import parquet

    table = parquet.read_table(file).slice(0, rows)
    labels, flipped = flip_labels(table["label"].to_pylist(), seed)
    texts = table["sentence"].to_pylist()
    return [{"text": text, "label": str(label)} for text, label in zip(texts, labels, strict=True)], flipped


def describe(method: str, errors: list[int], flipped: set[int], rows: int, seed: int) -> dict[str, Any]:
    """Return which share of the rows at the top of a ranking were flipped."""
    is_flipped = np.array([row in flipped for row in errors])
    return {
        "method": method,
        "rows": rows,
        "seed": seed,
        "flipped": len(flipped),
        "found": len(errors),
        "precision": round(float(is_flipped[: len(flipped)].mean()), 4),
        "precision_of_upper_half": round(float(is_flipped[: len(flipped) // 2].mean()), 4),
    }


def rank_of_check(model: Any, rows: list[dict[str, str]]) -> list[int]:
    """Return the rows that `check` ranks, the likeliest error first."""
    from bertkit.checks.label_errors import find_label_errors
    from bertkit.data.rows import Columns, Split

    split = Split("train", "train", rows, list(range(len(rows))))
    found = find_label_errors({"train": split}, Columns(given=("text",), gold="label"), model)
    return [error.row for error in found.ranked] if found else []


def count_planted(embedder: Any, file: Path, share: float, seed: int) -> dict[str, Any]:
    """Replace a share of the labels of a file by others, and return how many errors are expected."""
    from bertkit.checks.label_errors import count_errors, embed_rows, load_cleanlab, predict_labels
    from bertkit.progress import SILENT

    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").rstrip("\n").split("\n")]
    names, labels = np.unique([str(row["label"]) for row in rows], return_inverse=True)
    draw = np.random.default_rng(seed)
    wrong = draw.choice(len(labels), round(share * len(labels)), replace=False)
    labels[wrong] = (labels[wrong] + draw.integers(1, len(names), len(wrong))) % len(names)
    vectors = embed_rows([{"text": row["text"]} for row in rows], embedder, SILENT)
    probabilities = predict_labels([row["text"] for row in rows], vectors, labels)
    ranked = load_cleanlab()(labels, probabilities)
    counted = count_errors(labels, probabilities)._asdict()
    facts = {"method": "count", "set": file.parent.name, "rows": len(rows), "labels": len(names), "seed": seed}
    return {**facts, "planted": len(wrong), "ranked": len(ranked), **counted}


def predict_fine_tuned(model: str, rows: list[dict[str, str]], work: Path) -> Any:
    """Return the probabilities of the labels, (rows, 2), by models that were fine-tuned on the other two thirds."""
    from sklearn.model_selection import StratifiedKFold

    from bertkit.evaluation.seeds import read_predictions
    from bertkit.recipe import load_recipe
    from bertkit.workflows.finetune import finetune

    probabilities = np.zeros((len(rows), 2))
    folds = StratifiedKFold(3, shuffle=True, random_state=42).split(rows, [row["label"] for row in rows])
    for fold, (training, held_out) in enumerate(folds):
        folder = work / f"fold-{fold}"
        write_rows([rows[row] for row in training], folder / "train.jsonl")
        write_rows([rows[row] for row in held_out], folder / "validation.jsonl")
        settings = {
            "model": model,
            "data.source": str(folder),
            "labels": ["0", "1"],
            "training.epochs": 1,
            "training.learning_rate": 2e-4,
            "training.max_length": 64,
        }
        finetune(load_recipe("classify", settings), output=folder / "run")
        for row, record in zip(held_out, read_predictions(folder / "run", "validation"), strict=True):
            probabilities[row] = [record["probabilities"][name] for name in ("0", "1")]
    return probabilities


def measure_fine_tuned(model: str, embedder: Any, rows: list[dict[str, str]], work: Path) -> dict[str, list[int]]:
    """Return the rankings by fine-tuned models, and by the mean of these and of what `check` takes."""
    from bertkit.checks.label_errors import embed_rows, load_cleanlab, predict_labels
    from bertkit.progress import SILENT

    labels = np.array([int(row["label"]) for row in rows])
    vectors = embed_rows([{"text": row["text"]} for row in rows], embedder, SILENT)
    own, of_check = (
        predict_fine_tuned(model, rows, work),
        predict_labels([row["text"] for row in rows], vectors, labels),
    )
    rank = load_cleanlab()
    return {"fine-tuned": rank(labels, own), "mean": rank(labels, (own + of_check) / 2)}


def counts_part(reports: Sequence[dict[str, Any]]) -> str:
    """Build a table of the errors that are expected where labels were replaced."""
    lines = [
        "| set | rows | labels | replaced | ranked | expected, of each draw | intervals that hold it |",
        "|---|---:|---:|---:|---|---|---:|",
    ]
    cases: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for report in reports:
        if report.get("method") == "count":
            cases.setdefault(tuple(report[name] for name in ("set", "rows", "labels", "planted")), []).append(report)
    for (name, rows, labels, planted), draws in cases.items():
        ranked = ", ".join(f"{draw['ranked']:,}" for draw in draws)
        expected = ", ".join(f"{draw['expected']} ({draw['low']} to {draw['high']})" for draw in draws)
        held = sum(draw["low"] <= planted <= draw["high"] for draw in draws)
        lines.append(f"| {name} | {rows:,} | {labels} | {planted} | {ranked} | {expected} | {held} of {len(draws)} |")
    return "\n".join(lines)


def main() -> None:
    from bertkit.vectors.embedder import Embedder

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--counts", type=Path, nargs="*", default=[])
    parser.add_argument("--rows", type=int, nargs="*", default=[10_000, 67_349])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--work", type=Path)
    arguments = parser.parse_args()
    lines = split_lines(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else []
    done = {(case.get("method", "check"), case["rows"], case["seed"]) for case in map(json.loads, lines)}
    embedder = Embedder(arguments.model)
    for file in arguments.counts:
        for share in (0.0, 0.02, 0.05, 0.1):
            for seed in range(arguments.seeds if share else 1):
                case = count_planted(embedder, file, share, seed)
                with RESULTS.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(case) + "\n")
                print(case)
    for count in arguments.rows if arguments.data else ():
        for seed in range(arguments.seeds):
            rows, flipped = read_rows(arguments.data / "glue/sst2/train.parquet", count, seed)
            start = time.process_time()
            rankings = {}
            if ("check", count, seed) not in done:
                rankings["check"] = rank_of_check(embedder, rows)
            if arguments.work is not None and ("mean", count, seed) not in done:
                work = arguments.work / f"{count}-{seed}"
                rankings |= measure_fine_tuned(arguments.model, embedder, rows, work)
            seconds = round(time.process_time() - start, 1)
            for method, errors in rankings.items():
                case = {**describe(method, errors, flipped, count, seed), "cpu_seconds": seconds}
                with RESULTS.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(case) + "\n")
                print(case)


if __name__ == "__main__":
    main()
