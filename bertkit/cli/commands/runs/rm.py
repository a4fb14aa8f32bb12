"""`bertkit runs rm`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from bertkit.cli.options import argument, option
from bertkit.cli.output import print_line, print_result
from bertkit.cli.stdio import printable
from bertkit.errors import UsageError

ORDER = 5
EXAMPLE = "bertkit runs rm runs/cola"


def command(
    folders: Annotated[list[Path], argument("Run folders, or folders of seeds.", "RUN")],
    yes: Annotated[bool, option("Do not ask.", names=("--yes", "-y"))] = False,
) -> None:
    """Delete run folders, with their models, checkpoints and scores.

    What is no run folder, or is being written, is refused before anything is deleted. After a kill, repeat the command.
    """
    from bertkit.storage.removal import check_removable, remove_run

    chosen = list(dict.fromkeys(folders))
    for folder in chosen:
        check_removable(folder)
    if not yes and not _confirm_removal(chosen):
        return
    for folder in chosen:
        remove_run(folder)
    lines = "\n".join(f"{folder}: deleted" for folder in chosen)
    print_result({"removed": chosen}, lambda _: print_line(lines))


def _confirm_removal(folders: list[Path]) -> bool:
    """Ask on stderr whether to delete folders; whoever cannot be asked has to say --yes."""
    if not sys.stdin.isatty():
        raise UsageError("nobody can be asked whether to delete", "add --yes")
    names = printable(", ".join(map(str, folders)))
    sys.stderr.write(f"Delete {names}? This cannot be undone. [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
