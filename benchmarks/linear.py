"""Whether a training epoch's seconds grow in line with its real tokens: more rows, and longer rows.

    python -m benchmarks.linear --model DIR --data DIR

Rows are sentences of CoLA, joined where long ones are wanted. Writes benchmarks/results/linear.json.
"""

from __future__ import annotations

import argparse
import itertools
import math
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import linear_regression
from typing import Any

from benchmarks.cases import Case, make_case, write_sentences
from benchmarks.harness import Report, choose_clean, read_columns, read_options, say, write_results
from benchmarks.load import machine
from benchmarks.pictures import draw_panels
from benchmarks.speed import EPOCHS, Engine, clean_round
from bertkit.reports.svg import Point, scatter

ROWS_OF_LENGTHS = 640


def fit_power(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Return factor and exponent of the power law that fits best on logarithmic axes.

    >>> [round(number, 6) for number in fit_power([(1, 3), (10, 30), (100, 300)])]
    [3.0, 1.0]
    """
    slope, intercept = linear_regression(*zip(*((math.log(x), math.log(y)) for x, y in points), strict=True))
    return math.exp(intercept), slope


def texts_of(sentences: list[str], rows: int, words: int | None) -> list[str]:
    """Return the first `rows` sentences, or `rows` texts of `words` words each.

    >>> texts_of(["a b c", "d e"], 3, 2)
    ['a b', 'c d', 'e a']
    """
    if words is None:
        return sentences[:rows]
    stream = itertools.cycle(" ".join(sentences).split())
    return [" ".join(itertools.islice(stream, words)) for _ in range(rows)]


def measure(case: Case, kind: str, asked: argparse.Namespace, folder: Path) -> Report:
    """Warm up, then time whole epochs; return the fastest clean one."""
    steps = case.load().training.steps_per_epoch(case.limit or 0)
    with Engine("bertkit", case, folder, asked.threads) as engine:
        engine.run(min(steps, 5))
        rounds = [clean_round(engine, steps, asked.foreign, asked.repeats) for _ in range(asked.rounds)]
    best = min(choose_clean(rounds, asked.foreign), key=lambda each: each["seconds"])
    names = ("seconds", "tokens", "examples", "steps", "clean", "foreign")
    return {"kind": kind, **{name: best[name] for name in names}}


def linear_part(reports: Sequence[Report]) -> str:
    """Describe how the seconds of an epoch grow with its tokens."""
    [report] = reports
    tokens = [point["tokens"] for point in report["points"]]
    return (
        "![Seconds of an epoch by its real tokens](images/linear.svg)\n\n"
        f"From {min(tokens):,} to {max(tokens):,} real tokens, the time grows as the number of tokens to the power of"
        f" {report['exponent']:.2f}."
    )


def linear_picture(reports: Sequence[Report]) -> str:
    """Draw the seconds of epochs over their tokens, on logarithmic axes, and the power law through them."""
    [report] = reports
    points = []
    for each in report["points"]:
        hover = f"{each['tokens']:,} tokens: {each['seconds']:.2f} s"
        radius = 5 if each["kind"] == "rows" else 3
        points.append(Point(math.log10(each["tokens"]), math.log10(each["seconds"]), hover, radius=radius))
    ends = [choose(point.x for point in points) for choose in (min, max)]
    line = [(end, math.log10(report["factor"]) + report["exponent"] * end) for end in ends]
    name = "Seconds of a training epoch by its real tokens: more rows (large) and longer rows"
    x, y = "real tokens of an epoch, as powers of ten", "seconds, as powers of ten"
    return draw_panels([(name, scatter(points, name=name, x=x, y=y, guide=line))], name)


def main() -> None:
    own: dict[str, Any] = {"rounds": (2, "epochs timed"), "repeats": 3}
    own |= {"rows": ("320,1000,3200,8500", "of the usual length, about 11 tokens")}
    own |= {"lengths": ("8,16,32,64,128,256", f"tokens of {ROWS_OF_LENGTHS} rows each")}
    asked = read_options(__doc__, "model data threads foreign output", **own)
    usual = replace(make_case("cola", asked.model, asked.data), epochs=EPOCHS)
    sentences = [row["sentence"] for row in read_columns(Path(usual.data, "train.parquet"), "sentence")]
    plans: list[tuple[str, int, int | None]] = [("rows", int(rows), None) for rows in asked.rows.split(",")]
    plans += [("length", ROWS_OF_LENGTHS, int(length)) for length in asked.lengths.split(",")]
    points = []
    for kind, rows, length in plans:
        words = max(1, round(length / 1.25)) if length else None  # a word is about 1.25 tokens
        with tempfile.TemporaryDirectory() as name:
            data = Path(name, "data")
            write_sentences(texts_of(sentences, rows, words), data)
            case = replace(usual, data=str(data), limit=rows, max_length=length or 128)
            points.append(measure(case, kind, asked, Path(name, "engine")))
        say(str(points[-1]))
    factor, exponent = fit_power([(point["tokens"], point["seconds"]) for point in points])
    report = {"points": points, "factor": factor, "exponent": exponent, "machine": machine(asked.threads)}
    write_results(report, asked.output / "linear.json")
    print(f"seconds = {factor:.3g} x tokens ^ {exponent:.3f}", flush=True)


if __name__ == "__main__":
    main()
