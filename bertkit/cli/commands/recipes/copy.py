"""`bertkit recipes copy`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from bertkit.cli.options import RecipeArgument, argument
from bertkit.cli.output import print_file
from bertkit.errors import UsageError
from bertkit.storage.files import write_text

ORDER = 3
EXAMPLE = "bertkit recipes copy cola mine.yaml"


def command(
    recipe: RecipeArgument,
    file: Annotated[Path, argument("The new recipe; must not exist yet.", "FILE")],
) -> None:
    """Copy a recipe to a file of your own."""
    from bertkit.recipe import find_recipe, recipe_command, typed_path

    file = typed_path(file)
    text = find_recipe(recipe).read_text(encoding="utf-8")
    if file.exists() or file.is_symlink():
        raise UsageError(f"{file} exists already", "nothing was written; choose another name")
    write_text(file, text)
    print_file(file, 1, next_command=f"bertkit {recipe_command(recipe)} {file}")
