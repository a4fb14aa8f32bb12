"""The numbers that `auto` chooses beside the best of some fixed ones, for rows as users have them: one file of a few.

    python -m benchmarks.own_data --models MODEL ... --data DATA [--sets cr conll] [--seeds 1 2 3]

DATA has a folder per set, as `benchmarks.public_sets` writes it: `train.jsonl` and `validation.jsonl` in canonical
columns (`text`, `text_pair` and `label`, or `tokens` and `tags`). Each run draws its rows by its seed, holds a tenth of
them out as any run of one file does, and is scored on rows of `validation.jsonl` that are not among its training rows.
Every run is one line of the output file, and one that is there is not repeated. `--recipe few-shot` runs that recipe in
place of the fixed numbers. `python -m benchmarks.report` writes the table.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.few_shot import digest_of
from benchmarks.harness import RESULTS, Report, finetune_here, measure_once, read_lines, read_options, table, write_rows

RECIPES = {"stsb": "regress", "conll": "tag"}
METRICS = {"stsb": "spearmanr", "conll": "f1"}
PAIRS = ("stsb", "mrpc")
ROWS = {"banking77": 2000}
# the best of six pairs of fixed numbers that a screening of each set found
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


def run(key: Mapping[str, Any], model: Path, data: Path) -> Report:
    """Fine-tune on the rows of a key, and score the run on new rows."""
    from bertkit.recipe import load_recipe
    from bertkit.workflows.evaluate import evaluate

    start, name, metric = time.process_time(), key["set"], METRICS.get(key["set"], "accuracy")
    rows = read_lines(data / name / "train.jsonl")
    random.Random(key["seed"]).shuffle(rows)
    changes: Report = {"data.cache": False, "training.seed": key["seed"]}
    changes |= {f"training.{setting}": value for setting, value in key["settings"].items()}
    changes |= {"data.columns.text_pair": "text_pair"} if name in PAIRS else {}
    changes |= {} if name in METRICS else {"metrics": ["accuracy", "f1_macro"], "best_metric": "accuracy"}
    if key["settings"]:  # the last step counts, as the fixed numbers were found
        changes.setdefault("training.evaluate_every", 10**6)
    recipe = key.get("recipe") or RECIPES.get(name, "classify")
    with tempfile.TemporaryDirectory() as temporary:
        drawn, folder = Path(temporary, "rows.jsonl"), Path(temporary, "run")
        write_rows(rows[: key["rows"]], drawn)
        finetune_here(recipe, {**changes, "model": str(model), "data.source": str(drawn)}, folder)
        new = {"data.source": str(data / name / "validation.jsonl"), "model": str(folder)}
        [result] = evaluate(load_recipe(recipe, {**changes, **new}), training_rows="drop")
        steps = json.loads((folder / "run.json").read_text(encoding="utf-8"))["steps"]
    best = [scores[metric] for scores in result.baselines.values() if scores.get(metric) is not None]
    return {
        "metric": metric,
        "score": result.scores[metric],
        "baseline": max(best, default=None),
        "steps": steps,
        "cpu_seconds": round(time.process_time() - start, 1),
    }


def own_data_part(runs: Sequence[Report]) -> str:
    """Build a table of mean scores over seeds, with the paired difference of `auto` and fixed numbers."""
    groups: dict[tuple[Any, ...], dict[str, dict[int, Report]]] = {}
    for report in runs:
        key = report["key"]
        recipe, settings = key.get("recipe", ""), key["settings"]
        if recipe and settings:
            recipe, settings = f"{recipe}`, {settings['steps']} `steps", {}
        side = {"{}": "auto", json.dumps(FIXED[key["set"]]): "fixed"}.get(json.dumps(settings), "other")
        of_set = groups.setdefault((key["set"], key["rows"], key["layers"], recipe), {})
        of_set.setdefault(side, {})[key["seed"]] = report
    cells = []
    for (name, rows, layers, recipe), sides in sorted(groups.items()):
        auto, fixed = sides.get("auto", {}), sides.get("fixed", {})
        if not auto:
            continue
        numbers = " ".join(f"{setting} {value:g}" for setting, value in FIXED[name].items())
        means = [_mean(auto, "baseline"), _mean(auto, "score")]
        both = [auto[seed]["score"] - fixed[seed]["score"] for seed in sorted(auto.keys() & fixed.keys())]
        metric = next(iter(auto.values()))["metric"]
        of_fixed = f"{_mean(fixed, 'score')} ({numbers})" if fixed else ""
        differences = ", ".join(f"{difference:+.3f}" for difference in both)
        seconds = f"{statistics.mean(run['cpu_seconds'] for run in auto.values()):.0f}"
        name = f"{name} (`{recipe}`)" if recipe else name
        cells.append([name, f"{rows:,}", layers, metric, *means, of_fixed, differences, seconds])
    titles = ("set", "rows", "layers", "metric", "baseline", "`auto`", "fixed numbers", "`auto` minus fixed, by seed")
    return table([*titles, "seconds"], cells, "lrrlrrllr")


def _mean(runs: Mapping[int, Report], name: str) -> str:
    known = [run[name] for run in runs.values() if run[name] is not None]
    return f"{statistics.mean(known):.3f}" if known else ""


def main() -> None:
    own = {"models": [Path], "sets": ["cr", "conll", "stsb", "banking77"], "seeds": [1, 2, 3], "recipe": str}
    own |= {"rows": (int, "the same number for each set"), "output": RESULTS / "own_data.jsonl"}
    asked = read_options(__doc__, "data", **own, settings=([json.loads], "other fixed numbers, each a JSON object"))
    runs = []
    for model, seed, name in product(asked.models, asked.seeds, asked.sets):
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        common = {"model": digest_of(model), "layers": config["num_hidden_layers"]}
        common |= {"recipe": asked.recipe} if asked.recipe else {}
        rows = asked.rows or ROWS.get(name, 1000)
        for settings in asked.settings or (({},) if asked.recipe else ({}, FIXED[name])):
            key = {"set": name, "rows": rows, "settings": settings, "seed": seed, **common}
            runs.append(measure_once(asked.output, {"key": key}, partial(run, key, model, asked.data)))
    print(own_data_part(runs))


if __name__ == "__main__":
    main()
