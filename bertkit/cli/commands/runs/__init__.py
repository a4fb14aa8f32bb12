"""`bertkit runs`: list, show, tabulate, trim and delete run folders."""

from __future__ import annotations

import typer

from bertkit.cli.help import ReadableGroup

NAME = "runs"
ORDER = 8

app = typer.Typer(
    cls=ReadableGroup,
    help="List, show, tabulate, trim and delete run folders.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
