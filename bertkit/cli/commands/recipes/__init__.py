"""`bertkit recipes`: list, show, copy and check recipes."""

from __future__ import annotations

import typer

NAME = "recipes"
ORDER = 8

app = typer.Typer(help="List, show, copy and check recipes.", no_args_is_help=True, rich_markup_mode=None)
