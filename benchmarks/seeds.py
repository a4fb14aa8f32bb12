"""Scores of recipes over seeds: their spread and interval, the ensemble of the runs, and the soup of their weights.

    python -m benchmarks.seeds rte stsb cola ner --model DIR --data DIR --runs DIR [--seeds 5] [--limit N]

Each recipe that is done is one line of seeds.jsonl, and is not repeated. The runs stay in `--runs`, so the same command
goes on where it was stopped. Scores are those of the validation splits; no setting of a recipe is changed but the
precision, which is bf16 whatever this machine would take.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.cases import Case, make_case
from benchmarks.harness import RESULTS, Report, measure_once, read_options, run_bertkit, table
from benchmarks.load import machine


def measure(case: Case, asked: argparse.Namespace) -> Report:
    """Train a recipe with several seeds, and score their ensemble."""
    folder, start = asked.runs.resolve() / case.recipe, time.monotonic()
    changes = {key: value for key, value in case.changes().items() if not isinstance(value, dict)}
    changes |= {"training.precision": "bf16"}
    options = [word for key, value in changes.items() if key != "training.seed" for word in ("--set", f"{key}={value}")]
    several = ("--seeds", asked.seeds, "--soup", "--output", folder)
    summary = run_bertkit("finetune", case.recipe, *options, *several, threads=asked.threads)
    recipe = folder / "seed-1" / "recipe.yaml"
    results = run_bertkit("eval", recipe, "--model", folder, threads=asked.threads)["results"]
    facts = machine(asked.threads)
    return {
        "summary": summary | {"folder": folder.name, "model": Path(case.model).name},
        "ensemble": {result["split"]: result["scores"] for result in results},
        "ensemble_intervals": {result["split"]: result["intervals"] for result in results},
        "seconds": round(time.monotonic() - start, 1),
        "versions": facts["versions"],
        "commit": facts["commit"],
        "threads": asked.threads,
    }


def seeds_part(lines: Sequence[Report]) -> str:
    """Build a table of the best metric of each recipe over seeds."""
    columns = {
        "recipe": "{recipe}",
        "metric": "{metric}",
        "rows": "{rows:,}",
        "seeds": "{runs}",
        "mean": "{mean:.4f}",
        "sd": lambda each: _number(each["standard_deviation"]),
        "min": "{minimum:.4f}",
        "median": "{median:.4f}",
        "max": "{maximum:.4f}",
        "95% interval": lambda each: " to ".join(map(_number, each["interval"] or (None, None))),
        "expected best of 2": lambda each: _number((*each["expected_best"], None, None)[1]),
        "ensemble": "{ensemble:.4f}",
        "soup": lambda each: _number(each["soup"]),
        "failed": "{failed}",
    }
    return table(columns, map(_describe_best, lines), "ll" + "r" * 11 + "l")


def _describe_best(line: Report) -> Report:
    """Collect what the table says of the best metric of a recipe."""
    summary, limit = line["summary"], line["key"]["limit"]
    of_split, metric = summary["splits"][0], summary["best_metric"]
    split = of_split["split"]
    return {
        **of_split["spreads"][metric],
        "recipe": line["key"]["recipe"] + (f", {limit:,} training rows at most" if limit else ""),
        "metric": metric,
        "rows": of_split["rows"],
        "ensemble": line["ensemble"][split][metric],
        "soup": (summary["soup"] or {}).get(split, {}).get(metric),
        "failed": ", ".join(str(run["seed"]) for run in summary["runs"] if run["failure"]) or "none",
    }


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4f}"


def main() -> None:
    asked = read_options(
        __doc__, "recipes+ model data limit threads", runs=Path, seeds=5, output=RESULTS / "seeds.jsonl"
    )
    for recipe in asked.recipes:
        case = make_case(recipe, asked.model, asked.data, limit=asked.limit)
        key = {"recipe": recipe, "seeds": asked.seeds, "limit": case.limit, "model": Path(case.model).name}
        line = measure_once(asked.output, {"key": key}, partial(measure, case, asked))
        print(seeds_part([line]), flush=True)


if __name__ == "__main__":
    main()
