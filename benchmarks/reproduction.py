"""Published scores of each recipe, and those of finished runs beside them.

    python -m benchmarks.reproduction RUN ...

The scores of each run become a line of benchmarks/results/reproduction.jsonl; `python -m benchmarks.report` writes the
table into docs/reproduction.md. Of several runs with one recipe, the last counts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, Report, add_line, read_options, table
from bertkit.recipe import Recipe
from bertkit.recipe.load import load_recipe, recipe_names
from bertkit.reports.text import score_text


def read_run(folder: Path) -> Report:
    """Return what the table says of a finished run: its validation scores, and what it was trained on."""
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
    """Return a table with a row for each recipe that has published scores."""
    measured = {run["recipe"]: run for run in runs}
    recipes = [recipe for name in recipe_names("finetune") if (recipe := load_recipe(name)).published]
    rows = (_cells(recipe, measured.get(recipe.name)) for recipe in recipes)
    return table(("command", "published", "source", "here"), rows, "llll")


def _cells(recipe: Recipe, here: Report | None) -> tuple[str, ...]:
    published = []
    for entry in recipe.published:
        scores = ", ".join(f"{name} {_score(score)}" for name, score in entry.scores().items())
        published.append(f"{entry.model}, {entry.split}: {scores}")
    sources = dict.fromkeys(entry.source for entry in recipe.published)
    shown = "not run"
    if here is not None:
        metric = recipe.best_metric
        interval = _score(here["intervals"][metric])
        score = f"{metric} {score_text(here['scores'][metric])} ({interval})"
        shown = f"{here['model']}: {score}, {here['rows']['train']:,} training rows"
    return f"`bertkit finetune {recipe.name}`", "<br>".join(published), "<br>".join(sources), shown


def _score(score: Any) -> str:
    return " to ".join(map(score_text, score)) if isinstance(score, list) else score_text(score)


def main() -> None:
    asked = read_options(__doc__, "runs+", output=RESULTS / "reproduction.jsonl")
    for run in asked.runs:
        add_line(asked.output, read_run(Path(run)))


if __name__ == "__main__":
    main()
