"""Scores of bertkit and of a plain fp32 Trainer over seeds, and the confidence bound of their difference.

    python -m benchmarks.quality cola:3:1,2,3,4,5 squad:2:1,2 --model DIR --data DIR [--fast-fp32] [--margin 0.02]

Each item is RECIPE:EPOCHS:SEEDS (an empty EPOCHS is the recipe's value). The same command resumes: each run is a line
of quality.jsonl. For each metric, the output has the difference of the means and the lower end of its one-sided 95%
interval (Welch). bertkit is no worse if this lower end is above minus the margin.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import statistics
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from benchmarks.cases import Case, make_case
from benchmarks.harness import RESULTS, Report, make_table, measure_once, read_options
from benchmarks.load import machine
from benchmarks.whole import finetune

ENGINES = "bertkit:training.precision=bf16,hf-dynamic"  # the less exact precision, on any machine
PERCENT = {"squad", "squad2"}  # recipes with scores from 0 to 100
SHARED = ("recipe", "epochs", "limit", "batch_size", "model")
"""Settings that compared runs share."""


def lower_bound(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the lower end of the one-sided 95% interval of a difference of means (Welch); -inf for one value."""
    from scipy.stats import t

    if min(len(ours), len(theirs)) < 2:
        return -math.inf
    difference = statistics.mean(ours) - statistics.mean(theirs)
    first, second = (statistics.variance(values) / len(values) for values in (ours, theirs))
    if not first + second:
        return difference
    freedom = (first + second) ** 2 / (first**2 / (len(ours) - 1) + second**2 / (len(theirs) - 1))
    return float(difference - t.ppf(0.95, freedom) * math.sqrt(first + second))


def measure_run(engine: str, case: Case, options: argparse.Namespace) -> Report:
    """Return the recorded run of an engine with a seed, or run it."""
    is_fast = options.fast_fp32 and not engine.startswith("bertkit")
    key = {
        "engine": engine,
        "recipe": case.recipe,
        "seed": case.seed,
        "epochs": case.load().training.epochs,
        "limit": case.limit,
        "batch_size": case.batch_size,
        "model": hashlib.sha256(Path(case.model, "config.json").read_bytes()).hexdigest()[:12],
        "fast_fp32": is_fast,
    }

    def measure() -> Report:
        report = finetune(engine, case, options.threads, *(["--fast-fp32"] if is_fast else []))
        description = machine(options.threads)
        return {**report, "versions": description["versions"], "commit": description["commit"]}

    return measure_once(options.output, {"key": key}, measure)


def compare(ours: list[Report], theirs: list[Report], metric: str, margin: float) -> Report:
    """Return both means, their difference, its lower bound, and whether the first engine is within the margin."""
    values = [[run["scores"][metric] for run in runs] for runs in (ours, theirs)]
    means = [statistics.mean(scores) for scores in values]
    bound = lower_bound(*values)
    return {
        **{name: ours[0]["key"][name] for name in ("recipe", "epochs", "limit", "engine")},
        "peer": theirs[0]["key"]["engine"],
        "metric": metric,
        "seeds": " and ".join(dict.fromkeys(str(len(scores)) for scores in values)),
        "ours": means[0],
        "theirs": means[1],
        "difference": means[0] - means[1],
        "bound": bound,
        "margin": margin,
        "no_worse": bound > -margin,
    }


def compare_all(runs: Sequence[Report], margin: float = 0.02) -> list[Report]:
    """Compare the scores of every engine of bertkit with every peer that has the same recipe, rows and model."""
    groups: dict[str, dict[str, list[Report]]] = {}
    for run in runs:
        case = json.dumps([run["key"][name] for name in SHARED])
        groups.setdefault(case, {}).setdefault(run["key"]["engine"], []).append(run)
    comparisons = []
    for engines in groups.values():
        names = {name for name in engines if name.startswith("bertkit")}
        for name, peer in product(sorted(names), sorted(engines.keys() - names)):
            ours, theirs = engines[name], engines[peer]
            metrics = [metric for metric in ours[0]["scores"] if metric in theirs[0]["scores"]]
            factor = 100 if ours[0]["key"]["recipe"] in PERCENT else 1
            comparisons += [compare(ours, theirs, metric, margin * factor) for metric in metrics]
    return comparisons


def name_rows(comparison: Report) -> str:
    """Return the recipe of a comparison and the number of its rows."""
    return str(comparison["recipe"]) + (f", {comparison['limit']:,} rows" if comparison["limit"] else "")


def list_settings(engine: str) -> list[str]:
    """Return the keys and values that an engine changes.

    >>> list_settings("bertkit:training.precision=bf16;training.batching=random")
    ['precision=bf16', 'batching=random']
    """
    return [change.removeprefix("training.") for change in engine.partition(":")[2].split(";") if change]


def quality_table(comparisons: Sequence[Report]) -> str:
    """Build a table with a row per comparison."""
    columns = {
        "recipe": name_rows,
        "epochs": "{epochs:g}",
        "metric": "{metric}",
        "seeds": "{seeds}",
        "engine": lambda row: ", ".join(["bertkit", *list_settings(row["engine"])]),
        "peer": "{peer}",
        "score": "{ours:.4f}",
        "peer's score": "{theirs:.4f}",
        "difference": "{difference:+.4f}",
        "lower bound": lambda row: f"{row['bound']:+.4f}".replace("-inf", "one seed"),
        "margin": "{margin:g}",
        "no worse": lambda row: "yes" if row["no_worse"] else "not shown",
    }
    return make_table(columns, comparisons, "lrlrllrrrrrl")


def main() -> None:
    fast = (False, "compute the peer's fp32 products with oneDNN")
    margin = (0.02, "margin of scores up to 1 (default: 0.02)")
    settings = {"engines": ENGINES, "fast_fp32": fast, "margin": margin}
    options = read_options(__doc__, "items+ model data limit threads", **settings, output=RESULTS / "quality.jsonl")
    for item in options.items:
        recipe, epochs, seeds = item.split(":")
        sizes = {"limit": options.limit, "epochs": float(epochs) if epochs else None}
        runs = [
            measure_run(engine, make_case(recipe, options.model, options.data, seed=int(seed), **sizes), options)
            for seed in seeds.split(",")
            for engine in options.engines.split(",")
        ]
        print(quality_table(compare_all(runs, options.margin)), flush=True)


if __name__ == "__main__":
    main()
