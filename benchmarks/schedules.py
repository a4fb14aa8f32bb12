"""Ways to train on small sets beside longer plain training, the same seeds in each: scores, memory and time.

    python -m benchmarks.schedules --model DIR --data DIR [--tasks rte mrpc] [--seeds 5] [--limit 600] [--epochs 8]

`--data` has glue/rte and glue/mrpc in the columns of the hub. Every run is one line of the output file; a run that is
there already is not repeated, so the same command goes on where it was stopped. `python -m benchmarks.report` writes
the table into docs/benchmarks.md.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.cases import Case, make_case
from benchmarks.harness import (
    RESULTS,
    Report,
    mean_interval,
    measure_once,
    read_lines,
    read_options,
    run_program,
    table,
    with_ends,
)
from benchmarks.load import machine

SHORT, BASELINE = "3 epochs", "longer"
RATE = 5e-5
METHODS: dict[str, dict[str, Any]] = {
    SHORT: {"epochs": 3},
    BASELINE: {},
    "gradual unfreezing": {"gradual_unfreezing": "epoch"},
    "layer-wise decay 0.9": {"layerwise_lr_decay": 0.9},
    "top layer and pooler new": {"reinit_layers": 1},
    "LoRA, rank 8": {"learning_rate": 1e-3, "lora": {"rank": 8}},
}
"""Method -> keys of `training` that differ from those of longer plain training."""


def settings_of(method: str, epochs: float) -> dict[str, Any]:
    """Return the keys of `training` of a method.

    >>> settings_of("layer-wise decay 0.9", 10)
    {'learning_rate': 5e-05, 'epochs': 10, 'layerwise_lr_decay': 0.9}
    """
    return {"learning_rate": RATE, "epochs": epochs, **METHODS[method]}


def train(case: Case, training: dict[str, Any]) -> Report:
    """Train in a process of its own; return its score, its peak memory, the MB of its optimizer, core seconds."""
    training = {**training, "keep_optimizer": True}  # whose size is measured
    keys = [word for key, value in training.items() for word in ("--set", f"training.{key}={json.dumps(value)}")]
    with tempfile.TemporaryDirectory() as folder:
        words = ["bertkit", "finetune", case.recipe, *case.options(), *keys, "-o", "run", "--json"]
        ran = run_program(*words, folder=Path(folder))
        states = Path(folder, "run").glob("checkpoint-*/optimizer.pt")
        size = max(states, key=lambda file: file.stat().st_mtime).stat().st_size  # in memory too
    metric, facts = case.load().best_metric, machine(1)
    scores = ran["printed"]["results"][0]["scores"]
    took = {"seconds": ran["cpu_seconds"], "peak_mb": ran["memory_mb"], "optimizer_mb": size / 1e6}
    where = {"machine": facts["cpu"], "commit": facts["commit"]}
    return {"metric": metric, "score": scores[metric], "scores": scores, **took, **where}


def schedules_part(runs: Sequence[Report]) -> str:
    """Build the table of each method beside longer plain training, on the seeds of both."""
    rows = []
    for task, method in product(dict.fromkeys(run["key"]["task"] for run in runs), METHODS):
        of_task = [run for run in runs if run["key"]["task"] == task]
        ours, theirs = (
            {run["key"]["seed"]: run["score"] for run in of_task if run["key"]["method"] == name}
            for name in (method, BASELINE)
        )
        seeds, chosen = sorted(ours.keys() & theirs.keys()), [run for run in of_task if run["key"]["method"] == method]
        if not seeds:
            continue
        values = [ours[seed] for seed in seeds]
        gains = [ours[seed] - theirs[seed] for seed in seeds]
        low, high = mean_interval(gains) or (-math.inf, math.inf)
        gain = f"{statistics.mean(gains):+.3f} [{low:+.3f}, {high:+.3f}]"
        score = with_ends(statistics.mean(values), (min(values), max(values)))
        costs = [statistics.median(run[name] for run in chosen) for name in ("seconds", "peak_mb", "optimizer_mb")]
        cells = [f"{task} ({chosen[0]['metric']})", method, len(seeds), score, "" if method == BASELINE else gain]
        rows.append([*cells, f"{costs[0]:.0f}", f"{costs[1]:,.0f}", f"{costs[2]:.1f}"])
    titles = ("task", "method", "seeds", "score: mean (lowest to highest)", "beside longer plain training")
    key = runs[0]["key"]
    told = f"The first {key['limit']:,} rows of each split; longer training has {key['epochs']:g} epochs. "
    told += "The best checkpoint is chosen on the rows that are scored. "
    told += f"Differences are paired by seed, with a 95% interval (t). {runs[0]['machine']}."
    costs_of = ("core seconds", "peak, MB", "optimizer, MB")
    return f"{table([*titles, *costs_of], rows, 'llrrrrrr')}\n\n{told}"


def main() -> None:
    own = {"tasks": ["rte", "mrpc"], "methods": METHODS, "seeds": 5, "output": RESULTS / "schedules.jsonl"}
    epochs = (8.0, "of all methods but the short one")
    asked = read_options(__doc__, "model data limit", **own, epochs=epochs)
    limit = asked.limit or 600
    seeds = range(1, asked.seeds + 1)  # first, so that a part of the seeds is there for all methods
    for seed, task, method in product(seeds, asked.tasks, asked.methods):
        case = make_case(task, asked.model, asked.data, limit=limit, seed=seed, max_length=128)
        key = {"task": task, "method": method, "seed": seed, "limit": limit, "epochs": asked.epochs}
        measure_once(asked.output, {"key": key}, partial(train, case, settings_of(method, asked.epochs)))
    print(schedules_part(read_lines(asked.output)))


if __name__ == "__main__":
    main()
