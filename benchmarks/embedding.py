"""Vectors of many texts: `bertkit.Embedder` beside sentence-transformers and ONNX Runtime with the same model.

    python -m benchmarks.embedding --model DIR --data DIR [--rows 10000]

Every engine is a program of its own, loads the model once, and takes turns with the others. Vectors are compared with
those of sentence-transformers at its defaults. Writes benchmarks/results/embedding-SET-ROWS.json. The engines of ONNX
Runtime are left out where `onnxruntime` and `onnx` are not installed. An engine is `bertkit PRECISION`,
`sentence-transformers` (its defaults), `sentence-transformers PRECISION` (the fastest of several batch sizes), or
`onnxruntime fp32` or `int8`, as bertkit exports. `bertkit@FOLDER PRECISION` is bertkit of another checkout. One alone:
`python -m benchmarks.embedding ENGINE CASE.json FOLDER`, which embeds the texts each time that it is told to, and
writes the vectors to FOLDER/vectors.npy.
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

from benchmarks.cases import Written, make_case
from benchmarks.engines import Gate
from benchmarks.harness import (
    Report,
    ratio,
    read_columns,
    read_options,
    say,
    summarize_runs,
    table,
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
TRIED = 512  # texts that each batch size is tried with, all over the file

Encode = Callable[[Sequence[str]], Any]


@dataclass(frozen=True)
class Texts(Written):
    """What all engines embed."""

    model: str
    texts: list[str]
    threads: int


# --- The engines ---


def load_sentence_transformers(model: str, precision: str, texts: Sequence[str]) -> tuple[Encode, int]:
    """Load sentence-transformers, and find its fastest batch size; without a precision, leave it at its defaults."""
    import torch
    from sentence_transformers import SentenceTransformer

    options = {"dtype": torch.bfloat16} if precision == "bf16" else {}
    encoder = SentenceTransformer(model, device="cpu", model_kwargs=options, local_files_only=True)
    if not precision:
        return encoder.encode, 32

    def seconds(size: int) -> float:
        start = time.process_time()
        encoder.encode(tried, batch_size=size)
        return time.process_time() - start

    tried = texts[:: max(1, len(texts) // TRIED)]
    size = min(BATCH_SIZES, key=lambda size: min(seconds(size) for _ in range(3)))
    return lambda texts: encoder.encode(texts, batch_size=size), size


def load_exported(case: Texts, precision: str, folder: Path) -> Encode:
    """Export the encoder as `bertkit export` and `quantize` do, and run it under ONNX Runtime."""
    from bertkit.vectors.embedder import Embedder
    from bertkit.workflows import export

    rows, exported = folder / "rows.jsonl", folder / "exported"
    write_rows(({"anchor": text, "positive": text} for text in case.texts[:256]), rows)
    export.MIN_COSINE = 0.0  # The benchmark measures the cosines.
    export.export(case.model, exported, precision=precision, recipe="similarity-pairs", data=str(rows), margin=0.99)
    return Embedder(str(exported)).encode


def run_engine(name: str, file: str, folder: str) -> None:
    """Embed the texts each time that the coordinator says so."""
    import numpy as np

    case, (engine, _, precision) = Texts.read(file), name.partition(" ")
    gate, size = Gate(), None
    if engine == "bertkit":
        from bertkit.vectors.embedder import Embedder

        encode = Embedder(case.model, precision=precision).encode
    elif engine == "onnxruntime":
        encode = load_exported(case, precision, Path(folder))
    else:
        encode, size = load_sentence_transformers(case.model, precision, case.texts)
    encode(case.texts[:64])  # what is prepared with the first batch

    def embed() -> Report:
        vectors = encode(case.texts)
        np.save(Path(folder) / "vectors.npy", np.asarray(vectors, dtype=np.float32))
        return {"batch_size": size}

    gate.answer(embed)


# --- The comparison ---


def read_texts(data: str, name: str, rows: int) -> list[str]:
    """Read the first distinct texts of a data set, over and over again where it has fewer."""
    split, column = COLUMNS[name]
    distinct = list(dict.fromkeys(row[column] for row in read_columns(Path(data, f"{split}.parquet"), column)))
    return (distinct * (rows // len(distinct) + 1))[:rows]


def compare(asked: argparse.Namespace, folder: Path) -> Report:
    """Let the engines take turns, and return what each took, and how near its vectors are to the reference."""
    case = make_case(asked.set, asked.model, asked.data)
    texts = Texts(case.model, read_texts(case.data, asked.set, asked.rows), asked.threads)
    engines: dict[str, Engine] = {}
    with ExitStack() as stack:
        for name in asked.engines.split(","):
            if name.startswith("onnxruntime") and not (find_spec("onnxruntime") and find_spec("onnx")):
                say(f"  {name} is left out: pip install onnxruntime onnx")
                continue
            say(f"  starting {name}")
            engine = Engine(name, texts, folder / str(len(engines)), texts.threads, "benchmarks.embedding")
            engines[name] = stack.enter_context(engine)
        rounds = take_turns({name: partial(engine.run, 1) for name, engine in engines.items()}, asked.rounds)
    tokens = count_tokens(texts)
    return {
        "set": asked.set,
        "rows": len(texts.texts),
        "tokens": tokens,
        "model": Path(texts.model).name,
        "machine": machine(texts.threads),
        "engines": {
            name: summarize(done, asked.rows, tokens, asked.foreign) | nearness(engines[name], engines.get(REFERENCE))
            for name, done in rounds.items()
        },
    }


def count_tokens(texts: Texts) -> int:
    """Count the tokens that the model reads."""
    from bertkit.vectors.embedder import Embedder

    encoded = Embedder(texts.model).tokenizer(texts.texts, truncation=True, return_attention_mask=False)
    return sum(map(len, encoded["input_ids"]))


def summarize(rounds: list[Report], texts: int, tokens: int, foreign: float) -> Report:
    """Add rates, and the least processor time, which other programs hardly change."""
    summary = summarize_runs(rounds, foreign)
    return {
        **summary,
        "texts_per_second": round(texts / summary["seconds"], 1),
        "tokens_per_second": round(tokens / summary["seconds"]),
        "cpu_seconds": round(min(each["cpu"] for each in rounds), 3),
        "batch_size": rounds[-1]["batch_size"],
    }


def nearness(engine: Engine, reference: Engine | None) -> dict[str, float]:
    """Compute the least and the mean cosine of vectors to those of the reference, and the largest difference."""
    import numpy as np

    if reference is None:
        return {}
    ours, theirs = (np.load(each.folder / "vectors.npy") for each in (engine, reference))
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    cosines = (ours * theirs).sum(axis=1, dtype=np.float64) / lengths
    return {
        "cosine_min": round(float(cosines.min()), 7),
        "cosine_mean": round(float(cosines.mean()), 7),
        "difference": float(np.abs(ours - theirs).max()),
    }


def embedding_part(reports: Sequence[Report]) -> str:
    """Build a table for each report: speed, memory, and how near vectors are to those of the reference."""
    parts = []
    for report in reports:
        engines = with_names(report["engines"])
        columns: dict[str, Any] = {
            "engine": lambda each: each["name"] + (f", batches of {each['batch_size']}" if each["batch_size"] else ""),
            "texts/s": "{texts_per_second:,.0f}",
            "speed": lambda each, first=engines[0]["seconds"]: ratio(first, each["seconds"]),
            "MB": "{memory_mb:,}",
            "lowest cosine": lambda each: f"{each['cosine_min']:.6f}" if "cosine_min" in each else "",
        }
        tokens = report["tokens"] / report["rows"]
        what = f"**{report['set']}**: {report['rows']:,} texts of {tokens:.0f} tokens on average"
        parts.append(f"{what}, {report['model']}. {describe_machine(report['machine'])}\n\n{table(columns, engines)}")
    return "\n\n".join(parts)


def main() -> None:
    if len(sys.argv) == 4 and not sys.argv[1].startswith("-"):
        run_engine(*sys.argv[1:])
    own = {"set": ("sst2", f"of {', '.join(COLUMNS)}"), "rows": (10_000, "texts to embed"), "rounds": 3}
    asked = read_options(__doc__, "model data threads foreign output", **own, engines=",".join(ENGINES))
    with tempfile.TemporaryDirectory() as folder:
        report = compare(asked, Path(folder))
    write_results(report, asked.output / f"embedding-{asked.set}-{asked.rows}.json")
    print(embedding_part([report]))


if __name__ == "__main__":
    main()
