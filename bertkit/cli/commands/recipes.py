"""`bertkit recipes`: list, show, copy, check and guess recipes."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from bertkit.cli.options import RecipeArgument, argument, output_option, recipe_options
from bertkit.cli.output import print_file, print_line, print_next, print_pairs, print_result
from bertkit.errors import ResourceError, UsageError
from bertkit.storage.files import write_text

ORDER = 60
HELP = "List, show, copy and check recipes."


def list_recipes() -> None:
    """List the shipped recipes for fine-tuning and pretraining."""
    from bertkit.recipe.load import load_any_recipe, recipe_names

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


@recipe_options()
def show_recipe(recipe: RecipeArgument, changes: dict[str, Any]) -> None:
    """Print a recipe with every default filled in."""
    from bertkit.recipe.load import load_any_recipe
    from bertkit.recipe.yaml import write_yaml

    values = load_any_recipe(recipe, changes).model_dump(mode="json")
    print_result({"recipe": values}, lambda _: print_line(write_yaml(values).rstrip()))


def copy_recipe(
    recipe: RecipeArgument,
    file: Annotated[Path, argument("File to write; it must not exist.", "FILE")],
) -> None:
    """Copy a recipe to a new file."""
    from bertkit.recipe import find_recipe
    from bertkit.recipe.load import recipe_command
    from bertkit.recipe.sections import expand_path

    file = expand_path(file)
    # The file is copied as text, because its comments explain its values.
    text = find_recipe(recipe).read_text(encoding="utf-8")
    # `exists` is false for a link to a missing file, which would be replaced.
    if file.exists() or file.is_symlink():
        raise UsageError(f"{file} exists already", "name another file; nothing was written")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(f"cannot be written: {error.strerror}", "choose another name", file=file) from None
    write_text(file, text)
    print_file(file, 1, next_command=f"bertkit {recipe_command(recipe)} {file}")


@recipe_options()
def check_recipe(recipe: RecipeArgument, changes: dict[str, Any]) -> None:
    """Check the keys, values, task and metrics of a recipe."""
    from bertkit.recipe.load import load_any_recipe
    from bertkit.recipe.records import PretrainRecipe

    loaded_recipe = load_any_recipe(recipe, changes)
    # Loading the recipe checks keys and values; loading the task or objective checks options, metrics and columns.
    if isinstance(loaded_recipe, PretrainRecipe):
        from bertkit.pretraining.objectives import load_objective

        load_objective(loaded_recipe)
    else:
        from bertkit.tasks import load_task

        load_task(loaded_recipe)
    print_result({"checked": {recipe: "valid"}}, lambda values: print_pairs(values["checked"]))


def write_guess(
    file: Annotated[str, argument("File with rows.", "FILE")],
    output: Annotated[Path | None, output_option("File to write the recipe to; it must not exist.", "FILE")] = None,
) -> None:
    """Guess a recipe for a file from its first rows, with the reason for each column."""
    from bertkit.data.guess import guess_recipe
    from bertkit.recipe.sections import expand_path
    from bertkit.recipe.yaml import write_yaml

    target = expand_path(output) if output else None
    if target and (target.exists() or target.is_symlink()):
        raise UsageError(f"{target} exists already", "name another file; nothing was written")
    guess = guess_recipe(file)
    recipe = {"extends": guess.extends, "data": {"source": file, "columns": guess.columns}}
    reasons = [f"{canonical} is {guess.columns[canonical]!r}: {reason}" for canonical, reason in guess.reasons.items()]
    if guess.alternatives:
        reasons.append(f"the label might also be {', '.join(guess.alternatives)}")
    text = write_yaml(recipe, comment="\n# ".join([f"Guessed from {guess.rows:,} rows; check it.", *reasons]))
    if target:
        write_text(target, text)

    def show(_: object) -> None:
        for line in text.splitlines():
            print_line(line)
        # Without --output, the recipe is all that stdout gets, so that it can be redirected to a file.
        if target:
            name = shlex.quote(str(target))
            print_next(f"bertkit check {name}", f"bertkit finetune {name}")

    print_result({**asdict(guess), "recipe": recipe, "file": str(target) if target else None}, show)


COMMANDS = {
    "list": (list_recipes, "bertkit recipes list"),
    "show": (show_recipe, "bertkit recipes show cola --set training.epochs=1"),
    "copy": (copy_recipe, "bertkit recipes copy cola mine.yaml"),
    "check": (check_recipe, "bertkit recipes check mine.yaml"),
    "guess": (write_guess, "bertkit recipes guess reviews.csv --output reviews.yaml"),
}
