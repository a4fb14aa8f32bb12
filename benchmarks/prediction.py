"""Labels of a trained model compared with the pipeline of transformers: complete programs, and models in memory.

    python -m benchmarks.prediction --model DIR --data DIR [--run RUN] [--threads 1] [--single 1000] [--rows 10000]

`--data` has glue/sst2 (or sst2) in the columns of the Hub. RUN classifies its sentences; without RUN, a run is trained
on 2,000 of them. Each engine is a program, and they take turns. `bertkit predict` and pipelines read, label and write a
file (inference.json). `bertkit.load`, the model of a package and pipelines answer single sentences, and then all
sentences in one call (in_python.json). `benchmarks.prediction ENGINE RUN PACKAGE FILE SINGLE` runs one engine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import make_case
from benchmarks.harness import (
    Report,
    choose_clean,
    format_ratio,
    make_table,
    read_column,
    read_lines,
    read_options,
    run_bertkit,
    run_program,
    summarize_runs,
    take_turns,
    with_names,
    write_results,
    write_rows,
)
from benchmarks.load import describe_machine, machine
from benchmarks.peers import load_pipeline

PROGRAM = "bertkit"
WARM_UP = 20  # sentences
Predict = Callable[[Any], list[str]]


def load_bertkit(name: str, run: str, package: str) -> Predict:
    """Load a run, or the exported model of a package, with bertkit."""
    import bertkit

    model = bertkit.load(run if name == "run" else f"{package}/model")
    return lambda texts: [record["prediction"] for record in model.predict(texts)]


def load_peer(dtype: str, batch_size: int, run: str, package: str) -> Predict:
    """Load the pipeline of transformers."""
    classify = load_pipeline(run, dtype, batch_size)
    return lambda texts: [answer["label"] for answer in classify(texts)]


Engines = dict[str, Callable[[str, str], Predict]]
LABELERS: Engines = {
    "pipeline": partial(load_peer, "auto", 1),
    "pipeline, batch_size=32": partial(load_peer, "auto", 32),
}
LOADED: Engines = {
    "bertkit.load": partial(load_bertkit, "run"),
    "package": partial(load_bertkit, "package"),
    "pipeline, fp32": partial(load_peer, "float32", 32),
    "pipeline, bf16": partial(load_peer, "bfloat16", 32),
}


def predict(engine: str, run: str, package: str, file: str, single: str) -> Report:
    """Predict with one engine; return the seconds of each single sentence and of all sentences, and the labels."""
    label = {**LABELERS, **LOADED}[engine](run, package)
    texts, latencies = [row["sentence"] for row in read_lines(Path(file))], []
    for text in texts[:WARM_UP] if int(single) else ():
        label(text)
    for text in texts[: int(single)]:
        start = time.perf_counter()
        label(text)
        latencies.append(time.perf_counter() - start)
    start = time.perf_counter()
    predicted = label(texts)
    return {"latencies": latencies, "all_seconds": time.perf_counter() - start, "predicted": predicted}


def measure(engine: str, run: Path, package: Path, rows: Path, single: int, threads: int) -> Report:
    """Run one engine as a program."""
    if engine == PROGRAM:
        output = rows.with_name("predicted.jsonl")
        output.unlink(missing_ok=True)
        report = run_program("bertkit", "predict", run, rows, "--output", output, "--json", threads=threads)
        return {**report, "predicted": [record["prediction"] for record in read_lines(output)]}
    report = run_program("benchmarks.prediction", engine, run, package, rows, single, threads=threads)
    return {**report, **report.pop("printed")}


def summarize_loaded(runs: Sequence[Report], foreign: float) -> Report:
    """Compute the medians of the clean rounds of an engine that has its model in memory."""
    clean = choose_clean(runs, foreign)
    milliseconds = [1000 * np.array(run["latencies"]) for run in clean]
    p95 = (np.percentile(times, 95, method="inverted_cdf") for times in milliseconds)
    return {
        "median_ms": round(statistics.median(float(np.median(times)) for times in milliseconds), 3),
        "p95_ms": round(float(statistics.median(p95)), 3),
        "single_per_second": round(statistics.median(1000 / float(times.mean()) for times in milliseconds), 1),
        "rows_per_second": round(statistics.median(len(run["predicted"]) / run["all_seconds"] for run in clean), 1),
        "memory_mb": max(run["memory_mb"] for run in clean),
        "foreign": [run["foreign"] for run in runs],
    }


def compare(run: Path, rows: Path, options: argparse.Namespace) -> tuple[Report, Report]:
    """Measure all engines in turns; return the reports of complete programs and of models in memory."""
    package, threads = rows.with_name("package"), options.threads
    run_bertkit("package", run, "--output", package, threads=threads)
    singles = dict.fromkeys((PROGRAM, *LABELERS), 0) | dict.fromkeys(LOADED, options.single)
    engines = {name: partial(measure, name, run, package, rows, single, threads) for name, single in singles.items()}
    runs = take_turns(engines, options.rounds)
    expected = runs[PROGRAM][-1]["predicted"]

    def agreement(engine: str) -> Report:
        equal = map(str.__eq__, runs[engine][-1]["predicted"], expected)
        return {"agreement": round(sum(equal) / len(expected), 5)}

    facts = {"rows": len(expected), "machine": machine(threads)}
    programs = {name: summarize_runs(runs[name], options.foreign) | agreement(name) for name in (PROGRAM, *LABELERS)}
    loaded = {name: summarize_loaded(runs[name], options.foreign) | agreement(name) for name in LOADED}
    return {**facts, "engines": programs}, {**facts, "single": options.single, "sides": loaded}


def inference_part(reports: Sequence[Report]) -> str:
    """Build a table of the time of complete programs."""
    [report] = reports
    ours = report["engines"][PROGRAM]["seconds"]
    columns = {
        "engine": "{name}",
        "seconds, whole program": "{seconds:.1f}",
        "speedup of bertkit": lambda row: format_ratio(row["seconds"], ours),
        "MB": "{memory_mb:,}",
        "same labels": "{agreement:.2%}",
    }
    return f"{report['rows']:,} sentences of SST-2.\n\n" + make_table(columns, with_names(report["engines"]))


def in_python_part(reports: Sequence[Report]) -> str:
    """Build a table of the models in memory."""
    [report] = reports
    columns = {
        "engine": "{name}",
        "ms, one text: median": "{median_ms:.2f}",
        "p95": "{p95_ms:.2f}",
        "texts/s, all in one call": "{rows_per_second:,.0f}",
        "MB": "{memory_mb:,}",
        "same labels": "{agreement:.2%}",
    }
    cores = statistics.median(value for engine in report["sides"].values() for value in engine["foreign"])
    title = f"{report['single']:,} sentences of SST-2 one at a time, and {report['rows']:,} in one call. "
    title += f"{describe_machine(report['machine'])} Other programs used {cores:.1f} cores during the runs."
    return f"{title}\n\n{make_table(columns, with_names(report['sides']))}"


def main() -> None:
    if sys.argv[1:] and sys.argv[1] in {**LABELERS, **LOADED}:
        print(json.dumps(predict(*sys.argv[1:])))
        return
    settings = {"run": (Path, "a run of the recipe sst2"), "rounds": 3, "single": 1000, "rows": 10_000}
    options = read_options(__doc__, "model? data threads foreign output", **settings)
    case = make_case("sst2", options.model or "", options.data, limit=2000, epochs=1)
    with tempfile.TemporaryDirectory() as name:
        rows, run = Path(name, "rows.jsonl"), options.run or Path(name, "run")
        sentences = read_column(Path(case.data, "train.parquet"), "sentence")[: options.rows]
        write_rows(({"sentence": sentence} for sentence in sentences), rows)
        if not options.run:
            run_bertkit("finetune", "sst2", *case.options(), "--output", run, threads=options.threads)
        programs, loaded = compare(run.resolve(), rows, options)
    write_results(programs, options.output / "inference.json")
    write_results(loaded, options.output / "in_python.json")
    print(f"{inference_part([programs])}\n\n{in_python_part([loaded])}")


if __name__ == "__main__":
    main()
