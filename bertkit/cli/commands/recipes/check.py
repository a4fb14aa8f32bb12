"""`bertkit recipes check`."""

from __future__ import annotations

from bertkit.cli.options import RecipeArgument, SetOption
from bertkit.cli.output import print_pairs, print_result

ORDER = 4
EXAMPLE = "bertkit recipes check mine.yaml"


def command(recipe: RecipeArgument, changes: SetOption = None) -> None:
    """Check the keys, values, task and metrics of a recipe."""
    from bertkit.recipe import PretrainRecipe, load_any_recipe, parse_changes

    loaded = load_any_recipe(recipe, parse_changes(changes or []))
    if isinstance(loaded, PretrainRecipe):
        from bertkit.pretraining.objectives import load_objective

        load_objective(loaded)
    else:
        from bertkit.tasks import load_task

        load_task(loaded)
    print_result({"checked": {recipe: "valid"}}, lambda found: print_pairs(found["checked"]))
