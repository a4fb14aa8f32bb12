"""`bertkit recipes`: list, show, copy and check recipes."""

from __future__ import annotations

import typer

from bertkit.cli.help import ReadableGroup

NAME = "recipes"
ORDER = 8

app = typer.Typer(
    cls=ReadableGroup, help="List, show, copy and check recipes.", no_args_is_help=True, rich_markup_mode=None
)
