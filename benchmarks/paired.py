"""Measure how often `bertkit compare` finds a difference: where there is none, and where there is one of known power.

A trial draws rows (and seeds) from a made-up population, and asks for what the command prints, from fewer resamples.
Under the null, both systems answer a row from the same distribution, and 5 % of the trials should find p < .05. With a
difference, the rows are as many as the formula says, and 80 % should.

`python -m benchmarks.paired` appends a line per case to results/paired.jsonl and skips the cases that are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.harness import RESULTS, measure_once, read_options
from bertkit.metrics.intervals import RowScores, bootstrap_intervals
from bertkit.metrics.paired import compare_paired, compare_seeds, permutation_test, rows_for_power, standard_error
from bertkit.metrics.registry import accuracy, f1, matthews_correlation, pearsonr, spearmanr

SAMPLES = 200
POPULATION = 200_000  # rows, which show the true difference
ROWS = (20, 100, 1000)
SEEDS = (2, 3, 5, 10)
SPREADS = (0.0, 0.2, 0.6)  # of the seeds, in logits

Random = np.random.Generator
Rates = dict[str, Any]


def score_by(*metrics: Callable[..., float]) -> Callable[[RowScores], dict[str, float]]:
    """Build a function that scores rows by metrics, under their names."""
    return lambda row_scores: {
        metric.__name__: metric(row_scores["gold"], row_scores["predicted"]) for metric in metrics
    }


METRICS = {metric.__name__: metric for metric in (accuracy, f1, matthews_correlation)}
score_labels = score_by(*METRICS.values())
score_numbers = score_by(pearsonr, spearmanr)
score_right = score_by(accuracy)


def draw_labels(rows: int, draw: Random, gain: float = 0.0) -> tuple[RowScores, RowScores]:
    """Draw two labels, answered by two systems that share what is hard; `gain` is what the second has, in logits."""
    gold = (draw.random(rows) < 0.4).astype(int)
    hardness = draw.normal(1.5, 2, rows)
    answers = []
    for better in (0.0, gain):
        right = draw.random(rows) < 1 / (1 + np.exp(-hardness - better))
        answers.append({"gold": gold, "predicted": np.where(right, gold, 1 - gold)})
    return answers[0], answers[1]


def draw_numbers(rows: int, draw: Random) -> tuple[RowScores, RowScores]:
    """Draw numbers, and two predictions with errors of which they share a part."""
    gold = draw.random(rows) * 5
    shared = gold + draw.normal(0, 0.7, rows)
    first, second = ({"gold": gold, "predicted": shared + draw.normal(0, 0.7, rows)} for _ in range(2))
    return first, second


def draw_seeds(rows: int, seeds: int, spread: float, draw: Random, gain: float = 0.0) -> list[list[RowScores]]:
    """Draw two systems of several seeds: rows are hard for all, for a system, or for one seed of it."""
    gold, shared = np.zeros(rows, dtype=int), draw.normal(1.2, 1.5, rows)
    systems = []
    for better in (0.0, gain):
        own = shared + draw.normal(0, 1, rows)
        logits = own + draw.normal(better, spread, (seeds, 1)) + draw.normal(0, 1, (seeds, rows))
        wrong = draw.random((seeds, rows)) > 1 / (1 + np.exp(-logits))
        systems.append([{"gold": gold, "predicted": of_seed.astype(int)} for of_seed in wrong])
    return systems


def reject_rows(rows: int, numbers: bool, trials: int) -> Rates:
    """Return the share of trials without a difference in which p, or the interval, says that there is one."""
    draw, score = np.random.default_rng((rows, numbers)), score_numbers if numbers else score_labels
    p_values: dict[str, list[float]] = {}
    outside: dict[str, list[bool]] = {}
    for _ in range(trials):
        pair = draw_numbers(rows, draw) if numbers else draw_labels(rows, draw)
        for name, found in compare_paired(score, *pair, samples=SAMPLES).items():
            p_values.setdefault(name, []).append(1.0 if found.p is None else found.p)
            ends = found.interval
            outside.setdefault(name, []).append(ends is not None and not ends[0] <= 0 <= ends[1])
    return {
        "p": {name: float(np.mean(np.array(values) < 0.05)) for name, values in p_values.items()},
        "interval": {name: float(np.mean(values)) for name, values in outside.items()},
    }


def find_power(gain: float, trials: int) -> Rates:
    """Return the share of trials that find a true difference in as many rows as the formula asks for."""
    draw = np.random.default_rng((7, round(1000 * gain)))
    first, second = draw_labels(POPULATION, draw, gain)
    scores = score_labels(first), score_labels(second)

    def subtract(rows: np.ndarray) -> dict[str, float]:
        before, after = ({name: values[rows] for name, values in side.items()} for side in (first, second))
        return {name: value - score_labels(before)[name] for name, value in score_labels(after).items()}

    rates: Rates = {}
    for name, ends in bootstrap_intervals(subtract, POPULATION).items():
        assert ends is not None
        rows = rows_for_power(scores[1][name] - scores[0][name], standard_error(ends), POPULATION)
        assert rows is not None
        found = 0
        for _ in range(trials):
            pair = draw_labels(rows, draw, gain)
            p = permutation_test(score_by(METRICS[name]), *pair, samples=SAMPLES)[0][name]
            found += p is not None and p < 0.05
        rates[name] = {"rows": rows, "power": found / trials}
    return rates


def reject_seeds(rows: int, seeds: int, spread: float, trials: int, gain: float = 0.0) -> Rates:
    """Return the share of trials in which seeds and rows together say that two systems differ."""
    draw = np.random.default_rng((rows, seeds, round(10 * spread), round(10 * gain)))
    rejected = 0
    for _ in range(trials):
        systems = draw_seeds(rows, seeds, spread, draw, gain)
        p = compare_seeds(score_right, *systems, samples=SAMPLES)["accuracy"].p
        rejected += p is not None and p < 0.05
    return {"seeds and rows": rejected / trials}


def list_cases() -> Iterator[tuple[dict[str, Any], Callable[[int], Rates]]]:
    """Yield what identifies each case, and the function that measures it in a number of trials."""
    for rows in ROWS:
        yield {"null": "labels", "rows": rows}, partial(reject_rows, rows, False)
    for gain in (0.3, 0.6):
        yield {"power": gain}, partial(find_power, gain)
    for seeds in SEEDS:
        for spread in SPREADS:
            yield {"seeds": seeds, "spread": spread, "rows": 200}, partial(reject_seeds, 200, seeds, spread)
    for rows in ROWS:  # last: a correlation takes fifty times as long as an accuracy
        yield {"null": "numbers", "rows": rows}, partial(reject_rows, rows, True)


def main() -> None:
    asked = read_options(__doc__, "", trials=500, output=RESULTS / "paired.jsonl")
    for case, measure in list_cases():

        def find(measure: Callable[[int], Rates] = measure) -> Rates:
            return {"trials": asked.trials, "found": measure(asked.trials)}

        measure_once(asked.output, {"case": case}, find)


if __name__ == "__main__":
    main()
