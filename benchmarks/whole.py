"""Whole programs from start to saved and scored model: `bertkit finetune` and peers, taking turns.

    python -m benchmarks.whole cola:1 stsb:1 --model DIR --data DIR [--limit 2000]

Each item is RECIPE:EPOCHS. Nothing is cached from one run to the next. Writes benchmarks/results/whole-TASK.json.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.cases import ROOT, add_options, make_case, write_results
from benchmarks.load import machine
from benchmarks.programs import finetune

ENGINES = "bertkit,hf-default,hf-dynamic,hf-tuned"


def summarize(runs: list[dict[str, Any]], foreign: float) -> dict[str, Any]:
    """Compute medians of an engine's clean runs (of all where none is clean), and the parts of the median run."""
    clean = [run for run in runs if run["foreign"] <= foreign]
    used = sorted(clean or runs, key=lambda run: run["seconds"])
    return {
        "seconds": statistics.median(run["seconds"] for run in used),
        "least_seconds": used[0]["seconds"],
        "memory_mb": max(run["memory_mb"] for run in used),
        "scores": used[0]["scores"],
        "stages": used[(len(used) - 1) // 2]["stages"],
        "clean_runs": len(clean),
        "runs": [{"seconds": run["seconds"], "foreign": run["foreign"]} for run in runs],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("items", nargs="+", metavar="RECIPE:EPOCHS")
    add_options(parser)
    parser.add_argument("--engines", default=ENGINES, help=f"comma-separated; usual: {ENGINES}")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--foreign", type=float, default=0.06, help="cores that others may use in a clean run")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    arguments = parser.parse_args()
    for item in arguments.items:
        task, _, epochs = item.partition(":")
        case = make_case(task, arguments.model, arguments.data, limit=arguments.limit, epochs=float(epochs or 1))
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in arguments.engines.split(",")}
        for number in range(arguments.rounds):
            for name, done in runs.items():
                with tempfile.TemporaryDirectory() as folder:
                    done.append(finetune(name, case, Path(folder, "one"), arguments.threads))
                line = (
                    f"{task} round {number + 1} {name}: {done[-1]['seconds']:.1f} s, others {done[-1]['foreign']:.2f}"
                )
                print(line, file=sys.stderr, flush=True)
        engines = {name: summarize(done, arguments.foreign) for name, done in runs.items()}
        report = {
            "task": task,
            "settings": {"epochs": case.epochs, "limit": case.limit},
            "machine": machine(arguments.threads),
            "engines": engines,
        }
        write_results(report, arguments.output / f"whole-{task}.json")
        for name, each in engines.items():
            print(f"{task:6} {name:24} {each['seconds']:8.1f} s {each['memory_mb']:6} MB  {each['stages']}", flush=True)


if __name__ == "__main__":
    main()
