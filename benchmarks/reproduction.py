"""Published scores of each recipe, and scores of finished runs.

    python -m benchmarks.reproduction RUN ...

Appends the scores of each run to benchmarks/results/reproduction.jsonl; `python -m benchmarks.report` writes the table
into docs/reproduction.md. If several runs have the same recipe, the table shows the last one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, Report, add_line, make_table, read_options
from bertkit.recipe import Recipe
from bertkit.recipe.load import load_recipe, recipe_names
from bertkit.reports.text import score_text


def read_run(folder: Path) -> Report:
    """Return the validation scores, rows and steps of a finished run."""
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    (result,) = (result for result in record["results"] if result["split"].startswith("validation"))
    return {
        "recipe": result["recipe"],
        "model": Path(result["model"]).name,
        "rows": record["rows"],
        "steps": record["steps"],
        **{name: result[name] for name in ("split", "scores", "intervals")},
    }


def reproduction_part(runs: Sequence[Report]) -> str:
    """Build a table with a row for each recipe that has published scores."""
    runs_by_recipe = {run["recipe"]: run for run in runs}
    recipes = [recipe for name in recipe_names("finetune") if (recipe := load_recipe(name)).published]
    rows = (_list_cells(recipe, runs_by_recipe.get(recipe.name)) for recipe in recipes)
    return make_table(("command", "published", "source", "here"), rows, "llll")


def _list_cells(recipe: Recipe, run: Report | None) -> tuple[str, ...]:
    published = []
    for entry in recipe.published:
        scores = ", ".join(f"{name} {_format_score(score)}" for name, score in entry.scores().items())
        published.append(f"{entry.model}, {entry.split}: {scores}")
    sources = dict.fromkeys(entry.source for entry in recipe.published)
    text, metric = "not run", recipe.best_metric
    if run:
        score = f"{metric} {score_text(run['scores'][metric])} ({_format_score(run['intervals'][metric])})"
        text = f"{run['model']}: {score}, {run['rows']['train']:,} training rows"
    return f"`bertkit finetune {recipe.name}`", "<br>".join(published), "<br>".join(sources), text


def _format_score(score: Any) -> str:
    return " to ".join(map(score_text, score)) if isinstance(score, list) else score_text(score)


def main() -> None:
    options = read_options(__doc__, "runs+", output=RESULTS / "reproduction.jsonl")
    for run in options.runs:
        add_line(options.output, read_run(Path(run)))


if __name__ == "__main__":
    main()
