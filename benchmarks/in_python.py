"""A model that a program keeps in memory: `bertkit.load`, a package without torch, and the pipeline of transformers.

    python -m benchmarks.in_python RUN --data DIR [--threads 1] [--rounds 3] [--single 1000] [--rows 10000]

RUN classifies the sentences of SST-2, and `--data` has glue/sst2 (or sst2) in the columns of the hub. Each side is a
program of its own, and they take turns: it answers single sentences one after the other, then all in one call. Writes
benchmarks/results/in_python.json; `python -m benchmarks.report` writes the table. One side alone: `python -m
benchmarks.in_python SIDE RUN PACKAGE FILE SINGLE`.
"""

from __future__ import annotations

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

from benchmarks.cases import find_folder
from benchmarks.harness import (
    Report,
    choose_clean,
    read_columns,
    read_lines,
    read_options,
    run_bertkit,
    run_program,
    table,
    take_turns,
    with_names,
    write_results,
    write_rows,
)
from benchmarks.load import machine

FILE = "in_python.json"
WARM_UP = 20  # sentences that are answered first, and not measured
Predict = Callable[[Any], list[str]]


def load_bertkit(run: str, package: str) -> Predict:
    """Load a run in the dtype that bertkit chooses."""
    import bertkit

    model = bertkit.load(run)
    return lambda texts: [record["prediction"] for record in model.predict(texts)]


def load_package(run: str, package: str) -> Predict:
    """Load a package, as its README shows it."""
    sys.path.insert(0, package)
    model = __import__("packaged").Model()
    return lambda texts: [record["prediction"] for record in model.predict(texts)]


def load_pipeline(dtype: str, run: str, package: str) -> Predict:
    """Load the pipeline; in one call, it gets batches of 32."""
    import torch
    from transformers import pipeline

    classify = pipeline("text-classification", model=run, dtype=getattr(torch, dtype), batch_size=32)
    return lambda texts: [answer["label"] for answer in classify(texts)]


SIDES: dict[str, Callable[[str, str], Predict]] = {
    "bertkit.load": load_bertkit,
    "package": load_package,
    "pipeline, fp32": partial(load_pipeline, "float32"),
    "pipeline, bf16": partial(load_pipeline, "bfloat16"),
}


def answer(side: str, run: str, package: str, file: str, single: str) -> Report:
    """Answer with one side; return the seconds of each single sentence and of all, and what it predicts."""
    texts = [row["sentence"] for row in read_lines(Path(file))]
    predict = SIDES[side](run, package)
    for text in texts[:WARM_UP]:
        predict(text)
    latencies = []
    for text in texts[: int(single)]:
        began = time.perf_counter()
        predict(text)
        latencies.append(time.perf_counter() - began)
    began = time.perf_counter()
    predicted = predict(texts)
    return {"latencies": latencies, "all_seconds": time.perf_counter() - began, "predicted": predicted}


def measure(side: str, *words: object, threads: int) -> Report:
    """Run one side as a program."""
    ran = run_program("benchmarks.in_python", side, *words, threads=threads)
    return {**ran, **ran.pop("printed")}


def summarize(runs: Sequence[Report], expected: Sequence[str], foreign: float) -> Report:
    """Compute the medians of a side's clean rounds, and the share of its labels that `bertkit predict` gives too."""
    clean = choose_clean(runs, foreign)
    milliseconds = [sorted(1000 * seconds for seconds in run["latencies"]) for run in clean]
    return {
        "median_ms": round(statistics.median(statistics.median(run) for run in milliseconds), 3),
        "p95_ms": round(statistics.median(run[math.ceil(0.95 * len(run)) - 1] for run in milliseconds), 3),
        "single_per_second": round(statistics.median(1000 * len(run) / sum(run) for run in milliseconds), 1),
        "rows_per_second": round(statistics.median(len(expected) / run["all_seconds"] for run in clean), 1),
        "memory_mb": max(run["memory_mb"] for run in clean),
        "agreement": sum(map(str.__eq__, runs[-1]["predicted"], expected)) / len(expected),
        "foreign": [run["foreign"] for run in runs],
    }


def in_python_part(reports: Sequence[Report]) -> str:
    """Build a table with a row per side."""
    [report] = reports
    columns = {
        "side": "{name}",
        "ms, one text: median": "{median_ms:.2f}",
        "p95": "{p95_ms:.2f}",
        "texts/s, one at a time": "{single_per_second:,.0f}",
        "texts/s, all in one call": "{rows_per_second:,.0f}",
        "MB": "{memory_mb:,}",
        "same labels": "{agreement:.2%}",
    }
    facts = report["machine"]
    others = statistics.median(value for side in report["sides"].values() for value in side["foreign"])
    told = f"{report['single']:,} sentences of SST-2 one at a time, and {report['rows']:,} in one call. {facts['cpu']}"
    told += f", threads: {facts['threads']}, {facts['date']}. Other programs used {others:.1f} cores meanwhile."
    return f"{told}\n\n{table(columns, with_names(report['sides']))}"


def main() -> None:
    if sys.argv[1] in SIDES:
        print(json.dumps(answer(*sys.argv[1:])))
        return
    own = {"rounds": 3, "single": 1000, "rows": 10_000}
    asked = read_options(__doc__, "run data threads foreign output", **own)
    sentences = read_columns(find_folder(asked.data, "sst2") / "train.parquet", "sentence")[: asked.rows]
    with tempfile.TemporaryDirectory() as name:
        rows, package, output = (Path(name, part) for part in ("rows.jsonl", "package", "predicted.jsonl"))
        write_rows(sentences, rows)
        run_bertkit("package", asked.run, "--output", package, "--name", "packaged", threads=asked.threads)
        run_bertkit("predict", asked.run, rows, "--output", output, threads=asked.threads)
        expected = [record["prediction"] for record in read_lines(output)]
        words = (Path(asked.run).resolve(), package, rows, asked.single)
        sides = {side: partial(measure, side, *words, threads=asked.threads) for side in SIDES}
        runs = take_turns(sides, asked.rounds)
    report = {
        "single": asked.single,
        "rows": len(expected),
        "machine": machine(asked.threads),
        "sides": {side: summarize(done, expected, asked.foreign) for side, done in runs.items()},
    }
    write_results(report, asked.output / FILE)
    print(in_python_part([report]))


if __name__ == "__main__":
    main()
