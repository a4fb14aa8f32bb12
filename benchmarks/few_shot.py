"""Accuracy with 8, 16 and 64 examples per class: fine-tuning, few-shot, frozen vectors, and zero-shot.

    python -m benchmarks.few_shot --model MODEL --data DATA [--nli FOLDER] [--tasks sst2 qnli] [--draws 5] [--rows 400]

MODEL is an encoder for sentence vectors. Each draw has other training rows; all methods see the same ones, and the same
rows of the validation split. Every run is one line of the output file, and one that is there is not repeated. For the
zero-shot of inference, MODEL is fine-tuned on MNLI first, or the model in `--nli` is taken if there is one. `python -m
benchmarks.report` writes the table.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cases import find_folder
from benchmarks.harness import (
    RESULTS,
    Report,
    find_line,
    finetune_here,
    mean_interval,
    measure_once,
    read_options,
    table,
    with_ends,
)
from benchmarks.load import machine

TASKS: dict[str, dict[str, Any]] = {
    "sst2": {
        "data.columns": {"text": "sentence", "label": "label"},
        "labels": ["negative", "positive"],
    },
    "qnli": {
        "data.columns": {"text": "question", "text_pair": "sentence", "label": "label"},
        "labels": ["entailment", "not_entailment"],
    },
}
DESCRIPTIONS = {
    "sst2": {"negative": "This movie is bad.", "positive": "This movie is good."},
    "qnli": {"entailment": "This answers the question.", "not_entailment": "This does not answer the question."},
}
TRAINED: dict[str, dict[str, Any]] = {
    # Mosbach et al. (2021) fine-tune on few rows for many epochs, until the training loss is close to 0.
    "fine-tuning": {"task": "text_classification", "training.steps": 160, "training.learning_rate": 5e-5},
    "few-shot": {"training.steps": 100, "training.learning_rate": 2e-5},
    "frozen vectors": {"options.method": "frozen"},
}
ZERO_SHOT = ("zero-shot, vectors", "zero-shot, NLI")


def link_rows(data: Path, task: str, rows: int, folder: Path) -> None:
    """Link the training rows of a task, and write some rows of its validation split, always the same."""
    import numpy as np
    from pyarrow import parquet

    source = find_folder(data, task)
    folder.mkdir()
    (folder / "train.parquet").symlink_to(source / "train.parquet")
    table = parquet.read_table(source / "validation.parquet")
    chosen = np.sort(np.random.default_rng(0).permutation(len(table))[:rows])
    parquet.write_table(table.take(chosen), folder / "validation.parquet")


def run(key: Mapping[str, Any], model: Path, rows: Path) -> Report:
    """Train and score one case, or only score a model that nothing is trained for."""
    from bertkit.recipe import load_recipe
    from bertkit.workflows.evaluate import evaluate

    start, method = time.process_time(), key["method"]
    changes = {"model": str(model), "data.source": str(rows), "data.cache": False, "metrics": ["accuracy"]}
    changes |= {"best_metric": "accuracy", **TASKS[key["task"]]}
    if method in ZERO_SHOT:
        described = {"task": "zero_shot", "options.descriptions": DESCRIPTIONS[key["task"]]}
        [result] = evaluate(load_recipe("few-shot", {**changes, **described}))
    else:
        drawn = {"data.per_class": key["per_class"], "training.seed": key["draw"]}
        with tempfile.TemporaryDirectory() as folder:
            [result] = finetune_here("few-shot", {**changes, **drawn, **key["settings"]}, Path(folder, "run"))
    scores = {"accuracy": result.scores["accuracy"], "interval": list(result.intervals["accuracy"])}
    return {**scores, "cpu_seconds": round(time.process_time() - start, 1), "commit": machine(1)["commit"]}


def keys_of(task: str, asked: argparse.Namespace) -> list[Report]:
    """Return what identifies each run of a task, those without training first."""
    shared = {"task": task, "rows": asked.rows, "model": digest_of(asked.model)}
    keys: list[Report] = [{**shared, "method": method, "settings": DESCRIPTIONS[task]} for method in ZERO_SHOT]
    keys += [
        {**shared, "method": method, "per_class": count, "draw": draw, "settings": settings}
        for count in asked.per_class
        for draw in range(1, asked.draws + 1)
        for method, settings in TRAINED.items()
    ]
    return [key for key in keys if key["method"] in asked.methods]


def digest_of(model: Path) -> str:
    """Return a digest of a model's weights."""
    return hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()[:12]


def train_nli(model: Path, data: Path, folder: Path) -> Path:
    """Fine-tune the model on MNLI for two epochs, and return its folder; a model that is there is taken as it is."""
    if not (folder / "model.safetensors").exists():
        settings = {"training.epochs": 2, "training.learning_rate": 5e-5, "data.source": str(find_folder(data, "mnli"))}
        finetune_here("mnli", {"model": str(model), **settings}, folder)
    return folder


def few_shot_part(runs: Sequence[Report]) -> str:
    """Build a table of the mean accuracy of each method, and of few-shot's gain over each, draw by draw."""
    groups: dict[tuple[str, int, str], dict[int, Report]] = {}
    for run in runs:
        key = run["key"]
        groups.setdefault((key["task"], key.get("per_class", 0), key["method"]), {})[key.get("draw", 0)] = run
    rows = []
    for (task, count, method), by_draw in sorted(groups.items(), key=lambda group: group[0][:2]):
        others = groups.get((task, count, "few-shot"), {}) if method != "few-shot" else {}
        gains = [others[draw]["accuracy"] - by_draw[draw]["accuracy"] for draw in others if draw in by_draw]
        scores = [run["accuracy"] for run in by_draw.values()]
        accuracy = with_ends(statistics.mean(scores), mean_interval(scores) if count else by_draw[0]["interval"])
        gain = with_ends(statistics.mean(gains), mean_interval(gains), "+.3f") if gains else ""
        rows.append([task, count, method, accuracy, gain, len(scores) if count else ""])
    titles = ("task", "per class", "method", "accuracy", "few-shot minus this", "draws")
    return table(titles, rows, "lrlllr")


def main() -> None:
    methods = dict.fromkeys((*TRAINED, *ZERO_SHOT))
    own = {"nli": Path, "tasks": TASKS, "per_class": [8, 16, 64], "methods": methods, "draws": 5, "rows": 400}
    asked = read_options(__doc__, "model data", **own, output=RESULTS / "few_shot.jsonl")
    done = []
    with tempfile.TemporaryDirectory() as temporary:
        for task in asked.tasks:
            rows = Path(temporary, task)
            link_rows(asked.data, task, asked.rows, rows)
            for key in keys_of(task, asked):
                model = asked.model
                if key["method"] == "zero-shot, NLI" and not find_line(asked.output, {"key": key}):
                    model = train_nli(model, asked.data, asked.nli or Path(temporary, "nli"))
                done.append(measure_once(asked.output, {"key": key}, partial(run, key, model, rows)))
    print(few_shot_part(done))


if __name__ == "__main__":
    main()
