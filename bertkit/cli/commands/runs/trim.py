"""`bertkit runs trim`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from bertkit.cli.options import argument
from bertkit.cli.output import print_line, print_result

ORDER = 4
EXAMPLE = "bertkit runs trim runs/cola"


def command(
    folders: Annotated[list[Path], argument("Run folders, or folders of several runs.", "RUN")],
) -> None:
    """Delete the optimizer states of finished runs, two thirds of each checkpoint.

    Models, scores and checkpoints stay. Runs since this release have none, unless `training.keep_optimizer` is true.
    Runs that are not finished keep theirs, to be resumed.
    """
    from bertkit.storage.removal import find_trimmable, trim_run

    chosen = dict.fromkeys(run for folder in folders for run in find_trimmable(folder))
    freed = {str(run): trim_run(run) for run in chosen}
    trimmed = {"trimmed": [{"folder": run, "bytes": count} for run, count in freed.items()]}
    lines = "\n".join(f"{run}: {count / 1e6:,.1f} MB freed" for run, count in freed.items())
    print_result(trimmed, lambda _: print_line(lines) if lines else None)
