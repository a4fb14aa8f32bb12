"""Remedies for a rare label beside plain training: 950 negative and 50 positive sentences of SST-2.

    python -m benchmarks.skewed --model DIR --data DIR [--seeds 1 2 3] [--methods plain focal]

`--data` has the folder glue/sst2 (or sst2) in the columns of the hub. A seed draws its own rows, which all methods
share. The last step counts, and is scored on the validation sentences, half of which are positive. Every run is one
line of the output file; one that is there is not repeated. `python -m benchmarks.report` writes the table into
docs/benchmarks.md.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.cases import find_folder
from benchmarks.harness import RESULTS, Report, measure_once, read_columns, read_lines, read_options, table, with_ends

LABELS = ("negative", "positive")
COUNTS = (950, 50)
HELD_OUT = (95, 5)  # rows for validation, which choose nothing
RARE = 0.05  # share of rare rows for which the last column is computed
METHODS: dict[str, dict[str, Any]] = {
    "plain": {},
    "class_weights: balanced": {"training.class_weights": "balanced"},
    "loss: focal": {"training.loss": "focal"},
    "both": {"training.class_weights": "balanced", "training.loss": "focal"},
    "oversample: label": {"data.oversample": "label"},
}


def draw(rows: Sequence[Report], seed: int) -> dict[str, list[Report]]:
    """Draw the rows of a seed, in an order of their own."""
    generator = random.Random(seed)
    splits: dict[str, list[Report]] = {"train": [], "validation": []}
    for label, trained, held_out in zip(LABELS, COUNTS, HELD_OUT, strict=True):
        drawn = generator.sample([row for row in rows if row["label"] == label], trained + held_out)
        splits["train"] += drawn[:trained]
        splits["validation"] += drawn[trained:]
    return {split: generator.sample(drawn, len(drawn)) for split, drawn in splits.items()}


def count(gold: Sequence[str], predicted: Sequence[str]) -> Report:
    """Compute the scores, and the share of each label that is found.

    >>> count(["negative", "negative", "positive", "positive"], ["negative"] * 3 + ["positive"])["rare_f1"]
    0.6666666666666666
    """
    from sklearn.metrics import accuracy_score, f1_score, recall_score

    each: Report = {"labels": list(LABELS), "average": None, "zero_division": 0}
    specificity, recall = map(float, recall_score(gold, predicted, **each))
    return {
        "accuracy": float(accuracy_score(gold, predicted)),
        "macro_f1": float(f1_score(gold, predicted, labels=list(LABELS), average="macro", zero_division=0)),
        "rare_f1": float(f1_score(gold, predicted, **each)[1]),
        "recall": recall,
        "specificity": specificity,
    }


def skewed_f1(recall: float, specificity: float, share: float = RARE) -> float:
    """Compute F1 of a label that so large a share of rows has, from what is measured on rows of both labels.

    >>> skewed_f1(1, 1), round(skewed_f1(0.8, 0.9, 0.5), 3)
    (1.0, 0.842)
    """
    right, wrong, missed = share * recall, (1 - share) * (1 - specificity), share * (1 - recall)
    return 2 * right / (2 * right + wrong + missed)


def train(key: Mapping[str, Any], model: Path, folder: Path) -> Report:
    """Fine-tune with one method on the rows of one seed, and score it on the validation sentences."""
    import bertkit

    rows, scored = (
        [{"text": row["sentence"].strip(), "label": LABELS[row["label"]]} for row in read_columns(file)]
        for file in (folder / "train.parquet", folder / "validation.parquet")
    )
    drawn, began = draw(rows, key["seed"]), time.process_time()
    with tempfile.TemporaryDirectory() as name:
        changes = {"data.cache": False, "training.seed": key["seed"], "training.evaluate_every": 10**6}
        trained = bertkit.finetune(
            "classify",
            model=model,
            data=drawn,
            changes={**changes, **METHODS[key["method"]]},
            output=Path(name, "run"),
        )
        seconds = time.process_time() - began
        predicted = [record["prediction"] for record in trained.model.predict([row["text"] for row in scored])]
        steps = json.loads(Path(name, "run", "run.json").read_text(encoding="utf-8"))["steps"]
    return {**count([row["label"] for row in scored], predicted), "steps": steps, "cpu_seconds": round(seconds, 1)}


def skewed_part(runs: Sequence[Report]) -> str:
    """Build a table with a row per method: the mean of each score over the seeds of all, the lowest and the highest."""
    methods = {run["key"]["method"] for run in runs}
    seeds = [{run["key"]["seed"] for run in runs if run["key"]["method"] == method} for method in methods]
    runs = [run for run in runs if run["key"]["seed"] in set.intersection(*seeds)]

    def cell(of_method: Sequence[Report], value: Any) -> str:
        values = list(map(value, of_method))
        return with_ends(statistics.mean(values), (min(values), max(values)))

    columns: dict[str, Any] = {
        "accuracy": lambda run: run["accuracy"],
        "macro F1": lambda run: run["macro_f1"],
        "F1 of positive": lambda run: run["rare_f1"],
        "positives found": lambda run: run["recall"],
        "negatives taken for positive": lambda run: 1 - run["specificity"],
        f"F1 of positive, if {RARE:.0%} are": lambda run: skewed_f1(run["recall"], run["specificity"]),
    }
    rows = []
    for method in METHODS:
        if of_method := [run for run in runs if run["key"]["method"] == method]:
            rows.append(
                [
                    f"`{method}`" if ":" in method else method,
                    len(of_method),
                    *(cell(of_method, value) for value in columns.values()),
                ]
            )
    return table(["method", "seeds", *columns], rows)


def main() -> None:
    own = {"methods": METHODS, "seeds": [1, 2, 3], "output": RESULTS / "skewed.jsonl"}
    asked = read_options(__doc__, "model data", **own)
    folder = find_folder(asked.data, "sst2")
    for seed, method in product(asked.seeds, asked.methods):
        key = {"seed": seed, "method": method}
        measure_once(asked.output, {"key": key}, partial(train, key, asked.model, folder))
    print(skewed_part(read_lines(asked.output)))


if __name__ == "__main__":
    main()
