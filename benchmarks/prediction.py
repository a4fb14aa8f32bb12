"""Labels of a trained model beside the pipeline of transformers: whole programs, and a model that is kept in memory.

    python -m benchmarks.prediction --model DIR --data DIR [--run RUN] [--threads 1] [--single 1000] [--rows 10000]

`--data` has glue/sst2 (or sst2) in the columns of the hub. RUN classifies its sentences; without it, 2,000 of them
train a run first. Each side is a program of its own, and they take turns. `bertkit predict` and pipelines read, label
and write a file (inference.json). `bertkit.load`, the model of a package and pipelines answer single sentences one
after the other, then all in one call (in_python.json). One side alone: `python -m benchmarks.prediction SIDE RUN
PACKAGE FILE SINGLE`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cases import make_case
from benchmarks.harness import (
    Report,
    choose_clean,
    ratio,
    read_columns,
    read_lines,
    read_options,
    run_bertkit,
    run_program,
    summarize_runs,
    table,
    take_turns,
    with_names,
    write_results,
    write_rows,
)
from benchmarks.load import describe_machine, machine
from benchmarks.peers import load_pipeline

PROGRAM = "bertkit"
WARM_UP = 20  # sentences that are answered first, and not measured
Predict = Callable[[Any], list[str]]


def load_run(run: str, package: str) -> Predict:
    """Load a run in the dtype that bertkit chooses."""
    import bertkit

    model = bertkit.load(run)
    return lambda texts: [record["prediction"] for record in model.predict(texts)]


def load_package(run: str, package: str) -> Predict:
    """Load the exported model of a package."""
    import bertkit

    model = bertkit.load(f"{package}/model")
    return lambda texts: [record["prediction"] for record in model.predict(texts)]


def load_peer(dtype: str, batch_size: int, run: str, package: str) -> Predict:
    """Load the pipeline of transformers."""
    classify = load_pipeline(run, dtype, batch_size)
    return lambda texts: [answer["label"] for answer in classify(texts)]


Sides = dict[str, Callable[[str, str], Predict]]
LABELERS: Sides = {
    "pipeline": partial(load_peer, "auto", 1),
    "pipeline, batch_size=32": partial(load_peer, "auto", 32),
}
LOADED: Sides = {
    "bertkit.load": load_run,
    "package": load_package,
    "pipeline, fp32": partial(load_peer, "float32", 32),
    "pipeline, bf16": partial(load_peer, "bfloat16", 32),
}


def answer(side: str, run: str, package: str, file: str, single: str) -> Report:
    """Answer with one side; return the seconds of each single sentence and of all, and what it predicts."""
    predict, texts = {**LABELERS, **LOADED}[side](run, package), [row["sentence"] for row in read_lines(Path(file))]
    latencies = []
    if int(single):
        for text in texts[:WARM_UP]:
            predict(text)
    for text in texts[: int(single)]:
        began = time.perf_counter()
        predict(text)
        latencies.append(time.perf_counter() - began)
    began = time.perf_counter()
    predicted = predict(texts)
    return {"latencies": latencies, "all_seconds": time.perf_counter() - began, "predicted": predicted}


def measure(side: str, run: Path, package: Path, rows: Path, single: int, threads: int) -> Report:
    """Run one side as a program."""
    if side == PROGRAM:
        output = rows.with_name("predicted.jsonl")
        output.unlink(missing_ok=True)
        ran = run_program("bertkit", "predict", run, rows, "--output", output, "--json", threads=threads)
        return {**ran, "predicted": [record["prediction"] for record in read_lines(output)]}
    ran = run_program("benchmarks.prediction", side, run, package, rows, single, threads=threads)
    return {**ran, **ran.pop("printed")}


def summarize_loaded(runs: Sequence[Report], foreign: float) -> Report:
    """Compute the medians of the clean rounds of a side that has its model in memory."""
    clean = choose_clean(runs, foreign)
    milliseconds = [sorted(1000 * seconds for seconds in run["latencies"]) for run in clean]
    return {
        "median_ms": round(statistics.median(statistics.median(run) for run in milliseconds), 3),
        "p95_ms": round(statistics.median(run[math.ceil(0.95 * len(run)) - 1] for run in milliseconds), 3),
        "single_per_second": round(statistics.median(1000 * len(run) / sum(run) for run in milliseconds), 1),
        "rows_per_second": round(statistics.median(len(run["predicted"]) / run["all_seconds"] for run in clean), 1),
        "memory_mb": max(run["memory_mb"] for run in clean),
        "foreign": [run["foreign"] for run in runs],
    }


def compare(run: Path, rows: Path, asked: argparse.Namespace) -> tuple[Report, Report]:
    """Let all sides take turns; return the reports of whole programs and of models in memory."""
    package = rows.with_name("package")
    run_bertkit("package", run, "--output", package, threads=asked.threads)
    sides = {side: partial(measure, side, run, package, rows, 0, asked.threads) for side in (PROGRAM, *LABELERS)}
    sides |= {side: partial(measure, side, run, package, rows, asked.single, asked.threads) for side in LOADED}
    runs = take_turns(sides, asked.rounds)
    expected = runs[PROGRAM][-1]["predicted"]

    def agreement(side: str) -> Report:
        equal = map(str.__eq__, runs[side][-1]["predicted"], expected)
        return {"agreement": round(sum(equal) / len(expected), 5)}

    facts = {"rows": len(expected), "machine": machine(asked.threads)}
    programs = {side: summarize_runs(runs[side], asked.foreign) | agreement(side) for side in (PROGRAM, *LABELERS)}
    loaded = {side: summarize_loaded(runs[side], asked.foreign) | agreement(side) for side in LOADED}
    return {**facts, "engines": programs}, {**facts, "single": asked.single, "sides": loaded}


def inference_part(reports: Sequence[Report]) -> str:
    """Build a table of the time that it takes to label sentences."""
    [report] = reports
    ours = report["engines"][PROGRAM]["seconds"]
    columns = {
        "engine": "{name}",
        "seconds, whole program": "{seconds:.1f}",
        "speedup of bertkit": lambda each: ratio(each["seconds"], ours),
        "MB": "{memory_mb:,}",
        "same labels": "{agreement:.2%}",
    }
    return f"{report['rows']:,} sentences of SST-2.\n\n" + table(columns, with_names(report["engines"]))


def in_python_part(reports: Sequence[Report]) -> str:
    """Build a table with a row per side."""
    [report] = reports
    columns = {
        "engine": "{name}",
        "ms, one text: median": "{median_ms:.2f}",
        "p95": "{p95_ms:.2f}",
        "texts/s, all in one call": "{rows_per_second:,.0f}",
        "MB": "{memory_mb:,}",
        "same labels": "{agreement:.2%}",
    }
    others = statistics.median(value for side in report["sides"].values() for value in side["foreign"])
    told = f"{report['single']:,} sentences of SST-2 one at a time, and {report['rows']:,} in one call. "
    told += f"{describe_machine(report['machine'])} Other programs used {others:.1f} cores during the runs."
    return f"{told}\n\n{table(columns, with_names(report['sides']))}"


def main() -> None:
    if sys.argv[1] in {**LABELERS, **LOADED}:
        print(json.dumps(answer(*sys.argv[1:])))
        return
    own = {"run": (Path, "of the recipe sst2"), "rounds": 3, "single": 1000, "rows": 10_000}
    asked = read_options(__doc__, "model? data threads foreign output", **own)
    case = make_case("sst2", asked.model or "", asked.data, limit=2000, epochs=1)
    with tempfile.TemporaryDirectory() as name:
        rows, run = Path(name, "rows.jsonl"), asked.run or Path(name, "run")
        write_rows(read_columns(Path(case.data, "train.parquet"), "sentence")[: asked.rows], rows)
        if not asked.run:
            run_bertkit("finetune", "sst2", *case.options(), "--output", run, threads=asked.threads)
        programs, loaded = compare(run.resolve(), rows, asked)
    write_results(programs, asked.output / "inference.json")
    write_results(loaded, asked.output / "in_python.json")
    print(f"{inference_part([programs])}\n\n{in_python_part([loaded])}")


if __name__ == "__main__":
    main()
