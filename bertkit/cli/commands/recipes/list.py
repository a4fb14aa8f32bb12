"""`bertkit recipes list`."""

from __future__ import annotations

from bertkit.cli.options import JsonOption
from bertkit.cli.output import print_pairs

NAME = "list"
ORDER = 1
EXAMPLE = "bertkit recipes list"


def command(json: JsonOption = False) -> None:
    """List the shipped recipes."""
    from bertkit.recipe import load_any_recipe, recipe_names

    names = [*recipe_names("finetune"), *recipe_names("pretrain")]
    print_pairs("recipes", {name: load_any_recipe(name).about for name in names}, as_json=json)
