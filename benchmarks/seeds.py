"""Scores of recipes over seeds: their spread and interval, the ensemble of the runs, and the soup of their weights.

    python -m benchmarks.seeds rte stsb cola ner --model DIR --data DIR --runs DIR [--seeds 5] [--limit N]

Each recipe that is done is one line of the output file, and is not repeated. The runs stay in `--runs`, so the same
command goes on where it was stopped. Scores are those of the validation splits; no setting of a recipe is changed but
the precision, which is bf16 whatever this machine would take.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cases import ROOT, Case, add_options, environment, make_case
from benchmarks.load import machine
from benchmarks.quality import find_run

OUTPUT = ROOT / "benchmarks" / "results" / "seeds.jsonl"


def run_command(arguments: Sequence[object], threads: int) -> dict[str, Any]:
    """Run a bertkit command and return what it prints as JSON; its talk goes to stderr."""
    command = [sys.executable, "-m", "bertkit", *map(str, arguments), "--json"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, env=environment(threads), text=True, check=False)
    if ended.returncode:
        sys.exit(f"{' '.join(command)} ended with {ended.returncode}")
    result: dict[str, Any] = json.loads(ended.stdout)
    return result


def measure(case: Case, seeds: int, runs: Path, threads: int) -> dict[str, Any]:
    """Train a recipe with several seeds, and score their ensemble."""
    folder, start = runs / case.recipe, time.monotonic()
    changes = {key: value for key, value in case.changes().items() if not isinstance(value, dict)}
    changes |= {"training.precision": "bf16"}
    options = [word for key, value in changes.items() if key != "training.seed" for word in ("--set", f"{key}={value}")]
    summary = run_command(["finetune", case.recipe, *options, "--seeds", seeds, "--soup", "--output", folder], threads)
    results = run_command(["eval", folder / "seed-1" / "recipe.yaml", "--model", folder], threads)["results"]
    return {
        "summary": summary | {"folder": folder.name, "model": Path(case.model).name},
        "ensemble": {result["split"]: result["scores"] for result in results},
        "ensemble_intervals": {result["split"]: result["intervals"] for result in results},
        "seconds": round(time.monotonic() - start, 1),
    }


def seeds_part(lines: Sequence[dict[str, Any]]) -> str:
    """Build a table of the best metric of each recipe over seeds."""
    head = ["recipe", "metric", "rows", "seeds", "mean", "sd", "min", "median", "max", "95% interval"]
    head += ["expected best of 2", "ensemble", "soup", "failed"]
    rows = []
    for line in lines:
        summary, limit = line["summary"], line["key"]["limit"]
        of_split, metric = summary["splits"][0], summary["best_metric"]
        spread, split = of_split["spreads"][metric], of_split["split"]
        soup = (summary["soup"] or {}).get(split, {}).get(metric)
        low, high = spread["interval"] or (None, None)
        name = line["key"]["recipe"] + (f", {limit:,} training rows at most" if limit else "")
        cells = [name, metric, f"{of_split['rows']:,}", str(spread["runs"])]
        cells += [_number(spread[key]) for key in ("mean", "standard_deviation", "minimum", "median", "maximum")]
        cells += [f"{_number(low)} to {_number(high)}", _number((*spread["expected_best"], None, None)[1])]
        cells += [_number(line["ensemble"][split][metric]), _number(soup)]
        rows.append([*cells, ", ".join(str(run["seed"]) for run in summary["runs"] if run["failure"]) or "none"])
    rule = ["---", "---", *["---:"] * (len(head) - 3), "---"]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *rows])


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="+", metavar="RECIPE")
    add_options(parser)
    parser.add_argument("--runs", type=Path, required=True, help="folder that the runs are kept in")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    for recipe in arguments.recipes:
        case = make_case(recipe, arguments.model, arguments.data, limit=arguments.limit)
        key = {"recipe": recipe, "seeds": arguments.seeds, "limit": case.limit, "model": Path(case.model).name}
        line = find_run(key, arguments.output)
        if line is None:
            line = {"key": key, **measure(case, arguments.seeds, arguments.runs, arguments.threads)}
            facts = machine(arguments.threads)
            line |= {"versions": facts["versions"], "commit": facts["commit"], "threads": arguments.threads}
            arguments.output.parent.mkdir(parents=True, exist_ok=True)
            with arguments.output.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(line) + "\n")
        print(seeds_part([line]), flush=True)


if __name__ == "__main__":
    main()
