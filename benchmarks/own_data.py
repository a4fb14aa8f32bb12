"""The numbers that `auto` chooses beside the best of some fixed ones, for rows as users have them: one file of a few.

    python -m benchmarks.own_data --models MODEL ... --data DATA [--sets cr conll] [--seeds 1 2 3]

DATA has a folder per set, as `benchmarks.public_sets` writes it: `train.jsonl` and `validation.jsonl` in canonical
columns (`text`, `text_pair` and `label`, or `tokens` and `tags`). Each run draws its rows by its seed, holds a tenth of
them out as any run of one file does, and is scored on rows of `validation.jsonl` that are not among its training rows.
Every run is one line of the output file, and one that is there is not repeated. `--recipe few-shot` runs that recipe in
place of the fixed numbers. `python -m benchmarks.report` writes the table.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cases import ROOT
from benchmarks.few_shot import digest_of
from benchmarks.quality import find_run

Report = dict[str, Any]

RESULTS = ROOT / "benchmarks" / "results" / "own_data.jsonl"
RECIPES = {"stsb": "regress", "conll": "tag"}
METRICS = {"stsb": "spearmanr", "conll": "f1"}
PAIRS = ("stsb", "mrpc")
ROWS = {"banking77": 2000}
SCREENED = (200, 600)
"""Numbers of rows that the six settings were screened with."""
# the best of the fixed numbers that a screening of each set found
FIXED: dict[str, dict[str, float]] = {
    "cr": {"epochs": 10, "learning_rate": 5e-5},
    "subj": {"epochs": 10, "learning_rate": 5e-5},
    "sst2": {"epochs": 20, "learning_rate": 5e-5},
    "trec": {"epochs": 20, "learning_rate": 5e-5},
    "banking77": {"epochs": 20, "learning_rate": 1e-4},
    "mrpc": {"epochs": 20, "learning_rate": 5e-5},
    "stsb": {"epochs": 15, "learning_rate": 1e-4},
    "conll": {"epochs": 15, "learning_rate": 1e-4},
}


def run(key: Mapping[str, Any], model: Path, data: Path, folder: Path) -> Report:
    """Fine-tune on the rows of a key, and score the run on new rows."""
    from bertkit.recipe import load_recipe
    from bertkit.workflows.evaluate import evaluate
    from bertkit.workflows.finetune import finetune

    name, metric = key["set"], METRICS.get(key["set"], "accuracy")
    lines = (data / name / "train.jsonl").read_text(encoding="utf-8").rstrip("\n").split("\n")
    random.Random(key["seed"]).shuffle(lines)
    rows = folder / "rows.jsonl"
    rows.write_text("\n".join(lines[: key["rows"]]) + "\n", encoding="utf-8")
    changes: Report = {"data.cache": False, "training.seed": key["seed"]}
    changes |= {f"training.{setting}": value for setting, value in key["settings"].items()}
    changes |= {"data.columns.text_pair": "text_pair"} if name in PAIRS else {}
    changes |= {} if name in METRICS else {"metrics": ["accuracy", "f1_macro"], "best_metric": "accuracy"}
    if key["settings"]:  # the last step counts, as the fixed numbers were found
        changes.setdefault("training.evaluate_every", 10**6)
    recipe = key.get("recipe") or RECIPES.get(name, "classify")
    finetune(load_recipe(recipe, {**changes, "model": str(model), "data.source": str(rows)}), output=folder / "run")
    new = {"data.source": str(data / name / "validation.jsonl"), "model": str(folder / "run")}
    [result] = evaluate(load_recipe(recipe, {**changes, **new}), training_rows="drop")
    record = json.loads((folder / "run" / "run.json").read_text(encoding="utf-8"))
    best = [scores.get(metric) for scores in result.baselines.values()]
    return {
        "metric": metric,
        "score": result.scores[metric],
        "baseline": max((score for score in best if score is not None), default=None),
        "steps": record["steps"],
    }


def run_or_read(key: Report, model: Path, data: Path, output: Path) -> Report:
    """Return a run of the output file; where it is not there, run it first."""
    if recorded := find_run(key, output):
        return recorded
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        report = {"key": key, **run(key, model, data, Path(folder))}
    report["cpu_seconds"] = round(time.process_time() - start, 1)
    with output.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(report) + "\n")
    print(json.dumps(report), flush=True)
    return report


def own_data_part(runs: Sequence[Report]) -> str:
    """Build the tables of `auto` beside fixed numbers, of the settings screened, and of steps that rows have chosen."""
    parts = [_rule_table(runs)]
    for title, table in (("Settings screened", _screening_table(runs)), ("Choosing a step", _choice_table(runs))):
        if table:
            parts.append(f"#### {title}\n\n{table}")
    return "\n\n".join(parts)


def _rule_table(runs: Sequence[Report]) -> str:
    """Build a table of mean scores over seeds, with the paired difference of `auto` and fixed numbers."""
    lines = [
        "| set | rows | layers | metric | baseline | `auto` | fixed numbers | `auto` minus fixed, by seed | seconds |",
        "|---|---:|---:|---|---:|---:|---|---|---:|",
    ]
    groups: dict[tuple[Any, ...], dict[str, dict[int, Report]]] = {}
    for report in runs:
        key = report["key"]
        recipe, settings = key.get("recipe", ""), key["settings"]
        if recipe and settings:
            recipe, settings = f"{recipe}`, {settings['steps']} `steps", {}
        side = {"{}": "auto", json.dumps(FIXED[key["set"]]): "fixed"}.get(json.dumps(settings))
        of_set = groups.setdefault((key["set"], key["rows"], key["layers"], recipe), {})
        if side:
            of_set.setdefault(side, {})[key["seed"]] = report
    for (name, rows, layers, recipe), sides in sorted(groups.items()):
        auto, fixed = sides.get("auto", {}), sides.get("fixed", {})
        is_screened = rows in SCREENED and len(auto) < 2 and not recipe  # in the table of the screening
        if not auto or is_screened:
            continue
        numbers = " ".join(f"{setting} {value:g}" for setting, value in FIXED[name].items())
        both = [auto[seed]["score"] - fixed[seed]["score"] for seed in sorted(auto.keys() & fixed.keys())]
        report = next(iter(auto.values()))
        cells = [
            f"{name} (`{recipe}`)" if recipe else name,
            f"{rows:,}",
            str(layers),
            report["metric"],
            _mean([run["baseline"] for run in auto.values()]),
            _mean([run["score"] for run in auto.values()]),
            f"{_mean([run['score'] for run in fixed.values()])} ({numbers})" if fixed else "",
            ", ".join(f"{difference:+.3f}" for difference in both),
            f"{statistics.mean(run['cpu_seconds'] for run in auto.values()):.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _screening_table(runs: Sequence[Report]) -> str:
    """Build a table with a column for each number of epochs and rate that was screened, of the first seed."""
    by_set: dict[tuple[str, int], dict[str, Report]] = {}
    for report in runs:
        key = report["key"]
        if key["rows"] in SCREENED and key["seed"] == 1 and not key.get("recipe"):
            by_set.setdefault((key["set"], key["rows"]), {})[json.dumps(key["settings"])] = report
    settings = [{"epochs": epochs, "learning_rate": rate} for epochs in (10, 20) for rate in (2e-5, 5e-5, 1e-4)]
    names = [f"{each['epochs']} epochs, {each['learning_rate']:g}" for each in settings]
    lines = [f"| set | rows | baseline | `auto` | {' | '.join(names)} |", f"|---|---:{'|---:' * (2 + len(names))}|"]
    columns = ["{}", *map(json.dumps, settings)]
    for (name, rows), reports in sorted(by_set.items(), key=lambda item: (item[0][1], item[0][0])):
        if all(column in reports for column in columns):
            scores = [reports["{}"]["baseline"], *(reports[column]["score"] for column in columns)]
            lines.append(f"| {name} | {rows:,} | {' | '.join(f'{score:.3f}' for score in scores)} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def _choice_table(runs: Sequence[Report]) -> str:
    """Build a table of runs whose last step counts, beside those of which 100 held-out rows chose a step."""
    lines = [
        "| set | rows held out | seed | last step | best of ten, patience 4 | difference |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    last = {_identity(run): run for run in runs if not run["key"]["settings"]}
    for report in sorted(runs, key=lambda run: (run["key"]["set"], run["key"]["seed"])):
        key, other = report["key"], last.get(_identity(report))
        if "patience" in key["settings"] and other:
            scores = other["score"], report["score"]
            cells = [key["set"], str(key["rows"] // 10), str(key["seed"]), *(f"{score:.3f}" for score in scores)]
            lines.append(f"| {' | '.join(cells)} | {scores[1] - scores[0]:+.3f} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def _identity(report: Report) -> str:
    return json.dumps({name: value for name, value in report["key"].items() if name != "settings"})


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.mean(known):.3f}" if known else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", required=True, nargs="+", type=Path, help="folders of encoders")
    parser.add_argument("--data", required=True, type=Path, help="folder with a folder per set")
    parser.add_argument("--sets", nargs="+", default=["cr", "conll", "stsb", "banking77"], choices=list(FIXED))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--rows", type=int, help="the same number for each set")
    parser.add_argument("--settings", nargs="+", type=json.loads, help="other fixed numbers, each a JSON object")
    parser.add_argument("--recipe", help="another one for the same rows")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    runs = []
    for model in arguments.models:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        common = {"model": digest_of(model), "layers": config["num_hidden_layers"]}
        common |= {"recipe": arguments.recipe} if arguments.recipe else {}
        for seed in arguments.seeds:
            for name in arguments.sets:
                rows = arguments.rows or ROWS.get(name, 1000)
                for settings in arguments.settings or (({},) if arguments.recipe else ({}, FIXED[name])):
                    key = {"set": name, "rows": rows, "settings": settings, "seed": seed, **common}
                    runs.append(run_or_read(key, model, arguments.data, arguments.output))
    print(own_data_part(runs))


if __name__ == "__main__":
    main()
