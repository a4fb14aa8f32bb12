"""`bertkit pretrain`: pretrain with a recipe, train a tokenizer, list the sizes of new models."""

from __future__ import annotations

from typing import Any

from bertkit.cli.parsing import ReadableGroup

ORDER = 15
HELP = (
    "Pretrain an encoder on text, or train a tokenizer for it.\n\n"
    "Start with: bertkit pretrain tokenizer --data text.txt --output tok, then "
    "bertkit pretrain mlm --data text.txt --tokenizer tok --size small"
)


class RecipeOrCommand(ReadableGroup):
    """A group in which `bertkit pretrain mlm` is short for `bertkit pretrain recipe mlm`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first argument names, or `recipe` if it names none."""
        return super().resolve_command(ctx, args if args[0] in self.commands else ["recipe", *args])


GROUP = RecipeOrCommand
