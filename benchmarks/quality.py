"""Scores of bertkit beside those of a plain fp32 Trainer, over seeds, and how sure the difference is.

    python -m benchmarks.quality cola:3:1,2,3,4,5 squad:2:1,2 --model DIR --data DIR [--fast-fp32] [--margin 0.02]

Each item is RECIPE:EPOCHS:SEEDS (EPOCHS empty: the recipe's). Every run is one line of the output file; a run that is
there already is not repeated, so the same command goes on where it was stopped; after a change of bertkit, take the
old lines out. For each metric the difference of the means and the lower end of its one-sided 95 % interval (Welch) are
printed; bertkit is no worse than the margin where that lower end is above minus the margin.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.cases import ROOT, Case, add_options, make_case
from benchmarks.load import machine
from benchmarks.programs import finetune
from bertkit.storage.files import split_lines

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


def key_of(engine: str, case: Case, fast: bool) -> dict[str, Any]:
    """Return what identifies a recorded run."""
    return {
        "engine": engine,
        "recipe": case.recipe,
        "seed": case.seed,
        "epochs": case.load().training.epochs,
        "limit": case.limit,
        "batch_size": case.batch_size,
        "model": hashlib.sha256(Path(case.model, "config.json").read_bytes()).hexdigest()[:12],
        "fast_fp32": fast and not engine.startswith("bertkit"),
    }


def find_run(key: dict[str, Any], file: Path) -> dict[str, Any] | None:
    """Find the recorded run with this key; a line that a kill left incomplete is skipped."""
    for line in split_lines(file.read_text(encoding="utf-8")) if file.exists() else ():
        try:
            run: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError:
            continue
        if run["key"] == key:
            return run
    return None


def run_or_read(engine: str, case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return a run of the output file; where it is not there, run it first."""
    key = key_of(engine, case, arguments.fast_fp32)
    recorded = find_run(key, arguments.output)
    if recorded:
        return recorded
    options = ["--fast-fp32"] if key["fast_fp32"] else []
    with tempfile.TemporaryDirectory() as folder:
        measured = finetune(engine, case, Path(folder, "one"), arguments.threads, *options)
    facts = machine(arguments.threads)
    run = {"key": key, **measured, "versions": facts["versions"], "commit": facts["commit"]}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    with arguments.output.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(run) + "\n")
    return run


def compare(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], metric: str, margin: float) -> dict[str, Any]:
    """Return both means, their difference, its lower bound, and whether the first engine stays within the margin."""
    values = [[run["scores"][metric] for run in runs] for runs in (ours, theirs)]
    bound = lower_bound(*values)
    return {
        **{name: ours[0]["key"][name] for name in ("recipe", "epochs", "limit", "engine")},
        "peer": theirs[0]["key"]["engine"],
        "metric": metric,
        "seeds": " and ".join(dict.fromkeys(str(len(scores)) for scores in values)),
        "ours": statistics.mean(values[0]),
        "theirs": statistics.mean(values[1]),
        "difference": statistics.mean(values[0]) - statistics.mean(values[1]),
        "bound": bound,
        "margin": margin,
        "no_worse": bound > -margin,
    }


def rows_of(compared: dict[str, Any]) -> str:
    """Name the recipe of a comparison and its rows."""
    return compared["recipe"] + (f", {compared['limit']:,} rows" if compared["limit"] else "")


def settings_of(engine: str) -> list[str]:
    """Return the keys and values that an engine changes.

    >>> settings_of("bertkit:training.precision=bf16;training.batching=random")
    ['precision=bf16', 'batching=random']
    """
    return [change.removeprefix("training.") for change in engine.partition(":")[2].split(";") if change]


def row(compared: dict[str, Any]) -> str:
    """Format a comparison as a row of a Markdown table."""
    numbers = [f"{compared[name]:.4f}" for name in ("ours", "theirs")]
    numbers += [f"{compared[name]:+.4f}".replace("-inf", "one seed") for name in ("difference", "bound")]
    first = [rows_of(compared), f"{compared['epochs']:g}", compared["metric"], compared["seeds"]]
    names = [", ".join(["bertkit", *settings_of(compared["engine"])]), compared["peer"]]
    verdict = "yes" if compared["no_worse"] else "not shown"
    return f"| {' | '.join([*first, *names, *numbers, format(compared['margin'], 'g'), verdict])} |"


HEADER = (
    "| recipe | epochs | metric | seeds | engine | peer | score | peer's score | difference | lower bound | margin "
    "| no worse |\n|---|---:|---|---:|---|---|---:|---:|---:|---:|---:|---|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("items", nargs="+", metavar="RECIPE:EPOCHS:SEEDS")
    add_options(parser)
    parser.add_argument("--engines", default=ENGINES, help=f"the first is compared with the second; usual: {ENGINES}")
    parser.add_argument("--fast-fp32", action="store_true", help="the peer's fp32 products through oneDNN")
    parser.add_argument("--margin", type=float, default=0.02, help="what counts as no worse (of scores up to 1)")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "quality.jsonl")
    arguments = parser.parse_args()
    print(HEADER)
    for item in arguments.items:
        recipe, epochs, seeds = item.split(":")
        chosen = float(epochs) if epochs else None
        case = make_case(recipe, arguments.model, arguments.data, limit=arguments.limit, epochs=chosen)
        runs: list[list[dict[str, Any]]] = [[], []]
        for seed in seeds.split(","):
            for engine, engine_runs in zip(arguments.engines.split(","), runs, strict=True):
                engine_runs.append(run_or_read(engine, replace(case, seed=int(seed)), arguments))
        margin = arguments.margin * (100 if recipe in PERCENT else 1)
        for metric in [name for name in runs[0][0]["scores"] if name in runs[1][0]["scores"]]:
            print(row(compare(*runs, metric, margin)), flush=True)


if __name__ == "__main__":
    main()
