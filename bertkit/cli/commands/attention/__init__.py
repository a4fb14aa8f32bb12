"""`bertkit attention`: what the heads of an encoder attend to."""

from __future__ import annotations

import typer

from bertkit.cli.help import ReadableGroup

NAME = "attention"
ORDER = 5

WARNING = "Attention says what heads read, and is no explanation of an answer: for that, see `bertkit explain`."

app = typer.Typer(
    cls=ReadableGroup,
    help="Show and measure what the heads of an encoder attend to.\n\n"
    'Start with: bertkit attention show "The cat sat on the mat." --model demo --output page.html',
    no_args_is_help=True,
    rich_markup_mode=None,
)
