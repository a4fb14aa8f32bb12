"""`bertkit recipes`: list, show, copy, check."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bertkit.cli.options import JsonOption, RecipeArgument, SetOption

app = typer.Typer(help="List, show, copy and check recipes.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list", epilog="Example: bertkit recipes list")
def list_recipes(json: JsonOption = False) -> None:
    """List the shipped recipes."""
    from bertkit.cli import show
    from bertkit.recipe import load_any_recipe, recipe_names

    names = [*recipe_names("finetune"), *recipe_names("pretrain")]
    show.show_table("recipes", {name: load_any_recipe(name).about for name in names}, as_json=json)


@app.command("show", epilog="Example: bertkit recipes show cola --set training.epochs=1")
def show_recipe(recipe: RecipeArgument, changes: SetOption = None, json: JsonOption = False) -> None:
    """Print a recipe as it is resolved, every default included."""
    from bertkit.cli import show
    from bertkit.recipe import load_any_recipe, parse_changes

    show.show_recipe(load_any_recipe(recipe, parse_changes(changes or [])), as_json=json)


@app.command("copy", epilog="Example: bertkit recipes copy cola mine.yaml")
def copy_recipe(
    recipe: RecipeArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The new recipe; must not exist yet.")],
    json: JsonOption = False,
) -> None:
    """Copy a recipe to a file of your own."""
    from bertkit.cli import show
    from bertkit.errors import UsageError
    from bertkit.recipe import find_recipe, recipe_command

    text = find_recipe(recipe).read_text(encoding="utf-8")
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise UsageError(f"{file} exists already", "nothing was written; choose another name") from None
    show.show_written(file, 1, as_json=json, hint=f"bertkit {recipe_command(recipe)} {file}")


@app.command("check", epilog="Example: bertkit recipes check mine.yaml")
def check_recipe(recipe: RecipeArgument, changes: SetOption = None, json: JsonOption = False) -> None:
    """Check a recipe: its keys and values, its task family and metrics, or its objective."""
    from bertkit.cli import show
    from bertkit.recipe import PretrainRecipe, load_any_recipe, parse_changes

    loaded = load_any_recipe(recipe, parse_changes(changes or []))
    if isinstance(loaded, PretrainRecipe):
        from bertkit.objectives import load_objective

        load_objective(loaded)
    else:
        from bertkit.tasks import load_task

        load_task(loaded)
    show.show_table("checked", {recipe: "is a good recipe"}, as_json=json)
