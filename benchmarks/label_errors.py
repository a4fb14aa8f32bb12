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

import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import find_folder
from benchmarks.harness import (
    RESULTS,
    Report,
    add_line,
    finetune_here,
    read_columns,
    read_lines,
    read_options,
    table,
    write_rows,
)

SHARE = 0.05


def flip_labels(labels: list[int], seed: int) -> tuple[list[int], set[int]]:
    """Flip a share of labels that are 0 or 1, and return them with the indices of those.

    >>> flipped, indices = flip_labels([0, 1] * 50, seed=0)
    >>> len(indices), sum(old != new for old, new in zip([0, 1] * 50, flipped, strict=True))
    (5, 5)
    """
    chosen = np.random.default_rng(seed).choice(len(labels), round(SHARE * len(labels)), replace=False)
    indices = set(chosen.tolist())
    return [1 - label if number in indices else label for number, label in enumerate(labels)], indices


def read_rows(data: Path, rows: int, seed: int) -> tuple[list[dict[str, str]], set[int]]:
    """Return the first rows of SST-2, some of them with flipped labels, and the indices of those."""
    records = read_columns(find_folder(data, "sst2") / "train.parquet", "sentence", "label")[:rows]
    labels, flipped = flip_labels([row["label"] for row in records], seed)
    texts = [row["sentence"] for row in records]
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
    from bertkit.data.columns import Columns
    from bertkit.data.rows import Split

    split = Split("train", "train", rows, list(range(len(rows))))
    found = find_label_errors({"train": split}, Columns(given=("text",), gold="label"), model)
    return [error.row for error in found.ranked] if found else []


def count_planted(embedder: Any, file: Path, share: float, seed: int) -> dict[str, Any]:
    """Replace a share of the labels of a file by others, and return how many errors are expected."""
    from bertkit.checks.label_errors import count_errors, embed_rows, load_cleanlab, predict_labels

    rows = read_lines(file)
    names, labels = np.unique([str(row["label"]) for row in rows], return_inverse=True)
    draw = np.random.default_rng(seed)
    wrong = draw.choice(len(labels), round(share * len(labels)), replace=False)
    labels[wrong] = (labels[wrong] + draw.integers(1, len(names), len(wrong))) % len(names)
    vectors = embed_rows([{"text": row["text"]} for row in rows], embedder)
    probabilities = predict_labels([row["text"] for row in rows], vectors, labels)
    ranked = load_cleanlab()(labels, probabilities)
    counted = count_errors(labels, probabilities)._asdict()
    facts = {"method": "count", "set": file.parent.name, "rows": len(rows), "labels": len(names), "seed": seed}
    return {**facts, "planted": len(wrong), "ranked": len(ranked), **counted}


def predict_fine_tuned(model: str, rows: list[dict[str, str]], work: Path) -> Any:
    """Return the probabilities of the labels, (rows, 2), by models that were fine-tuned on the other two thirds."""
    from sklearn.model_selection import StratifiedKFold

    from bertkit.recipe import load_recipe
    from bertkit.workflows.predict import predict

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
        finetune_here("classify", settings, folder / "run")
        recipe = load_recipe(str(folder / "run" / "recipe.yaml"), {"model": str(folder / "run")})
        for row, record in zip(held_out, predict(recipe, source=folder / "validation.jsonl"), strict=True):
            probabilities[row] = [record["probabilities"][name] for name in ("0", "1")]
    return probabilities


def measure_fine_tuned(model: str, embedder: Any, rows: list[dict[str, str]], work: Path) -> dict[str, list[int]]:
    """Return the rankings by fine-tuned models, and by the mean of these and of what `check` takes."""
    from bertkit.checks.label_errors import embed_rows, load_cleanlab, predict_labels

    labels = np.array([int(row["label"]) for row in rows])
    vectors = embed_rows([{"text": row["text"]} for row in rows], embedder)
    own, rank = predict_fine_tuned(model, rows, work), load_cleanlab()
    of_check = predict_labels([row["text"] for row in rows], vectors, labels)
    return {"fine-tuned": rank(labels, own), "mean": rank(labels, (own + of_check) / 2)}


def counts_part(reports: Sequence[Report]) -> str:
    """Build a table of the errors that are expected where labels were replaced."""
    cases: dict[tuple[Any, ...], list[Report]] = {}
    for report in reports:
        if report.get("method") == "count":
            cases.setdefault(tuple(report[name] for name in ("set", "rows", "labels", "planted")), []).append(report)
    cells = []
    for (name, rows, labels, planted), draws in cases.items():
        ranked = ", ".join(f"{draw['ranked']:,}" for draw in draws)
        expected = ", ".join(f"{draw['expected']} ({draw['low']} to {draw['high']})" for draw in draws)
        held = sum(draw["low"] <= planted <= draw["high"] for draw in draws)
        cells.append([name, f"{rows:,}", labels, planted, ranked, expected, f"{held} of {len(draws)}"])
    titles = ("set", "rows", "labels", "replaced", "ranked", "expected, of each draw", "intervals that hold it")
    return table(titles, cells, "lrrrllr")


def main() -> None:
    from bertkit.vectors.embedder import Embedder

    own = {"counts": [Path], "rows": [10_000, 67_349], "seeds": 3, "work": Path}
    asked = read_options(__doc__, "model data?", **own, output=RESULTS / "label_errors.jsonl")
    embedder = Embedder(str(asked.model))
    for file, share in product(asked.counts, (0.0, 0.02, 0.05, 0.1)):
        for seed in range(asked.seeds if share else 1):
            add_line(asked.output, count_planted(embedder, file, share, seed))
    done = [(case.get("method", "check"), case["rows"], case["seed"]) for case in read_lines(asked.output)]
    for count, seed in product(asked.rows if asked.data else (), range(asked.seeds)):
        rows, flipped = read_rows(asked.data, count, seed)
        start, rankings = time.process_time(), {}
        if ("check", count, seed) not in done:
            rankings["check"] = rank_of_check(embedder, rows)
        if asked.work is not None and ("mean", count, seed) not in done:
            work = asked.work / f"{count}-{seed}"
            rankings |= measure_fine_tuned(str(asked.model), embedder, rows, work)
        seconds = round(time.process_time() - start, 1)
        for method, errors in rankings.items():
            add_line(asked.output, {**describe(method, errors, flipped, count, seed), "cpu_seconds": seconds})


if __name__ == "__main__":
    main()
