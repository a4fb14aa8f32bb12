"""Whole programs from start to end, taking turns: `bertkit finetune` and `bertkit predict` beside their peers.

    python -m benchmarks.whole cola:1 stsb:1 predict --model DIR --data DIR [--limit 2000]

RECIPE:EPOCHS trains, scores and saves a model; nothing is cached from one run to the next. `predict` trains one
checkpoint, and labels the same file of sentences of SST-2 with it, beside the text-classification pipeline of
transformers. Writes benchmarks/results/whole-RECIPE.json and inference.json. The peer alone: `python -m
benchmarks.whole pipeline CKPT FILE OUT BATCH`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cases import Case, make_case
from benchmarks.harness import (
    Report,
    choose_clean,
    ratio,
    read_columns,
    read_lines,
    read_options,
    run_program,
    table,
    take_turns,
    with_names,
    write_results,
    write_rows,
)
from benchmarks.load import machine
from benchmarks.stages import Stages, began

ENGINES = "bertkit,hf-default,hf-dynamic,hf-tuned"
LABELERS = ("bertkit", "pipeline", "pipeline, batch_size=32")
# column -> stages of a program; bertkit and its peers import and read in different orders, so that is one column
STAGES = {
    "import, rows, tokens": ("import", "import and rows", "rows and tokens", "tokens"),
    "model": ("model",),
    "first step": ("first step",),
    "other steps": ("other steps",),
    "evaluation": ("evaluation",),
    "decoding": ("decoding",),
    "save, report, rest": ("save", "rest"),
}


def finetune(engine: str, case: Case, folder: Path, threads: int, *options: str) -> Report:
    """Train and score with one engine in an empty folder; return what it took, its scores and the parts of its time.

    Args:
        engine: `bertkit`, `bertkit:KEY=VALUE;KEY=VALUE`, or a variant of `benchmarks.peers`.
        case: what is trained.
        folder: where everything is written, also what `datasets` caches, so that a program reads and tokenizes itself.
        threads: that it computes with.
        options: for a peer, further options of `benchmarks.peers`.
    """
    folder.mkdir(parents=True)
    run = partial(run_program, threads=threads, HF_DATASETS_CACHE=str(folder / "cache"))
    name, _, changes = engine.partition(":")
    if name == "bertkit":
        more = [word for change in changes.split(";") if change for word in ("--set", change)]
        parts, output = folder / "parts.json", ("--output", folder / "run", "--json")
        took = run("benchmarks.stages", parts, "finetune", case.recipe, *case.options(), *more, *output)
        scores = took.pop("printed")["results"][0]["scores"]
        return {**took, "scores": scores, "stages": json.loads(parts.read_text(encoding="utf-8"))}
    file = folder / "case.json"
    file.write_text(case.as_json(), encoding="utf-8")
    took = run("benchmarks.peers", name, file, folder / "run", *options)
    printed = took.pop("printed")
    return {**took, "scores": printed["scores"], "stages": printed["stages"]}


def label(engine: str, checkpoint: Path, rows: Path, folder: Path, threads: int) -> Report:
    """Label a file of sentences with one engine; return what it took, the parts of its time and the labels."""
    output, parts = folder / "labels.jsonl", folder / "parts.json"
    batch = engine.partition("=")[2] or "1"
    words: list[object] = ["benchmarks.whole", "pipeline", checkpoint, rows, output, batch]
    if engine == "bertkit":
        words = ["benchmarks.stages", parts, "predict", "sst2", rows, "--model", checkpoint]
        words += ["--output", output, "--json"]
    took = run_program(*words, threads=threads, HF_DATASETS_CACHE=str(folder / "cache"))
    printed = took.pop("printed")
    stages = json.loads(parts.read_text(encoding="utf-8")) if engine == "bertkit" else printed["stages"]
    return {**took, "stages": stages, "labels": [row["prediction"] for row in read_lines(output)]}


def run_pipeline(checkpoint: str, file: str, output: str, batch: str) -> None:
    """Label a file of JSON lines as the documentation of pipelines shows it; batches of one row by default."""
    stages = Stages(began())
    from transformers import pipeline

    sentences = [row["sentence"] for row in read_lines(Path(file))]
    classify = pipeline("text-classification", model=checkpoint, batch_size=int(batch))
    stages.end("model")
    answers = classify(sentences)
    stages.end("labels")
    write_rows(({"prediction": each["label"]} for each in answers), Path(output))
    print(json.dumps({"stages": stages.parts()}), flush=True)


def summarize(runs: list[Report], foreign: float) -> Report:
    """Compute medians of an engine's clean runs (of all where none is clean), and the parts of the median run."""
    used = sorted(choose_clean(runs, foreign), key=lambda run: run["seconds"])
    return {
        "seconds": statistics.median(run["seconds"] for run in used),
        "least_seconds": used[0]["seconds"],
        "memory_mb": max(run["memory_mb"] for run in used),
        "stages": used[(len(used) - 1) // 2]["stages"],
        "clean_runs": sum(run["foreign"] <= foreign for run in runs),
        "runs": [{"seconds": run["seconds"], "foreign": run["foreign"]} for run in runs],
    }


def summarize_labels(runs: list[Report], ours: list[str], foreign: float) -> Report:
    """Add the median seconds without start and loading, rates, and the share of labels that are bertkit's."""
    summary, theirs = summarize(runs, foreign), runs[-1]["labels"]
    work = statistics.median(
        run["stages"].get("labels") or sum(run["stages"].get(name, 0) for name in ("tokens", "evaluation", "decoding"))
        for run in choose_clean(runs, foreign)
    )
    return {
        **{name: value for name, value in summary.items() if name != "stages"},
        "rows_per_second": round(len(theirs) / summary["seconds"], 1),
        "work_seconds": round(work, 3),
        "work_rows_per_second": round(len(theirs) / work, 1),
        "agreement": round(sum(one == other for one, other in zip(ours, theirs, strict=True)) / len(ours), 5),
    }


def measure_training(item: str, asked: argparse.Namespace) -> Report:
    """Let the engines train a recipe in turns."""
    task, _, epochs = item.partition(":")
    case = make_case(task, asked.model, asked.data, limit=asked.limit, epochs=float(epochs or 1))

    def train(engine: str) -> Report:
        with tempfile.TemporaryDirectory() as folder:
            return finetune(engine, case, Path(folder, "one"), asked.threads)

    runs = take_turns({engine: partial(train, engine) for engine in asked.engines.split(",")}, asked.rounds)
    engines = {name: {**summarize(done, asked.foreign), "scores": done[0]["scores"]} for name, done in runs.items()}
    settings = {"epochs": case.epochs, "limit": case.limit}
    return {"task": task, "settings": settings, "machine": machine(asked.threads), "engines": engines}


def measure_labels(asked: argparse.Namespace) -> Report:
    """Train a checkpoint, and let the engines label sentences with it in turns."""
    case = make_case("sst2", asked.model, asked.data, limit=asked.limit or 2000, epochs=1.0)
    sentences = read_columns(Path(case.data, "train.parquet"), "sentence")[: asked.rows]
    with tempfile.TemporaryDirectory() as name:
        rows, trained = Path(name, "rows.jsonl"), Path(name, "trained")
        write_rows(sentences, rows)
        finetune("bertkit", case, trained, asked.threads)

        def label_rows(engine: str) -> Report:
            with tempfile.TemporaryDirectory() as folder:
                return label(engine, trained / "run", rows, Path(folder), asked.threads)

        runs = take_turns({engine: partial(label_rows, engine) for engine in LABELERS}, asked.rounds)
    ours = runs["bertkit"][-1]["labels"]
    engines = {name: summarize_labels(done, ours, asked.foreign) for name, done in runs.items()}
    return {"rows": len(sentences), "machine": machine(asked.threads), "engines": engines}


def whole_part(reports: Sequence[Report]) -> str:
    """Build a table of the seconds of whole programs and of their stages."""
    parts = []
    for report in reports:
        settings, ours = report["settings"], report["engines"]["bertkit"]["seconds"]
        columns: dict[str, Any] = {
            "engine": "{name}",
            "seconds": "{seconds:.1f}",
            "relative to bertkit": lambda each, ours=ours: f"{each['seconds'] / ours:.2f}x",
            "MB": "{memory_mb:,}",
        }
        for title, names in STAGES.items():
            columns[title] = lambda each, names=names: f"{sum(each['stages'].get(name, 0) for name in names):.1f}"
        limit = f", first {settings['limit']:,} rows" if settings["limit"] else ""
        epochs = f"{settings['epochs']:g} epoch{'' if settings['epochs'] == 1 else 's'}"
        title = f"**{report['task']}**: {epochs}{limit}. The columns after MB are seconds per stage.\n\n"
        parts.append(title + table(columns, with_names(report["engines"])))
    return "\n\n".join(parts)


def inference_part(reports: Sequence[Report]) -> str:
    """Build a table of the time that it takes to label sentences."""
    [report] = reports
    ours = report["engines"]["bertkit"]
    columns = {
        "engine": "{name}",
        "seconds, whole program": "{seconds:.1f}",
        "speedup of bertkit": lambda each: ratio(each["seconds"], ours["seconds"]),
        "rows/s, model loaded": "{work_rows_per_second:,.0f}",
        "speedup of bertkit ": lambda each: ratio(each["work_seconds"], ours["work_seconds"]),
        "MB": "{memory_mb:,}",
        "same labels": "{agreement:.2%}",
    }
    return f"{report['rows']:,} sentences of SST-2.\n\n" + table(columns, with_names(report["engines"]))


def main() -> None:
    if sys.argv[1:2] == ["pipeline"]:
        run_pipeline(*sys.argv[2:])
        return
    rows = (10_000, "sentences that `predict` labels")
    asked = read_options(
        __doc__, "items+ model data limit threads foreign output", engines=ENGINES, rounds=2, rows=rows
    )
    for item in asked.items:
        report = measure_labels(asked) if item == "predict" else measure_training(item, asked)
        file = "inference.json" if item == "predict" else f"whole-{report['task']}.json"
        write_results(report, asked.output / file)
        for name, each in report["engines"].items():
            print(f"{item:8} {name:24} {each['seconds']:8.1f} s {each['memory_mb']:6} MB", flush=True)


if __name__ == "__main__":
    main()
