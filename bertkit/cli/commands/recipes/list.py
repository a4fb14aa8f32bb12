"""`bertkit recipes list`."""

from __future__ import annotations

from bertkit.cli.options import JsonOption
from bertkit.cli.output import print_json, print_line, print_pairs

NAME = "list"
ORDER = 1
EXAMPLE = "bertkit recipes list"


def command(json: JsonOption = False) -> None:
    """List the shipped recipes: those of fine-tuning, then those of pretraining."""
    from bertkit.recipe import load_any_recipe, recipe_names

    groups = {
        command: {name: load_any_recipe(name).about for name in recipe_names(command)}
        for command in ("finetune", "pretrain")
    }
    if json:
        print_json({"recipes": groups["finetune"] | groups["pretrain"]})
        return
    print_line("Fine-tuning")
    print_pairs("recipes", groups["finetune"], as_json=False)
    print_line("\nPretraining")
    print_pairs("recipes", groups["pretrain"], as_json=False)
