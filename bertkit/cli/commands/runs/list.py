"""`bertkit runs list`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from bertkit.cli.options import argument, option
from bertkit.cli.output import print_line, print_notes, print_result, print_table
from bertkit.errors import UsageError
from bertkit.reports.text import duration_text

if TYPE_CHECKING:
    from bertkit.storage.summaries import RunSummary

ORDER = 1
EXAMPLE = "bertkit runs list --sort score"


def command(
    folder: Annotated[Path, argument("Folder that holds run folders.", "FOLDER")] = Path("runs"),
    sort: Annotated[
        Literal["name", "recipe", "model", "state", "score", "time", "size", "date"],
        option("Key to sort by: scores from the best, times, sizes and dates from the highest down.", "KEY"),
    ] = "name",
) -> None:
    """List run folders: their state, main score, time and size.

    A folder of seeds is one row, with the mean of its scores. A damaged folder is a row with the reason.
    """
    from bertkit.storage.summaries import find_runs, sort_runs

    if not folder.is_dir():
        raise UsageError("no such folder", "name the folder that holds the runs", file=folder)
    found = sort_runs(list(find_runs(folder)), sort)
    print_result({"runs": found}, lambda _: _print_runs(found, folder))


def _print_runs(runs: list[RunSummary], folder: Path) -> None:
    if not runs:
        print_line(f"{folder}: no runs")
    print_table(f"runs in {folder}", [_run_cells(run, folder) for run in runs], max_rows=len(runs))
    print_notes(f"{run.folder}: {run.reason}" for run in runs if run.reason)


def _run_cells(run: RunSummary, folder: Path) -> dict[str, Any]:
    metric = f"mean {run.metric}" if run.seeds and run.metric else run.metric
    length = "-" if run.steps is None and run.epochs is None else f"{run.steps} steps"
    return {
        "run": Path(run.folder).relative_to(folder).as_posix(),
        "state": run.state,
        "recipe": run.recipe or "-",
        "model": Path(run.model).name or "-",
        "metric": metric or "-",
        "score": "-" if run.score is None else run.score,
        "95% CI": "-" if run.interval is None else run.interval,
        "length": f"{run.epochs:g} epochs" if run.epochs is not None and run.steps is None else length,
        "time": duration_text(run.seconds),
        "MB": f"{run.bytes / 1e6:,.1f}",
        "date": run.date[:10] or "-",
    }
