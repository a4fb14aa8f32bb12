"""`bertkit recipes guess`."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from bertkit.cli.options import argument, output_option
from bertkit.cli.output import print_line, print_next, print_result
from bertkit.errors import UsageError
from bertkit.storage.files import write_text

ORDER = 4
EXAMPLE = "bertkit recipes guess reviews.csv --output reviews.yaml"


def command(
    file: Annotated[str, argument("File of rows.", "FILE")],
    output: Annotated[Path | None, output_option("Write the recipe to this new file.", "FILE")] = None,
) -> None:
    """Guess a recipe for a file from its first rows: which column is what, and why."""
    from bertkit.data.guess import guess_recipe
    from bertkit.recipe import typed_path, write_yaml

    target = typed_path(output) if output else None
    if target and (target.exists() or target.is_symlink()):
        raise UsageError(f"{target} exists already", "nothing was written; choose another name")
    guess = guess_recipe(file)
    recipe = {"extends": guess.extends, "data": {"source": file, "columns": guess.columns}}
    reasons = [f"{canonical} is {guess.columns[canonical]!r}: {why}" for canonical, why in guess.why.items()]
    also = [f"the label might also be {', '.join(guess.others)}"] if guess.others else []
    text = write_yaml(recipe, comment="\n# ".join([f"Guessed from {guess.rows:,} rows; check it.", *reasons, *also]))
    if target:
        write_text(target, text)

    def show(_: object) -> None:
        for line in text.splitlines():
            print_line(line)
        name = shlex.quote(str(target or "FILE.yaml"))
        print_next(f"bertkit check {name}", f"bertkit finetune {name}")

    print_result({**asdict(guess), "recipe": recipe, "file": str(target) if target else None}, show)
