"""Vectors of many texts: `bertkit.Embedder` beside sentence-transformers and ONNX Runtime with the same model.

    python -m benchmarks.embedding --model DIR --data DIR [--rows 10000]

Every engine is a program of its own, loads the model once, and takes turns with the others. Vectors are compared with
those of sentence-transformers at its defaults. Writes benchmarks/results/embedding-SET-ROWS.json. The engines of ONNX
Runtime are left out where `onnxruntime` and `onnx` are not installed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.cases import ROOT, add_options, make_case, write_results
from benchmarks.load import machine
from benchmarks.parts import Report, ratio, table
from benchmarks.speed import Engine, Round, say

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


@dataclass(frozen=True)
class Texts:
    """What all engines embed."""

    model: str
    texts: list[str]
    threads: int

    def as_json(self) -> str:
        """Return the content of the file that an engine reads."""
        return json.dumps(asdict(self))


def read_texts(data: str, name: str, rows: int) -> list[str]:
    """Read the first distinct texts of a data set, over and over again where it has fewer."""
    import pyarrow.parquet

    split, column = COLUMNS[name]
    texts = pyarrow.parquet.read_table(Path(data) / f"{split}.parquet", columns=[column])[column].to_pylist()
    distinct = list(dict.fromkeys(texts))
    return (distinct * (rows // len(distinct) + 1))[:rows]


def compare(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Let the engines take turns, and return what each took, and how near its vectors are to the reference."""
    case = make_case(arguments.set, arguments.model, arguments.data)
    texts = Texts(case.model, read_texts(case.data, arguments.set, arguments.rows), arguments.threads)
    engines: dict[str, Engine] = {}
    rounds: dict[str, list[Round]] = {}
    try:
        for name in arguments.engines.split(","):
            if name.startswith("onnxruntime") and not (find_spec("onnxruntime") and find_spec("onnx")):
                say(f"  {name} is left out: pip install onnxruntime onnx")
                continue
            say(f"  starting {name}")
            engines[name] = Engine(name, texts, folder / name, texts.threads, "benchmarks.embedding_engines")
        for turn in range(arguments.rounds):
            for name, engine in engines.items():
                rounds.setdefault(name, []).append(engine.run(1))
                last = rounds[name][-1]
                say(f"  round {turn + 1} {name}: {last['seconds']:.2f} s, others used {last['foreign']:.2f} cores")
    finally:
        for engine in engines.values():
            engine.end()
    tokens = count_tokens(texts)
    return {
        "set": arguments.set,
        "rows": len(texts.texts),
        "tokens": tokens,
        "model": Path(texts.model).name,
        "machine": machine(texts.threads),
        "engines": {
            name: summarize(done, texts, tokens, arguments.foreign) | nearness(folder / name, folder / REFERENCE)
            for name, done in rounds.items()
        },
    }


def count_tokens(texts: Texts) -> int:
    """Count the tokens that the model reads."""
    from bertkit import Embedder

    encoded = Embedder(texts.model).tokenizer(texts.texts, truncation=True, return_attention_mask=False)
    return sum(map(len, encoded["input_ids"]))


def summarize(rounds: list[Round], texts: Texts, tokens: int, foreign: float) -> dict[str, Any]:
    """Compute the median seconds of clean rounds, and the least processor time, which other programs hardly change."""
    clean = [each for each in rounds if each["foreign"] <= foreign]
    seconds = statistics.median(each["seconds"] for each in clean or rounds)
    return {
        "seconds": round(seconds, 3),
        "texts_per_second": round(len(texts.texts) / seconds, 1),
        "tokens_per_second": round(tokens / seconds),
        "cpu_seconds": round(min(each["cpu"] for each in rounds), 3),
        "memory_mb": max(each["memory"] for each in rounds),
        "batch_size": rounds[-1]["batch_size"],
        "clean_rounds": len(clean),
        "rounds": [{name: round(each[name], 3) for name in ("seconds", "cpu", "foreign")} for each in rounds],
    }


def nearness(folder: Path, reference: Path) -> dict[str, float]:
    """Compute the least and the mean cosine of vectors to those of the reference, and the largest difference."""
    import numpy as np

    if not (reference / "vectors.npy").exists():
        return {}
    ours, theirs = (np.load(each / "vectors.npy") for each in (folder, reference))
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    cosines = (ours * theirs).sum(axis=1, dtype=np.float64) / lengths
    return {
        "cosine_min": round(float(cosines.min()), 7),
        "cosine_mean": round(float(cosines.mean()), 7),
        "difference": float(np.abs(ours - theirs).max()),
    }


def embedding_part(reports: Sequence[Report]) -> str:
    """Build a table for each report: speed, memory, and how near vectors are to those of the reference."""
    head = ["engine", "seconds", "texts/s", "tokens/s", "speed", "MB", "least cosine", "mean cosine"]
    parts = []
    for report in reports:
        engines, machine = report["engines"], report["machine"]
        first = next(iter(engines.values()))
        rows = [
            [
                f"{name}, batches of {each['batch_size']}" if each["batch_size"] else name,
                f"{each['seconds']:.1f}",
                f"{each['texts_per_second']:,.0f}",
                f"{each['tokens_per_second']:,}",
                ratio(first["seconds"], each["seconds"]),
                f"{each['memory_mb']:,}",
                *(f"{each[name]:.6f}" if name in each else "" for name in ("cosine_min", "cosine_mean")),
            ]
            for name, each in engines.items()
        ]
        tokens = report["tokens"] / report["rows"]
        what = f"**{report['set']}**: {report['rows']:,} texts of {tokens:.0f} tokens on average"
        where = f"{report['model']}, {machine['threads']} threads of {machine['cpu']}, {machine['date']}"
        parts.append(f"{what}. {where}.\n\n{table(head, rows)}")
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser)
    parser.add_argument("--set", default="sst2", choices=COLUMNS, help="data set that the texts are of")
    parser.add_argument("--rows", type=int, default=10_000, help="texts to embed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--foreign", type=float, default=0.06, help="cores that others may use in a clean round")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = compare(arguments, Path(folder))
    write_results(report, arguments.output / f"embedding-{arguments.set}-{arguments.rows}.json")
    for name, each in report["engines"].items():
        print(
            f"{name:28} {each['seconds']:8.2f} s {each['cpu_seconds']:8.2f} s of processor"
            f" {each['texts_per_second']:8,.0f} texts/s {each['memory_mb']:6,} MB"
            f" cosine {each.get('cosine_min', 0):.6f} {each.get('cosine_mean', 0):.6f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
