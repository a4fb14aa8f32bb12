"""`bertkit search`: build an index of texts, change it, and find what is nearest to a query."""

from __future__ import annotations

import typer

from bertkit.cli.help import ReadableGroup

NAME = "search"
ORDER = 6

app = typer.Typer(
    cls=ReadableGroup,
    help="Search texts by meaning.\n\n"
    "Start with: bertkit search build texts.txt --model MODEL --output index, then "
    'bertkit search query index "how to open a file"',
    no_args_is_help=True,
    rich_markup_mode=None,
)
