"""Whether a training epoch's seconds grow in line with its real tokens: more rows, and longer rows.

    python -m benchmarks.linear --model DIR --data DIR

Rows are sentences of CoLA, joined where long ones are wanted. Writes benchmarks/results/linear.json.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.cases import ROOT, Case, add_options, make_case, write_results, write_sentences
from benchmarks.load import machine
from benchmarks.speed import Engine, clean_round

ROWS_OF_LENGTHS = 640


def fit_power(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Return factor and exponent of the power law that fits best on logarithmic axes.

    >>> [round(number, 6) for number in fit_power([(1, 3), (10, 30), (100, 300)])]
    [3.0, 1.0]
    """
    logs = [(math.log(x), math.log(y)) for x, y in points]
    mean_x, mean_y = (sum(each) / len(logs) for each in zip(*logs, strict=True))
    slope = sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum((x - mean_x) ** 2 for x, _ in logs)
    return math.exp(mean_y - slope * mean_x), slope


def texts_of(sentences: list[str], rows: int, words: int | None) -> list[str]:
    """Return the first `rows` sentences, or `rows` texts of `words` words each.

    >>> texts_of(["a b c", "d e"], 3, 2)
    ['a b', 'c d', 'e a']
    """
    if words is None:
        return sentences[:rows]
    stream = itertools.cycle(" ".join(sentences).split())
    return [" ".join(itertools.islice(stream, words)) for _ in range(rows)]


def measure(case: Case, kind: str, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Warm up, then time whole epochs; return the fastest clean one."""
    engine = Engine("bertkit", case, folder, arguments.threads)
    steps = case.load().training.steps_per_epoch(case.limit or 0)
    try:
        engine.run(min(steps, 5))
        rounds = [clean_round(engine, steps, arguments.foreign, arguments.repeats) for _ in range(arguments.rounds)]
    finally:
        engine.end()
    best = min([each for each in rounds if each["clean"]] or rounds, key=lambda each: each["seconds"])
    names = ("seconds", "tokens", "examples", "steps", "clean", "foreign")
    return {"kind": kind, **{name: best[name] for name in names}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser)
    parser.add_argument("--rounds", type=int, default=2, help="epochs timed")
    parser.add_argument("--foreign", type=float, default=0.06, help="cores that others may use in a clean round")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", default="320,1000,3200,8500", help="of the usual length, about 11 tokens")
    parser.add_argument("--lengths", default="8,16,32,64,128,256", help=f"tokens of {ROWS_OF_LENGTHS} rows each")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    arguments = parser.parse_args()
    import pyarrow.parquet

    usual = replace(make_case("cola", arguments.model, arguments.data), epochs=1000)
    table = pyarrow.parquet.read_table(Path(usual.data) / "train.parquet", columns=["sentence"])
    sentences = table["sentence"].to_pylist()
    plans = [("rows", int(rows), None) for rows in arguments.rows.split(",")]
    plans += [("length", ROWS_OF_LENGTHS, int(length)) for length in arguments.lengths.split(",")]
    points = []
    with tempfile.TemporaryDirectory() as name:
        for number, (kind, rows, length) in enumerate(plans):
            folder = Path(name, str(number))
            words = max(1, round(length / 1.25)) if length else None  # a word is about 1.25 tokens
            write_sentences(texts_of(sentences, rows, words), folder / "data")
            case = replace(usual, data=str(folder / "data"), limit=rows, max_length=length or 128)
            points.append(measure(case, kind, arguments, folder / "engine"))
            print(points[-1], file=sys.stderr, flush=True)
    factor, exponent = fit_power([(point["tokens"], point["seconds"]) for point in points])
    report = {"points": points, "factor": factor, "exponent": exponent, "machine": machine(arguments.threads)}
    write_results(report, arguments.output / "linear.json")
    print(f"seconds = {factor:.3g} x tokens ^ {exponent:.3f}", flush=True)


if __name__ == "__main__":
    main()
