"""Ways to train on small sets beside longer plain training, the same seeds in each: scores, memory and time.

    python -m benchmarks.schedules --model DIR --data DIR [--tasks rte mrpc] [--seeds 5] [--limit 600] [--epochs 8]

`--data` has glue/rte and glue/mrpc in the columns of the hub. Every run is one line of the output file; a run that is
there already is not repeated, so the same command goes on where it was stopped. `python -m benchmarks.report` writes
the table into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cases import ROOT, Case, environment, make_case
from benchmarks.load import machine
from bertkit.storage.files import split_lines

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
RESULTS = ROOT / "benchmarks" / "results" / "schedules.jsonl"


def settings_of(method: str, epochs: float) -> dict[str, Any]:
    """Return the keys of `training` of a method.

    >>> settings_of("layer-wise decay 0.9", 10)
    {'learning_rate': 5e-05, 'epochs': 10, 'layerwise_lr_decay': 0.9}
    """
    return {"learning_rate": RATE, "epochs": epochs, **METHODS[method]}


def read_runs(file: Path) -> list[dict[str, Any]]:
    """Read the recorded runs; a line that a kill left incomplete is skipped."""
    runs = []
    for line in split_lines(file.read_text(encoding="utf-8")) if file.exists() else ():
        try:
            runs.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return runs


def train(case: Case, training: dict[str, Any]) -> dict[str, Any]:
    """Train in a process of its own; return its scores, its peak memory, the MB of its optimizer, core seconds."""
    training = {**training, "keep_optimizer": True}  # whose size is measured
    keys = [word for key, value in training.items() for word in ("--set", f"training.{key}={json.dumps(value)}")]
    command = [sys.executable, "-m", "bertkit", "finetune", case.recipe, *case.options(), *keys, "-o", "run", "--json"]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
            process = subprocess.Popen(command, cwd=folder, env=environment(1, PYTHONPATH=path), stdout=out, stderr=err)
            _, status, usage = os.wait4(process.pid, 0)
        if status:
            sys.exit((folder / "err").read_text().strip().splitlines()[-1])
        return {
            "scores": json.loads((folder / "out").read_text())["results"][0]["scores"],
            "seconds": usage.ru_utime + usage.ru_stime,
            "peak_mb": usage.ru_maxrss / 1024,
            "optimizer_mb": optimizer_size(folder / "run"),
        }


def optimizer_size(run: Path) -> float:
    """Return the size in MB of the optimizer's state in a run's last checkpoint, which memory holds too."""
    files = sorted(run.glob("checkpoint-*/optimizer.pt"), key=lambda file: file.stat().st_mtime)
    return files[-1].stat().st_size / 1e6


def paired_interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of the differences of two methods on the same seeds, and the ends of its 95% interval (t).

    >>> tuple(round(value, 3) for value in paired_interval([0.6, 0.7, 0.8], [0.5, 0.7, 0.7]))
    (0.067, -0.077, 0.21)
    """
    from scipy.stats import t

    differences = [one - other for one, other in zip(ours, theirs, strict=True)]
    mean = statistics.mean(differences)
    if len(differences) < 2:
        return mean, -math.inf, math.inf
    half = float(t.ppf(0.975, len(differences) - 1)) * statistics.stdev(differences) / math.sqrt(len(differences))
    return mean, mean - half, mean + half


def schedules_part(runs: Sequence[dict[str, Any]]) -> str:
    """Write the table of docs/benchmarks.md: each method beside longer plain training, on the seeds of both."""
    heads = ("task", "method", "seeds", "score: mean (lowest to highest)", "beside longer plain training")
    heads += ("core seconds", "peak, MB", "optimizer, MB")
    lines = [f"| {' | '.join(heads)} |", f"|---|---|{'---:|' * (len(heads) - 2)}"]
    for task in dict.fromkeys(run["key"]["task"] for run in runs):
        of_task = [run for run in runs if run["key"]["task"] == task]
        scores = {
            method: {run["key"]["seed"]: run["score"] for run in of_task if run["key"]["method"] == method}
            for method in METHODS
        }
        for method, by_seed in scores.items():
            chosen = [run for run in of_task if run["key"]["method"] == method]
            seeds = sorted(by_seed.keys() & scores[BASELINE].keys())
            if not seeds:
                continue
            values = [by_seed[seed] for seed in seeds]
            mean, low, high = paired_interval(values, [scores[BASELINE][seed] for seed in seeds])
            cells = [
                f"{task} ({chosen[0]['metric']})",
                method,
                str(len(seeds)),
                f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})",
                "" if method == BASELINE else f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]",
                f"{statistics.median(run['seconds'] for run in chosen):.0f}",
                f"{statistics.median(run['peak_mb'] for run in chosen):,.0f}",
                f"{statistics.median(run['optimizer_mb'] for run in chosen):.1f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    first = runs[0]
    lines += ["", f"The first {first['key']['limit']:,} rows of each split; longer training has "]
    lines[-1] += f"{first['key']['epochs']:g} epochs. The best checkpoint is chosen on the rows that are scored. "
    lines[-1] += f"Differences are paired by seed, with a 95% interval (t). {first['machine']}."
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--tasks", nargs="+", default=["rte", "mrpc"])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--limit", type=int, default=600, help="rows of each split")
    parser.add_argument("--epochs", type=float, default=8, help="of all methods but the short one")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    done = [run["key"] for run in read_runs(arguments.output)]
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    for seed in range(1, arguments.seeds + 1):  # so that a part of the seeds is there for all methods
        for task in arguments.tasks:
            case = make_case(task, arguments.model, arguments.data, limit=arguments.limit, seed=seed, max_length=128)
            for method in arguments.methods:
                key = {"task": task, "method": method, "seed": seed, "limit": arguments.limit}
                key |= {"epochs": arguments.epochs}
                if key not in done:
                    measured = train(case, settings_of(method, arguments.epochs))
                    append(arguments.output, key, case.load().best_metric, measured)
    print(schedules_part(read_runs(arguments.output)))


def append(file: Path, key: dict[str, Any], metric: str, measured: dict[str, Any]) -> None:
    """Append a run to the output file, and print its score."""
    facts = machine(1)
    score = measured["scores"][metric]
    run = {"key": key, "metric": metric, "score": score, **measured, "machine": facts["cpu"], "commit": facts["commit"]}
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(run) + "\n")
    print(f"{key['task']}, seed {key['seed']}, {key['method']}: {score:.4f} in {measured['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
