"""`bertkit runs list`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bertkit.cli.options import JsonOption
from bertkit.cli.output import format_duration, format_interval, format_number, print_json, print_line, print_table

if TYPE_CHECKING:
    from bertkit.storage.summaries import RunSummary

NAME = "list"
ORDER = 1
EXAMPLE = "bertkit runs list --sort score"


def command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder that holds run folders.")] = Path("runs"),
    sort: Annotated[
        Literal["name", "recipe", "model", "state", "score", "time", "size", "date"],
        typer.Option(help="What to sort by; scores, times, sizes and dates from the highest down.", metavar="KEY"),
    ] = "name",
    json: JsonOption = False,
) -> None:
    """List run folders: their state, main score, time and size.

    A folder of seeds is one row, with the mean of its scores. A damaged folder is a row with the reason.
    """
    from bertkit.errors import UsageError
    from bertkit.storage.summaries import find_runs, sort_runs

    if not folder.is_dir():
        raise UsageError("no such folder", "name the folder that holds the runs", file=folder)
    found = sort_runs(list(find_runs(folder)), sort)
    if json:
        print_json({"runs": [dataclasses.asdict(run) for run in found]})
        return
    if not found:
        print_line(f"{folder}: no runs")
        return
    print_table(f"runs in {folder}", [_row(run, folder) for run in found], max_rows=len(found))
    for run in found:
        if run.reason:
            print_line(f"  {run.folder}: {run.reason}")


def _row(run: RunSummary, folder: Path) -> dict[str, Any]:
    metric = f"mean {run.metric}" if run.seeds and run.metric else run.metric
    length = "-" if run.steps is None and run.epochs is None else f"{run.steps} steps"
    return {
        "run": Path(run.folder).relative_to(folder).as_posix(),
        "state": run.state,
        "recipe": run.recipe or "-",
        "model": Path(run.model).name or "-",
        "metric": metric or "-",
        "score": "-" if run.score is None else format_number(run.score).strip(),
        "95% CI": "-" if run.interval is None else format_interval(run.interval),
        "length": f"{run.epochs:g} epochs" if run.epochs is not None and run.steps is None else length,
        "time": format_duration(run.seconds),
        "MB": f"{run.bytes / 1e6:,.1f}",
        "date": run.date[:10] or "-",
    }
