"""Measure how often the gate of `bertkit compare --fail-if-worse` blocks equal models, and those with a planted loss.

A trial draws rows that are hard or easy for two models. The second then loses a share of its right answers, in all rows
or in one of five slices, and the gate judges both. Beside the share of trials that are blocked stands the power that
`compare` tells: the probability that a loss of this size shows, by the mean of the differences that it names.

`python -m benchmarks.gates` appends a line per case to results/gates.jsonl and skips the cases that are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from statistics import NormalDist

import numpy as np

from benchmarks.harness import RESULTS, Report, measure_once, read_options, table
from benchmarks.paired import score_right
from bertkit.evaluation.gates import GatedDifference, WorseGate, judge_worse
from bertkit.metrics.intervals import Judged, take, wilson_interval
from bertkit.metrics.paired import compare_paired

SLICES = 5
PERMUTATIONS = 500  # where the command has 2,000, which costs a little power


def draw_pair(rows: int, loss: float, within: np.ndarray, draw: np.random.Generator) -> tuple[Judged, Judged]:
    """Draw two models' answers to rows that are hard or easy for both; the second loses accuracy at some of them."""
    likely = 1 / (1 + np.exp(-draw.normal(2, 2, rows)))
    first, second = (draw.random(rows) < likely for _ in range(2))
    second &= ~(within & (draw.random(rows) < loss / likely.mean()))
    gold = np.zeros(rows, dtype=int)
    return {"gold": gold, "predicted": 1 - first}, {"gold": gold, "predicted": 1 - second}


def measure(rows: int, loss: float, of: str, trials: int) -> Report:
    """Return how many trials the gate blocks, and the mean of the least differences that `compare` says they show."""
    draw = np.random.default_rng((rows, round(1000 * loss), of == "slices"))
    blocked, shown = 0, []
    for _ in range(trials):
        slices = np.array_split(np.arange(rows), SLICES if of == "slices" else 1)
        pair = draw_pair(rows, loss, np.isin(np.arange(rows), slices[0]), draw)
        tested = []
        for units in slices:
            found = compare_paired(score_right, *(take(side, units) for side in pair), samples=PERMUTATIONS)["accuracy"]
            tested.append(GatedDifference("new", "accuracy", "accuracy", len(units), found))
        blocked += any(case.outcome == "failed" for case in judge_worse(tested, WorseGate()))
        shown += [tested[0].found.detectable] if tested[0].found and tested[0].found.detectable else []
    return {"trials": trials, "blocked": blocked, "detectable": float(np.mean(shown))}


def power_of(loss: float, detectable: float) -> float:
    """Compute the probability that a true loss shows, given the least one that shows with power .8.

    >>> round(power_of(0.05, 0.05), 2), round(power_of(0.0, 0.05), 3)
    (0.8, 0.025)
    """
    normal = NormalDist()
    error = detectable / (normal.inv_cdf(0.975) + normal.inv_cdf(0.8))
    return normal.cdf(loss / error - normal.inv_cdf(0.975))


def gates_part(runs: Sequence[Report]) -> str:
    """Build the table: the share of trials that are blocked, with its interval, beside the power that is told."""
    cells = []
    for run in runs:
        rows, loss, of = run["case"]["rows"], run["case"]["loss"], run["case"]["of"]
        ends = wilson_interval(run["blocked"], run["trials"])
        share = f"{run['blocked'] / run['trials']:.1%} ({ends[0]:.1%} to {ends[1]:.1%})"
        told = f"{power_of(loss, run['detectable']):.0%}" if loss else ""
        where = "all rows" if of == "rows" else f"one of {SLICES} slices" if loss else f"{SLICES} slices"
        cells.append([f"{rows:,}", where, f"{loss:g}" if loss else "none", share, f"{run['detectable']:.3f}", told])
    titles = (
        "rows",
        "gate over",
        "planted loss",
        "blocked (95% CI)",
        "compare: shows .8 of losses of",
        "power for this one",
    )
    return table(titles, cells, "rlrrrr")


def main() -> None:
    asked = read_options(__doc__, "", trials=200, output=RESULTS / "gates.jsonl")
    for of, rows, loss in product(("rows", "slices"), (300, 2000), (0.0, 0.05, 0.1)):
        case = {"rows": rows, "loss": loss, "of": of}
        measure_once(asked.output, {"case": case}, partial(measure, **case, trials=asked.trials))


if __name__ == "__main__":
    main()
