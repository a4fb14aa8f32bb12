"""Accuracy with 8, 16 and 64 examples per class: fine-tuning, few-shot, frozen vectors, and zero-shot.

    python -m benchmarks.few_shot --model MODEL --data DATA [--nli FOLDER] [--tasks sst2 qnli] [--draws 5] [--rows 400]

MODEL is an encoder for sentence vectors. Each draw has other training rows; all methods see the same training rows and
the same rows of the validation split. The same command resumes: each run is a line of the output file. Zero-shot by
inference needs a model of MNLI: the model in `--nli`, or MODEL is fine-tuned first.
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
from benchmarks.harness import RESULTS, Report, find_line, make_table, measure_once, read_options
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
    """Link the training rows of a task, and write a fixed sample of its validation rows."""
    import numpy as np
    from pyarrow import parquet

    source = find_folder(data, task)
    folder.mkdir()
    (folder / "train.parquet").symlink_to(source / "train.parquet")
    table = parquet.read_table(source / "validation.parquet")
    indices = np.sort(np.random.default_rng(0).permutation(len(table))[:rows])
    parquet.write_table(table.take(indices), folder / "validation.parquet")


def finetune(recipe: str, changes: Report, folder: Path) -> Any:
    """Fine-tune in this process, and return the results of the validation splits."""
    from bertkit.recipe import load_recipe
    from bertkit.workflows import finetune

    return finetune.finetune(load_recipe(recipe, changes), output=folder)


def run(key: Mapping[str, Any], model: Path, rows: Path) -> Report:
    """Train and score one case, or score a model without training."""
    from bertkit.recipe import load_recipe
    from bertkit.workflows.evaluate import evaluate

    start, method = time.process_time(), key["method"]
    changes = {"model": str(model), "data.source": str(rows), "data.cache": False, "metrics": ["accuracy"]}
    changes |= {"best_metric": "accuracy", **TASKS[key["task"]]}
    if method in ZERO_SHOT:
        described = {"task": "zero_shot", "options.descriptions": DESCRIPTIONS[key["task"]]}
        [result] = evaluate(load_recipe("few-shot", {**changes, **described}))
    else:
        sample = {"data.train_rows_per_label": key["per_class"], "training.seed": key["draw"]}
        with tempfile.TemporaryDirectory() as folder:
            [result] = finetune("few-shot", {**changes, **sample, **key["settings"]}, Path(folder, "run"))
    scores = {"accuracy": result.scores["accuracy"], "interval": list(result.intervals["accuracy"])}
    return {**scores, "cpu_seconds": round(time.process_time() - start, 1), "commit": machine(1)["commit"]}


def list_keys(task: str, options: argparse.Namespace) -> list[Report]:
    """Return the identities of all runs of a task; those without training come first."""
    weights = (options.model / "model.safetensors").read_bytes()
    shared = {"task": task, "rows": options.rows, "model": hashlib.sha256(weights).hexdigest()[:12]}
    keys: list[Report] = [{**shared, "method": method, "settings": DESCRIPTIONS[task]} for method in ZERO_SHOT]
    keys += [
        {**shared, "method": method, "per_class": count, "draw": draw, "settings": settings}
        for count in options.per_class
        for draw in range(1, options.draws + 1)
        for method, settings in TRAINED.items()
    ]
    return [key for key in keys if key["method"] in options.methods]


def train_nli(model: Path, data: Path, folder: Path) -> Path:
    """Fine-tune the model on MNLI for two epochs unless the folder has a model, and return the folder."""
    if not (folder / "model.safetensors").exists():
        settings = {"training.epochs": 2, "training.learning_rate": 5e-5, "data.source": str(find_folder(data, "mnli"))}
        finetune("mnli", {"model": str(model), **settings}, folder)
    return folder


def format_interval(value: float, ends: Sequence[float] | None, style: str = ".3f") -> str:
    """Format a value, and the ends of its interval if it has one."""
    return f"{value:{style}}" + (f" ({ends[0]:{style}} to {ends[1]:{style}})" if ends else "")


def format_mean(values: Sequence[float], style: str = ".3f") -> str:
    """Format the mean of values, and its 95% interval (Student's t) if there are at least two."""
    from scipy.stats import ttest_1samp

    ends = tuple(ttest_1samp(values, 0).confidence_interval()) if len(values) > 1 else None
    return format_interval(statistics.mean(values), ends, style)


def few_shot_part(runs: Sequence[Report]) -> str:
    """Build a table of the mean accuracy of each method, and of the gain of few-shot, paired by draw."""
    groups: dict[tuple[str, int, str], dict[int, Report]] = {}
    for run in runs:
        key = run["key"]
        groups.setdefault((key["task"], key.get("per_class", 0), key["method"]), {})[key.get("draw", 0)] = run
    rows = []
    for (task, count, method), by_draw in sorted(groups.items(), key=lambda group: group[0][:2]):
        few_shot = groups.get((task, count, "few-shot"), {}) if method != "few-shot" else {}
        gains = [few_shot[draw]["accuracy"] - by_draw[draw]["accuracy"] for draw in few_shot if draw in by_draw]
        scores = [run["accuracy"] for run in by_draw.values()]
        accuracy = format_mean(scores) if count else format_interval(scores[0], by_draw[0]["interval"])
        gain = format_mean(gains, "+.3f") if gains else ""
        rows.append([task, count, method, accuracy, gain, len(scores) if count else ""])
    titles = ("task", "per class", "method", "accuracy", "few-shot minus this", "draws")
    return make_table(titles, rows, "lrlllr")


def main() -> None:
    methods = dict.fromkeys((*TRAINED, *ZERO_SHOT))
    settings = {"nli": Path, "tasks": TASKS, "per_class": [8, 16, 64], "methods": methods, "draws": 5, "rows": 400}
    options = read_options(__doc__, "model data", **settings, output=RESULTS / "few_shot.jsonl")
    runs = []
    with tempfile.TemporaryDirectory() as temporary:
        for task in options.tasks:
            rows = Path(temporary, task)
            link_rows(options.data, task, options.rows, rows)
            for key in list_keys(task, options):
                model = options.model
                if key["method"] == "zero-shot, NLI" and not find_line(options.output, {"key": key}):
                    model = train_nli(model, options.data, options.nli or Path(temporary, "nli"))
                runs.append(measure_once(options.output, {"key": key}, partial(run, key, model, rows)))
    print(few_shot_part(runs))


if __name__ == "__main__":
    main()
