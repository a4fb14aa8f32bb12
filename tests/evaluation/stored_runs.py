"""Run folders with predictions, as a finished run leaves them, without a model."""

from __future__ import annotations

import random
from pathlib import Path

from bertkit.data.output import write_records
from bertkit.recipe import write_yaml
from bertkit.storage import runs

LABELS = ["bad", "good"]


def make_rows(count: int, seed: int = 0) -> list[dict]:
    draw = random.Random(seed)
    return [
        {"text": " ".join(["word"] * draw.randint(1, 9)) + f" {n}", "label": draw.choice(LABELS)} for n in range(count)
    ]


def predict(rows: list[dict], wrong: set[int]) -> list[dict]:
    """Predictions that are wrong at some rows."""
    answers = [LABELS[(LABELS.index(row["label"]) + (n in wrong)) % 2] for n, row in enumerate(rows)]
    return [{"id": n, **row, "prediction": answer} for n, (row, answer) in enumerate(zip(rows, answers, strict=True))]


def make_run(
    folder: Path, predictions: list[dict], *, status="finished", scores=None, seed=1, labels=None, **recipe
) -> Path:
    folder.mkdir(parents=True)
    recipe = {
        "name": "mine",
        "task": "text_classification",
        "metrics": ["matthews_correlation", "accuracy"],
        "best_metric": "accuracy",
        "training": {"seed": seed},
        **recipe,
    }
    write_yaml(recipe, folder / "recipe.yaml")
    if predictions:
        write_records(iter(predictions), folder / "predictions.jsonl")
    identity = {"recipe": recipe, "labels": labels or LABELS, "data": {"validation": "abc"}}
    result = {"split": "validation", "scores": scores or {}, "rows": len(predictions)}
    facts = {"model": "tiny", "machine": {"device": "cpu", "precision": "fp32", "threads": 1, "reason": "a CPU"}}
    record = {**runs.new_record(identity, **facts), "status": status, "seconds": 90.0, "steps": 7}
    if status == "finished":
        record |= {"finished": "2026-01-02T03:04:05+00:00", "results": [result]}
    runs.write_record(folder, record)
    return folder
