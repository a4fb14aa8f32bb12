"""Scores of bertkit beside those of a plain fp32 Trainer, over seeds, and how sure the difference is.

    python -m benchmarks.quality cola:3:1,2,3,4,5 squad:2:1,2 --model DIR --data DIR [--fast-fp32] [--margin 0.02]

Each item is RECIPE:EPOCHS:SEEDS (EPOCHS empty: the recipe's). Every run is one line of quality.jsonl; a run that is
there already is not repeated, so the same command goes on where it was stopped. For each metric the difference of the
means and the lower end of its one-sided 95 % interval (Welch) are printed; bertkit is no worse than the margin where
that lower end is above minus the margin.
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
from benchmarks.harness import RESULTS, Report, measure_once, read_options, table
from benchmarks.load import machine
from benchmarks.pictures import stand_alone
from benchmarks.whole import finetune
from bertkit.recipe import load_recipe
from bertkit.reports.svg import Span, interval_strip

ENGINES = "bertkit:training.precision=bf16,hf-dynamic"  # what is less exact, whatever this machine would take
PERCENT = {"squad", "squad2"}  # scores from 0 to 100


def lower_bound(ours: Sequence[float], theirs: Sequence[float], level: float = 0.95) -> float:
    """Return the lower end of the one-sided interval of a difference of means (Welch); -inf for too few values."""
    from scipy.stats import t

    if min(len(ours), len(theirs)) < 2:
        return -math.inf
    parts = [statistics.variance(values) / len(values) for values in (ours, theirs)]
    difference = statistics.mean(ours) - statistics.mean(theirs)
    if not sum(parts):
        return difference
    sizes = (len(ours), len(theirs))
    freedom = sum(parts) ** 2 / sum(part**2 / (size - 1) for part, size in zip(parts, sizes, strict=True))
    return float(difference - t.ppf(level, freedom) * math.sqrt(sum(parts)))


def run_or_read(engine: str, case: Case, asked: argparse.Namespace) -> Report:
    """Return the recorded run of an engine with a seed; where it is not there, run it first."""
    is_fast = asked.fast_fp32 and not engine.startswith("bertkit")
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
        options = ["--fast-fp32"] if is_fast else []
        measured = finetune(engine, case, asked.threads, *options)
        facts = machine(asked.threads)
        return {**measured, "versions": facts["versions"], "commit": facts["commit"]}

    return measure_once(asked.output, {"key": key}, measure)


def compare(ours: list[Report], theirs: list[Report], metric: str, margin: float) -> Report:
    """Return both means, their difference, its lower bound, and whether the first engine stays within the margin."""
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
    """Compare the scores of every engine of bertkit with those of every peer with the same recipe, rows and model."""
    groups: dict[str, dict[str, list[Report]]] = {}
    for run in runs:
        key = run["key"]
        case = json.dumps([key[name] for name in ("recipe", "epochs", "limit", "batch_size", "model")])
        groups.setdefault(case, {}).setdefault(key["engine"], []).append(run)
    compared = []
    for engines in groups.values():
        own = [name for name in engines if name.startswith("bertkit")]
        for name, peer in product(sorted(own), sorted(engines.keys() - own)):
            ours, theirs = engines[name], engines[peer]
            metrics = [metric for metric in ours[0]["scores"] if metric in theirs[0]["scores"]]
            factor = 100 if ours[0]["key"]["recipe"] in PERCENT else 1
            compared += [compare(ours, theirs, metric, margin * factor) for metric in metrics]
    return compared


def rows_of(compared: Report) -> str:
    """Name the recipe of a comparison and its rows."""
    return str(compared["recipe"]) + (f", {compared['limit']:,} rows" if compared["limit"] else "")


def settings_of(engine: str) -> list[str]:
    """Return the keys and values that an engine changes.

    >>> settings_of("bertkit:training.precision=bf16;training.batching=random")
    ['precision=bf16', 'batching=random']
    """
    return [change.removeprefix("training.") for change in engine.partition(":")[2].split(";") if change]


def compared_table(compared: Sequence[Report]) -> str:
    """Build a table with a row per comparison."""
    columns = {
        "recipe": rows_of,
        "epochs": "{epochs:g}",
        "metric": "{metric}",
        "seeds": "{seeds}",
        "engine": lambda each: ", ".join(["bertkit", *settings_of(each["engine"])]),
        "peer": "{peer}",
        "score": "{ours:.4f}",
        "peer's score": "{theirs:.4f}",
        "difference": "{difference:+.4f}",
        "lower bound": lambda each: f"{each['bound']:+.4f}".replace("-inf", "one seed"),
        "margin": "{margin:g}",
        "no worse": lambda each: "yes" if each["no_worse"] else "not shown",
    }
    return table(columns, compared, "lrlrllrrrrrl")


def quality_picture(runs: Sequence[Report]) -> str:
    """Draw the differences between bertkit and a plain Trainer in the recipes' best metrics, in points of a hundred."""
    drawn = []
    for each in compare_all(runs):
        best = each["metric"] == load_recipe(each["recipe"]).best_metric
        if not best or each["peer"] != "hf-dynamic" or math.isinf(each["bound"]):
            continue
        points = 1 if each["recipe"] in PERCENT else 100
        difference, low = points * each["difference"], points * each["bound"]
        high = 2 * difference - low
        settings = [f"epochs={each['epochs']:g}", *settings_of(each["engine"])]
        label = ", ".join([rows_of(each), *(setting for setting in settings if not setting.startswith("precision"))])
        shown = f"{difference:+.2f} ({low:+.2f} to {high:+.2f})"
        drawn.append(Span(label, shown, difference, low, high, each["no_worse"]))
    name = "Points by which bertkit scores above a plain Trainer, with 90% intervals"
    return stand_alone(interval_strip(drawn, name=name))


def main() -> None:
    fast = (False, "the peer's fp32 products through oneDNN")
    margin = (0.02, "what counts as no worse (of scores up to 1)")
    own = {"engines": ENGINES, "fast_fp32": fast, "margin": margin}
    asked = read_options(__doc__, "items+ model data limit threads", **own, output=RESULTS / "quality.jsonl")
    for item in asked.items:
        recipe, epochs, seeds = item.split(":")
        chosen = {"limit": asked.limit, "epochs": float(epochs) if epochs else None}
        runs = [
            run_or_read(engine, make_case(recipe, asked.model, asked.data, seed=int(seed), **chosen), asked)
            for seed in seeds.split(",")
            for engine in asked.engines.split(",")
        ]
        print(compared_table(compare_all(runs, asked.margin)), flush=True)


if __name__ == "__main__":
    main()
