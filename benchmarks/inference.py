"""Labels of many sentences: `bertkit predict` beside the text-classification pipeline of transformers.

    python -m benchmarks.inference --model DIR --data DIR [--rows 10000]

Trains one checkpoint with bertkit, then whole programs take turns on the same file of sentences of SST-2. Writes
benchmarks/results/inference.json. The peer alone: `python -m benchmarks.inference pipeline CKPT FILE OUT BATCH`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.cases import ROOT, add_options, make_case, write_results
from benchmarks.load import machine
from benchmarks.programs import finetune, run_program
from benchmarks.stages import Stages, began
from bertkit.storage.files import split_lines

ENGINES = ("bertkit", "pipeline", "pipeline, batch_size=32")


def run_pipeline(checkpoint: str, file: str, output: str, batch: int) -> None:
    """Label a file of JSON lines as the documentation of pipelines shows it; batches of one row by default."""
    stages = Stages(began())
    from transformers import pipeline

    sentences = [json.loads(line)["sentence"] for line in split_lines(Path(file).read_text(encoding="utf-8"))]
    classify = pipeline("text-classification", model=checkpoint, batch_size=batch)
    stages.end("model")
    answers = classify(sentences)
    stages.end("labels")
    Path(output).write_text("".join(json.dumps({"prediction": each["label"]}) + "\n" for each in answers), "utf-8")
    print(json.dumps({"stages": stages.parts()}), flush=True)


def command_of(engine: str, checkpoint: Path, rows: Path, output: Path) -> list[str]:
    """Return the command of an engine."""
    if engine == "bertkit":
        files = [str(rows), "--model", str(checkpoint), "--output", str(output)]
        return ["benchmarks.stages", f"{output}.parts", "predict", "sst2", *files, "--json"]
    batch = engine.partition("=")[2] or "1"
    return ["benchmarks.inference", "pipeline", str(checkpoint), str(rows), str(output), batch]


def labels_in(file: Path) -> list[str]:
    """Read the predicted labels of a file of JSON lines."""
    return [json.loads(line)["prediction"] for line in split_lines(file.read_text(encoding="utf-8"))]


def write_sentences(parquet: Path, rows: int, file: Path) -> int:
    """Write the first sentences of a Parquet file as JSON lines, and return how many there are."""
    import pyarrow.parquet

    sentences = pyarrow.parquet.read_table(parquet, columns=["sentence"])["sentence"].to_pylist()[:rows]
    file.write_text("".join(json.dumps({"sentence": each}) + "\n" for each in sentences), encoding="utf-8")
    return len(sentences)


def compare(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train a checkpoint, let the engines take turns, and return medians of the clean rounds."""
    case = make_case("sst2", arguments.model, arguments.data, limit=arguments.limit or 2000, epochs=1.0)
    finetune("bertkit", case, folder / "trained", arguments.threads)
    checkpoint, rows = folder / "trained" / "run", folder / "rows.jsonl"
    number = write_sentences(Path(case.data) / "train.parquet", arguments.rows, rows)
    runs: dict[str, list[dict[str, Any]]] = {engine: [] for engine in ENGINES}
    labels: dict[str, list[str]] = {}
    for turn in range(arguments.rounds):
        for engine, done in runs.items():
            output = folder / "labels.jsonl"
            output.unlink(missing_ok=True)
            measured = run_program(command_of(engine, checkpoint, rows, output), arguments.threads, folder / "cache")
            printed, parts = measured.pop("printed"), Path(f"{output}.parts")
            stages = json.loads(parts.read_text()) if engine == "bertkit" else printed["stages"]
            done.append({**measured, "stages": stages})
            labels[engine] = labels_in(output)
            print(f"round {turn + 1} {engine}: {measured['seconds']:.1f} s", file=sys.stderr, flush=True)
    return {
        "rows": number,
        "machine": machine(arguments.threads),
        "engines": {
            engine: summarize(done, labels["bertkit"], labels[engine], arguments.foreign)
            for engine, done in runs.items()
        },
    }


def summarize(runs: list[dict[str, Any]], ours: list[str], theirs: list[str], foreign: float) -> dict[str, Any]:
    """Compute the median seconds of clean runs, whole and without start and loading, and the share of equal labels."""
    clean = [run for run in runs if run["foreign"] <= foreign]
    used = clean or runs
    whole = statistics.median(run["seconds"] for run in used)
    work = statistics.median(
        run["stages"].get("labels") or sum(run["stages"].get(name, 0) for name in ("tokens", "evaluation", "decoding"))
        for run in used
    )
    return {
        "seconds": whole,
        "rows_per_second": round(len(theirs) / whole, 1),
        "work_seconds": round(work, 3),
        "work_rows_per_second": round(len(theirs) / work, 1),
        "memory_mb": max(run["memory_mb"] for run in used),
        "agreement": round(sum(one == other for one, other in zip(ours, theirs, strict=True)) / len(ours), 5),
        "clean_runs": len(clean),
        "runs": [{"seconds": run["seconds"], "foreign": run["foreign"]} for run in runs],
    }


def main() -> None:
    if sys.argv[1:2] == ["pipeline"]:
        run_pipeline(*sys.argv[2:5], int(sys.argv[5]))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser)
    parser.add_argument("--rows", type=int, default=10_000, help="sentences to label")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--foreign", type=float, default=0.06, help="cores that others may use in a clean run")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = compare(arguments, Path(folder))
    write_results(report, arguments.output / "inference.json")
    for engine, each in report["engines"].items():
        print(f"{engine:26} {each['seconds']:7.1f} s {each['work_rows_per_second']:7.0f} rows/s at work", flush=True)


if __name__ == "__main__":
    main()
