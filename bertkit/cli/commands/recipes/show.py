"""`bertkit recipes show`."""

from __future__ import annotations

from bertkit.cli.options import RecipeArgument, SetOption
from bertkit.cli.output import print_line, print_result

ORDER = 2
EXAMPLE = "bertkit recipes show cola --set training.epochs=1"


def command(recipe: RecipeArgument, changes: SetOption = None) -> None:
    """Print a recipe with every default filled in."""
    from bertkit.recipe import load_any_recipe, parse_changes, write_yaml

    values = load_any_recipe(recipe, parse_changes(changes or [])).model_dump(mode="json")
    print_result({"recipe": values}, lambda _: print_line(write_yaml(values).rstrip()))
