"""Write docs/cli.md from the help of the commands (`make docs`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from bertkit.cli.main import app

PAGE = Path(__file__).parent.parent / "docs" / "cli.md"
WIDTH = 80  # columns

HEAD = """\
# Commands

`make docs` writes this page from the commands' own help. Do not edit it by hand.

`-h` and `--help` work at every level. Results go to stdout, messages and progress to stderr.
With `--json` a command prints one JSON object on stdout and nothing else there.
"""


def cli_page() -> str:
    """Return the page: the help of every command, in the order of `bertkit --help`."""
    sections = [f"## {name}\n\n```text\n{text}\n```\n" for name, text in help_texts(typer.main.get_command(app))]
    return "\n".join([HEAD, *sections])


def help_texts(command: Any, name: str = "bertkit", parent: Any = None) -> Iterator[tuple[str, str]]:
    """Yield (full name, help text) of a command and of its subcommands."""
    context = command.make_context(name, [], parent=parent, resilient_parsing=True, terminal_width=WIDTH)
    yield context.command_path, "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    if hasattr(command, "list_commands"):
        for subcommand in command.list_commands(context):
            yield from help_texts(command.get_command(context, subcommand), subcommand, context)


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(cli_page(), encoding="utf-8")
    print(f"{PAGE}: written")
