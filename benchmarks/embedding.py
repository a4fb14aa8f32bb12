"""Vectors of many texts: `bertkit.Embedder` compared with sentence-transformers and ONNX Runtime on the same model.

    python -m benchmarks.embedding --model DIR --data DIR [--rows 10000]

Every engine is a program that loads the model once and takes turns with the others: `bertkit PRECISION`,
`bertkit@FOLDER PRECISION` (another checkout), `sentence-transformers` (its defaults, the reference of the cosines),
`sentence-transformers PRECISION` (the fastest of several batch sizes), and `onnxruntime fp32` or `int8`, as bertkit
exports. ONNX Runtime needs the packages onnxruntime and onnx. Writes benchmarks/results/embedding-SET-ROWS.json.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import JsonFile, make_case
from benchmarks.engines import Gate
from benchmarks.harness import (
    Report,
    format_ratio,
    log,
    make_table,
    read_column,
    read_options,
    summarize_runs,
    take_turns,
    with_names,
    write_results,
    write_rows,
)
from benchmarks.load import describe_machine, machine
from benchmarks.speed import Engine

REFERENCE = "sentence-transformers"
ENGINES = (
    REFERENCE,
    "sentence-transformers fp32",
    "sentence-transformers bf16",
    "onnxruntime fp32",
    "onnxruntime int8",
    "bertkit fp32",
    "bertkit bf16",
)
COLUMNS = {"sst2": ("train", "sentence"), "stsb": ("train", "sentence1"), "squad": ("validation", "context")}
BATCH_SIZES = (16, 32, 64, 128, 256)
TRIAL_TEXTS = 512  # per batch size

Encode = Callable[[Sequence[str]], Any]


@dataclass(frozen=True)
class Texts(JsonFile):
    """Texts that all engines embed, and the model."""

    model: str
    texts: list[str]
    threads: int


# --- The engines ---


def load_sentence_transformers(model: str, precision: str, texts: Sequence[str]) -> tuple[Encode, int]:
    """Load sentence-transformers and find its fastest batch size; without a precision, use its defaults."""
    import torch
    from sentence_transformers import SentenceTransformer

    options = {"dtype": torch.bfloat16} if precision == "bf16" else {}
    encoder = SentenceTransformer(model, device="cpu", model_kwargs=options, local_files_only=True)
    if not precision:
        return encoder.encode, 32

    def seconds(size: int) -> float:
        start = time.process_time()
        encoder.encode(trial, batch_size=size)
        return time.process_time() - start

    trial = texts[:: max(1, len(texts) // TRIAL_TEXTS)]
    size = min(BATCH_SIZES, key=lambda size: min(seconds(size) for _ in range(3)))
    return lambda texts: encoder.encode(texts, batch_size=size), size


def load_exported(case: Texts, precision: str, folder: Path) -> Encode:
    """Export the encoder as `bertkit export` and `quantize` do, and load it into ONNX Runtime."""
    from bertkit.vectors.embedder import Embedder
    from bertkit.workflows import export

    rows, exported = folder / "rows.jsonl", folder / "exported"
    write_rows(({"anchor": text, "positive": text} for text in case.texts[:256]), rows)
    export.MIN_COSINE = 0.0  # The benchmark measures the cosines.
    export.export(case.model, exported, precision=precision, recipe="similarity-pairs", data=str(rows), margin=0.99)
    return Embedder(str(exported)).encode


def run_engine(name: str, file: str, folder: str) -> None:
    """Embed the texts of a case whenever it is requested, and write FOLDER/vectors.npy."""
    case, (engine, _, precision) = Texts.read(file), name.partition(" ")
    gate, size = Gate(), None
    if engine == "bertkit":
        from bertkit.vectors.embedder import Embedder

        encode = Embedder(case.model, precision=precision).encode
    elif engine == "onnxruntime":
        encode = load_exported(case, precision, Path(folder))
    else:
        encode, size = load_sentence_transformers(case.model, precision, case.texts)
    encode(case.texts[:64])  # warm-up

    def embed() -> Report:
        np.save(Path(folder) / "vectors.npy", np.asarray(encode(case.texts), dtype=np.float32))
        return {"batch_size": size}

    gate.answer(embed)


# --- The comparison ---


def read_texts(data: str, name: str, rows: int) -> list[str]:
    """Read the first distinct texts of a dataset, and repeat them if it has fewer."""
    split, column = COLUMNS[name]
    distinct = list(dict.fromkeys(read_column(Path(data, f"{split}.parquet"), column)))
    return (distinct * (rows // len(distinct) + 1))[:rows]


def compare(options: argparse.Namespace, folder: Path) -> Report:
    """Measure the engines in turns, and compare their vectors with the reference."""
    from bertkit.vectors.embedder import Embedder

    case = make_case(options.set, options.model, options.data)
    texts = Texts(case.model, read_texts(case.data, options.set, options.rows), options.threads)
    engines: dict[str, Engine] = {}
    with ExitStack() as stack:
        for name in options.engines.split(","):
            if name.startswith("onnxruntime") and not (find_spec("onnxruntime") and find_spec("onnx")):
                log(f"  {name} is skipped - pip install onnxruntime onnx")
                continue
            engine = Engine(name, texts, folder / str(len(engines)), texts.threads, "benchmarks.embedding")
            engines[name] = stack.enter_context(engine)
        rounds = take_turns({name: partial(engine.run, 1) for name, engine in engines.items()}, options.rounds)
    encoded = Embedder(texts.model).tokenizer(texts.texts, truncation=True, return_attention_mask=False)
    tokens = sum(map(len, encoded["input_ids"]))
    reports = {}
    for name, runs in rounds.items():
        summary = summarize_runs(runs, options.foreign)
        summary["texts_per_second"] = round(options.rows / summary["seconds"], 1)
        summary["tokens_per_second"] = round(tokens / summary["seconds"])
        summary["cpu_seconds"] = round(min(run["cpu"] for run in runs), 3)
        summary["batch_size"] = runs[-1]["batch_size"]
        reports[name] = summary | compute_cosines(engines[name], engines.get(REFERENCE))
    facts = {"set": options.set, "rows": len(texts.texts), "tokens": tokens, "model": Path(texts.model).name}
    return {**facts, "machine": machine(texts.threads), "engines": reports}


def compute_cosines(engine: Engine, reference: Engine | None) -> dict[str, float]:
    """Compute the minimum and mean cosine of vectors to the reference, and the largest difference of a value."""
    if reference is None:
        return {}
    ours, theirs = (np.load(folder / "vectors.npy") for folder in (engine.folder, reference.folder))
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    cosines = (ours * theirs).sum(axis=1, dtype=np.float64) / lengths
    means = {"cosine_min": round(float(cosines.min()), 7), "cosine_mean": round(float(cosines.mean()), 7)}
    return {**means, "difference": float(np.abs(ours - theirs).max())}


def embedding_part(reports: Sequence[Report]) -> str:
    """Build a table per report: speed, memory, and the lowest cosine to the vectors of the reference."""
    parts = []
    for report in reports:
        engines = with_names(report["engines"])
        columns: dict[str, Any] = {
            "engine": lambda row: row["name"] + (f", batches of {row['batch_size']}" if row["batch_size"] else ""),
            "texts/s": "{texts_per_second:,.0f}",
            "speed": lambda row, first=engines[0]["seconds"]: format_ratio(first, row["seconds"]),
            "MB": "{memory_mb:,}",
            "lowest cosine": lambda row: f"{row['cosine_min']:.6f}" if "cosine_min" in row else "",
        }
        tokens = report["tokens"] / report["rows"]
        title = f"**{report['set']}**: {report['rows']:,} texts of {tokens:.0f} tokens on average, {report['model']}."
        parts.append(f"{title} {describe_machine(report['machine'])}\n\n{make_table(columns, engines)}")
    return "\n\n".join(parts)


def main() -> None:
    if len(sys.argv) == 4 and not sys.argv[1].startswith("-"):
        run_engine(*sys.argv[1:])
    settings = {"set": ("sst2", f"one of {', '.join(COLUMNS)}"), "rows": (10_000, "number of texts"), "rounds": 3}
    engines = ",".join(ENGINES)
    options = read_options(__doc__, "model data threads foreign output", **settings, engines=engines)
    with tempfile.TemporaryDirectory() as folder:
        report = compare(options, Path(folder))
    write_results(report, options.output / f"embedding-{options.set}-{options.rows}.json")
    print(embedding_part([report]))


if __name__ == "__main__":
    main()
