"""`bertkit recipes list`."""

from __future__ import annotations

from bertkit.cli.output import print_line, print_pairs, print_result

ORDER = 1
EXAMPLE = "bertkit recipes list"


def command() -> None:
    """List the shipped recipes: those of fine-tuning, then those of pretraining."""
    from bertkit.recipe import load_any_recipe, recipe_names

    groups = {
        command: {name: load_any_recipe(name).about for name in recipe_names(command)}
        for command in ("finetune", "pretrain")
    }
    print_result({"recipes": groups["finetune"] | groups["pretrain"]}, lambda _: _print_groups(groups))


def _print_groups(groups: dict[str, dict[str, str]]) -> None:
    print_line("Fine-tuning")
    print_pairs(groups["finetune"])
    print_line("\nPretraining")
    print_pairs(groups["pretrain"])
