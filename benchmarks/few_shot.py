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
import json
import math
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cases import ROOT
from benchmarks.load import machine
from benchmarks.quality import find_run

Report = dict[str, Any]

RESULTS = ROOT / "benchmarks" / "results" / "few_shot.jsonl"
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


def write_rows(data: Path, task: str, rows: int, folder: Path) -> None:
    """Link the training rows of a task, and write some rows of its validation split, always the same."""
    import numpy as np
    from pyarrow import parquet

    source = data / "glue" / task if (data / "glue" / task).is_dir() else data / task
    folder.mkdir()
    (folder / "train.parquet").symlink_to((source / "train.parquet").resolve())
    table = parquet.read_table(source / "validation.parquet")
    chosen = np.sort(np.random.default_rng(0).permutation(len(table))[:rows])
    parquet.write_table(table.take(chosen), folder / "validation.parquet")


def changes_of(task: str, model: str, rows: Path) -> dict[str, Any]:
    """Return what all runs of a task change in the recipe `few-shot`."""
    common = {"model": model, "data.source": str(rows), "data.cache": False, "metrics": ["accuracy"]}
    return {**common, "best_metric": "accuracy", **TASKS[task]}


def run(key: Mapping[str, Any], model: str, rows: Path, folder: Path) -> dict[str, Any]:
    """Train and score one case, or only score a model that nothing is trained for."""
    from bertkit.recipe import load_recipe
    from bertkit.workflows.evaluate import evaluate
    from bertkit.workflows.finetune import finetune

    changes, method = changes_of(key["task"], model, rows), key["method"]
    if method in ZERO_SHOT:
        described = {"task": "zero_shot", "options.descriptions": DESCRIPTIONS[key["task"]]}
        [result] = evaluate(load_recipe("few-shot", {**changes, **described}))
    else:
        drawn = {"data.per_class": key["per_class"], "training.seed": key["draw"]}
        [result] = finetune(load_recipe("few-shot", {**changes, **drawn, **key["settings"]}), output=folder)
    return {"accuracy": result.scores["accuracy"], "interval": list(result.intervals["accuracy"])}


def run_or_read(key: dict[str, Any], model: str, rows: Path, output: Path) -> dict[str, Any]:
    """Return a run of the output file; where it is not there, run it first."""
    if recorded := find_run(key, output):
        return recorded
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        found = {"key": key, **run(key, model, rows, Path(folder, "run"))}
    found |= {"cpu_seconds": round(time.process_time() - start, 1), "commit": machine(1)["commit"]}
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(found) + "\n")
    print(json.dumps(found), flush=True)
    return found


def keys_of(task: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return what identifies each run of a task, those without training first."""
    shared = {"task": task, "rows": arguments.rows, "model": digest_of(arguments.model)}
    keys: list[dict[str, Any]] = [
        {**shared, "method": method, "settings": DESCRIPTIONS[task]}
        for method in ZERO_SHOT
        if method in arguments.methods
    ]
    keys += [
        {**shared, "method": method, "per_class": count, "draw": draw, "settings": settings}
        for count in arguments.per_class
        for draw in range(1, arguments.draws + 1)
        for method, settings in TRAINED.items()
        if method in arguments.methods
    ]
    return keys


def digest_of(model: Path) -> str:
    """Return a digest of a model's weights."""
    return hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()[:12]


def train_nli(model: Path, data: Path, folder: Path) -> Path:
    """Fine-tune the model on MNLI for two epochs, and return its folder; a model that is there is taken as it is."""
    if (folder / "model.safetensors").exists():
        return folder
    from bertkit.recipe import load_recipe
    from bertkit.workflows.finetune import finetune

    source = data / "glue" / "mnli" if (data / "glue" / "mnli").is_dir() else data / "mnli"
    settings = {"training.epochs": 2, "training.learning_rate": 5e-5, "data.source": str(source)}
    results = finetune(load_recipe("mnli", {"model": str(model), **settings}), output=folder)
    print(f"MNLI: accuracy {results[0].scores['accuracy']}", flush=True)
    return folder


# --- the table ---


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean of two values or more (Student's t)."""
    from scipy.stats import t

    half = float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values) - half, statistics.mean(values) + half


def few_shot_part(runs: Sequence[Report]) -> str:
    """Build a table of the mean accuracy of each method, and of few-shot's gain over each, draw by draw."""
    lines = ["| task | per class | method | accuracy | few-shot minus this | draws |", "|---|---:|---|---|---|---:|"]
    groups: dict[tuple[str, int, str], dict[int, Report]] = {}
    for run in runs:
        key = run["key"]
        groups.setdefault((key["task"], key.get("per_class", 0), key["method"]), {})[key.get("draw", 0)] = run
    for (task, count, method), by_draw in sorted(groups.items(), key=lambda group: group[0][:2]):
        gains = [
            other["accuracy"] - by_draw[draw]["accuracy"]
            for draw, other in groups.get((task, count, "few-shot"), {}).items()
            if draw in by_draw and method != "few-shot"
        ]
        scores = [run["accuracy"] for run in by_draw.values()]
        accuracy = _shown(scores, ".3f", by_draw[0]["interval"] if count == 0 else None)
        gain, draws = _shown(gains, "+.3f") if gains else "", str(len(scores)) if count else ""
        lines.append(f"| {' | '.join([task, str(count), method, accuracy, gain, draws])} |")
    return "\n".join(lines)


def _shown(values: Sequence[float], style: str, ends: Sequence[float] | None = None) -> str:
    ends = interval(values) if ends is None and len(values) > 1 else ends
    return f"{statistics.mean(values):{style}}" + (f" ({ends[0]:{style}} to {ends[1]:{style}})" if ends else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=Path, help="folder of an encoder for sentence vectors")
    parser.add_argument("--data", required=True, type=Path, help="folder with sst2, qnli and mnli")
    parser.add_argument(
        "--nli", type=Path, help="folder of a model for inference; it is trained there if there is none"
    )
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--per-class", nargs="+", type=int, default=[8, 16, 64])
    parser.add_argument("--methods", nargs="+", default=[*TRAINED, *ZERO_SHOT], choices=[*TRAINED, *ZERO_SHOT])
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--rows", type=int, default=400, help="of the validation split")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as temporary:
        for task in arguments.tasks:
            rows = Path(temporary, task)
            write_rows(arguments.data, task, arguments.rows, rows)
            for key in keys_of(task, arguments):
                model = arguments.model
                if key["method"] == "zero-shot, NLI" and not find_run(key, arguments.output):
                    model = train_nli(arguments.model, arguments.data, arguments.nli or Path(temporary, "nli"))
                found.append(run_or_read(key, str(model), rows, arguments.output))
    print(few_shot_part(found))


if __name__ == "__main__":
    main()
