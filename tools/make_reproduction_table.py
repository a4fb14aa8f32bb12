"""Write the table of docs/reproduction.md: what papers report, and the scores of runs here.

    python tools/make_reproduction_table.py [RUN ...]

Published scores are those of the recipes. The scores of finished runs are kept in benchmarks/results/reproduction.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from bertkit.recipe import Recipe
from bertkit.recipe.load import load_recipe, recipe_names
from bertkit.reports.text import score_text

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reproduction.md"
RESULTS = ROOT / "benchmarks" / "results" / "reproduction.json"
BEGIN, END = "<!-- reproduction -->\n", "<!-- end of reproduction -->\n"


def add_run(measured: dict[str, Any], run: Path) -> None:
    """Keep the scores of a finished run under the name of its recipe."""
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    (result,) = (result for result in record["results"] if result["split"].startswith("validation"))
    kept = ("split", "scores", "intervals")
    settings = {"model": Path(result["model"]).name, "rows": record["rows"], "steps": record["steps"]}
    measured[result["recipe"]] = settings | {name: result[name] for name in kept}


def reproduction_table(measured: dict[str, Any]) -> str:
    """Return the table in Markdown, a row for each recipe with published scores."""
    recipes = [recipe for name in recipe_names("finetune") if (recipe := load_recipe(name)).published]
    head = "| command | published | source | here |\n|---|---|---|---|\n"
    return head + "".join(f"{_row(recipe, measured.get(recipe.name))}\n" for recipe in recipes)


def _row(recipe: Recipe, here: dict[str, Any] | None) -> str:
    published = [
        f"{one.model}, {one.split}: {', '.join(f'{name} {_score(score)}' for name, score in one.scores().items())}"
        for one in recipe.published
    ]
    sources = dict.fromkeys(one.source for one in recipe.published)
    shown = "not run"
    if here is not None:
        metric = recipe.best_metric
        low, high = here["intervals"][metric]
        score = f"{metric} {score_text(here['scores'][metric])} ({score_text(low)} to {score_text(high)})"
        shown = f"{here['model']}: {score}, {here['rows']['train']:,} training rows"
    return f"| `bertkit finetune {recipe.name}` | {'<br>'.join(published)} | {'<br>'.join(sources)} | {shown} |"


def _score(score: Any) -> str:
    return " to ".join(map(score_text, score)) if isinstance(score, list) else score_text(score)


def with_table(page: str) -> str:
    """Return the page with the table of what the recipes and the results say."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{reproduction_table(json.loads(RESULTS.read_text(encoding='utf-8')))}\n{END}{after}"


if __name__ == "__main__":
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for folder in sys.argv[1:]:
        add_run(results, Path(folder))
    RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{PAGE}: written")
