"""Whole programs from start to end, taking turns: `bertkit finetune` beside Trainers.

    python -m benchmarks.whole cola:1 stsb:1 --model DIR --data DIR [--limit 2000]

RECIPE:EPOCHS trains, scores and saves a model; nothing is cached from one run to the next. Each engine chooses its
threads unless --threads is given. Writes benchmarks/results/whole-RECIPE.json.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cases import Case, make_case
from benchmarks.harness import (
    Report,
    read_options,
    run_program,
    summarize_runs,
    table,
    take_turns,
    with_names,
    write_results,
)
from benchmarks.load import machine

ENGINES = "bertkit,hf-default,hf-dynamic,hf-tuned"
_USED = ("threads", "precision")


def finetune(engine: str, case: Case, threads: int | None, *options: str) -> Report:
    """Train and score with one engine in an empty folder; return its times, scores, threads and precision.

    Args:
        engine: `bertkit`, `bertkit:KEY=VALUE;KEY=VALUE`, or a variant of `benchmarks.peers`.
        case: what is trained.
        threads: Number of threads, or None if the engine chooses.
        options: for a peer, further options of `benchmarks.peers`.
    """
    name, _, changes = engine.partition(":")
    with tempfile.TemporaryDirectory() as folder:
        words = ["benchmarks.peers", name, case.write(Path(folder)), Path(folder, "run"), *options]
        if name == "bertkit":
            more = [word for change in changes.split(";") if change for word in ("--set", change)]
            words = ["bertkit", "finetune", case.recipe, *case.options(), *more, "--output", Path(folder, "run")]
            words.append("--json")
        took = run_program(*words, threads=threads)
        printed = took.pop("printed")
        record = Path(folder, "run", "run.json")
        used = json.loads(record.read_text())["machine"] if record.exists() else printed
    return {**took, "scores": printed["results"][0]["scores"], **{key: used[key] for key in _USED}}


def measure(item: str, asked: argparse.Namespace) -> Report:
    """Let the engines train a recipe in turns."""
    task, _, epochs = item.partition(":")
    case = make_case(task, asked.model, asked.data, limit=asked.limit, epochs=float(epochs or 1))
    sides = {engine: partial(finetune, engine, case, asked.threads) for engine in asked.engines.split(",")}
    runs = take_turns(sides, asked.rounds)
    engines = {
        name: summarize_runs(done, asked.foreign) | {key: done[0][key] for key in ("scores", *_USED)}
        for name, done in runs.items()
    }
    settings = {"epochs": case.epochs, "limit": case.limit}
    facts = machine(asked.threads or os.cpu_count() or 1)
    return {"task": task, "settings": settings, "machine": facts, "engines": engines}


def whole_part(reports: Sequence[Report]) -> str:
    """Build a table of the seconds of whole programs."""
    parts = []
    for report in reports:
        settings, ours = report["settings"], report["engines"]["bertkit"]["seconds"]
        columns: dict[str, Any] = {
            "engine": "{name}",
            "seconds": "{seconds:.1f}",
            "relative to bertkit": lambda each, ours=ours: f"{each['seconds'] / ours:.2f}x",
            "MB": "{memory_mb:,}",
            "threads": "{threads}",
            "precision": "{precision}",
        }
        limit = f", first {settings['limit']:,} rows" if settings["limit"] else ""
        epochs = f"{settings['epochs']:g} epoch{'' if settings['epochs'] == 1 else 's'}"
        parts.append(f"**{report['task']}**: {epochs}{limit}.\n\n" + table(columns, with_names(report["engines"])))
    return "\n\n".join(parts)


def main() -> None:
    own: dict[str, Any] = {"engines": ENGINES, "rounds": 2, "threads": (int, "each engine chooses by default")}
    asked = read_options(__doc__, "items+ model data limit foreign output", **own)
    for item in asked.items:
        report = measure(item, asked)
        write_results(report, asked.output / f"whole-{report['task']}.json")
        for name, each in report["engines"].items():
            used = f"threads: {each['threads']}, {each['precision']}"
            print(f"{item:8} {name:24} {each['seconds']:8.1f} s {each['memory_mb']:6} MB  {used}", flush=True)


if __name__ == "__main__":
    main()
