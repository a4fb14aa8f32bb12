"""Complete programs, in turns: `bertkit finetune` compared with Trainers.

    python -m benchmarks.whole cola:1 stsb:1 --model DIR --data DIR [--limit 2000]

RECIPE:EPOCHS trains, scores and saves a model; no cache survives a run. Each engine chooses its threads unless
--threads is given. Writes benchmarks/results/whole-RECIPE.json.
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
    make_table,
    read_options,
    run_program,
    summarize_runs,
    take_turns,
    with_names,
    write_results,
)
from benchmarks.load import machine

ENGINES = "bertkit,hf-default,hf-dynamic,hf-tuned"
SETTINGS = ("threads", "precision")


def finetune(engine: str, case: Case, threads: int | None, *options: str) -> Report:
    """Train and score with one engine in an empty folder; return its times, scores, threads and precision.

    Args:
        engine: `bertkit`, `bertkit:KEY=VALUE;KEY=VALUE`, or a variant of `benchmarks.peers`.
        case: Rows and settings.
        threads: Number of threads, or None if the engine chooses.
        options: Further options of `benchmarks.peers`.
    """
    name, _, changes = engine.partition(":")
    with tempfile.TemporaryDirectory() as folder:
        words = ["benchmarks.peers", name, case.write(Path(folder)), Path(folder, "run"), *options]
        if name == "bertkit":
            more = [word for change in changes.split(";") if change for word in ("--set", change)]
            words = ["bertkit", "finetune", case.recipe, *case.options(), *more, "--output", Path(folder, "run")]
            words.append("--json")
        report = run_program(*words, threads=threads)
        printed = report.pop("printed")
        record = Path(folder, "run", "run.json")
        settings = json.loads(record.read_text())["machine"] if record.exists() else printed
    return {**report, "scores": printed["results"][0]["scores"], **{key: settings[key] for key in SETTINGS}}


def measure(item: str, options: argparse.Namespace) -> Report:
    """Measure the engines in turns on a recipe."""
    task, _, epochs = item.partition(":")
    case = make_case(task, options.model, options.data, limit=options.limit, epochs=float(epochs or 1))
    engines = {engine: partial(finetune, engine, case, options.threads) for engine in options.engines.split(",")}
    summaries = {
        name: summarize_runs(runs, options.foreign) | {key: runs[0][key] for key in ("scores", *SETTINGS)}
        for name, runs in take_turns(engines, options.rounds).items()
    }
    settings = {"epochs": case.epochs, "limit": case.limit}
    description = machine(options.threads or os.cpu_count() or 1)
    return {"task": task, "settings": settings, "machine": description, "engines": summaries}


def programs_part(reports: Sequence[Report]) -> str:
    """Build a table of the seconds of complete programs."""
    parts = []
    for report in reports:
        settings, ours = report["settings"], report["engines"]["bertkit"]["seconds"]
        columns: dict[str, Any] = {
            "engine": "{name}",
            "seconds": "{seconds:.1f}",
            "relative to bertkit": lambda row, ours=ours: f"{row['seconds'] / ours:.2f}x",
            "MB": "{memory_mb:,}",
            "threads": "{threads}",
            "precision": "{precision}",
        }
        limit = f", first {settings['limit']:,} rows" if settings["limit"] else ""
        epochs = f"{settings['epochs']:g} epoch{'' if settings['epochs'] == 1 else 's'}"
        table = make_table(columns, with_names(report["engines"]))
        parts.append(f"**{report['task']}**: {epochs}{limit}.\n\n{table}")
    return "\n\n".join(parts)


def main() -> None:
    settings: dict[str, Any] = {"engines": ENGINES, "rounds": 2, "threads": (int, "default: each engine chooses")}
    options = read_options(__doc__, "items+ model data limit foreign output", **settings)
    for item in options.items:
        report = measure(item, options)
        write_results(report, options.output / f"whole-{report['task']}.json")
        print(programs_part([report]), flush=True)


if __name__ == "__main__":
    main()
