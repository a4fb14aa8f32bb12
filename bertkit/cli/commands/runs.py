"""`bertkit runs`: list, show, tabulate and delete run folders."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from bertkit.cli.options import argument, option, output_option
from bertkit.cli.output import (
    format_number,
    print_file,
    print_line,
    print_notes,
    print_pairs,
    print_result,
    print_table,
)
from bertkit.cli.terminal import printable
from bertkit.errors import UsageError
from bertkit.reports.text import duration_text
from bertkit.storage.files import write_text
from bertkit.storage.runs import read_record

if TYPE_CHECKING:
    from bertkit.storage.run_list import RunSummary


ORDER = 62
HELP = "List, show, tabulate and delete run folders."


def list_runs(
    folder: Annotated[Path, argument("Folder that contains the runs.", "FOLDER")] = Path("runs"),
    sort: Annotated[
        Literal["name", "recipe", "model", "state", "score", "time", "size", "date"],
        option("Sort key: name, recipe, model, state; or score, time, size, date (best or largest first).", "KEY"),
    ] = "name",
) -> None:
    """List run folders: their state, main score, time and size.

    A folder of seeds is one row, with the mean of its scores. A damaged run is a row, with the reason below.
    """
    from bertkit.storage.run_list import find_runs, sort_runs

    if not folder.is_dir():
        raise UsageError("no such folder", "name the folder that holds the runs", file=folder)
    summaries = sort_runs(list(find_runs(folder)), sort)
    print_result({"runs": summaries}, lambda _: _print_runs(summaries, folder))


def _print_runs(runs: list[RunSummary], folder: Path) -> None:
    if not runs:
        print_line(f"{folder}: no runs")
    print_table(f"runs in {folder}", [_run_cells(run, folder) for run in runs], max_rows=len(runs))
    print_notes(f"{run.folder}: {run.reason}" for run in runs if run.reason)


def _run_cells(run: RunSummary, folder: Path) -> dict[str, Any]:
    # The score of a folder of seeds is a mean, which must not be mistaken for the score of one model.
    metric = f"mean {run.metric}" if run.seeds and run.metric else run.metric
    # A recipe has either epochs or steps.
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


def show_run(folder: Annotated[Path, argument("Run folder.", "RUN")]) -> None:
    """Show the settings, the state and the scores of a run.

    Only settings that differ from the shipped recipe of the same name are shown.
    """
    from bertkit.storage.run_list import list_changes, summarize

    run = summarize(folder)
    if run is None:
        raise UsageError("not a run folder", "`bertkit runs list` shows the runs", file=folder)
    # A damaged run is shown with the values that can still be read.
    record = (read_record(folder) if run.seeds is None and run.state != "damaged" else None) or {}
    changes = list_changes(record)
    scores = _list_scores(record)
    values = {**vars(run), "scores": scores, "settings": changes, "versions": record.get("versions", {})}

    def show(_: object) -> None:
        print_pairs(_describe_run(run, record))
        print_table("scores", scores)
        print_table("settings that differ from the recipe", changes, max_rows=len(changes))

    print_result(values, show)


def _describe_run(run: RunSummary, record: Mapping[str, Any]) -> dict[str, str]:
    machine = record.get("machine", {})
    memory = record.get("peak_memory_bytes")
    values = {
        "run": run.folder,
        "state": run.state,
        "reason": run.reason,
        "recipe": run.recipe,
        "model": run.model,
        "mean score" if run.seeds else "score": "" if run.score is None else f"{run.metric} {format_number(run.score)}",
        "seeds": str(run.seeds or ""),
        "steps": str(run.steps or ""),
        "time": "" if run.seconds is None else duration_text(run.seconds),
        "memory": "" if memory is None else f"{memory / 1e6:,.0f} MB at peak",
        "size": f"{run.bytes / 1e6:,.1f} MB",
        "date": run.date,
        "machine": ", ".join(f"{key} {value}" for key, value in machine.items() if key != "reason"),
        "versions": ", ".join(f"{name} {version}" for name, version in record.get("versions", {}).items()),
    }
    return {name: value for name, value in values.items() if value}


def _list_scores(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row per split and metric of a run's results."""
    results = record.get("results") or ([record["result"]] if "result" in record else [])
    return [
        {
            "split": result.get("split", ""),
            "metric": metric,
            "score": score,
            "95% CI": (result.get("intervals") or {}).get(metric),
        }
        for result in results
        for metric, score in result.get("scores", {}).items()
    ]


def tabulate_runs(
    folders: Annotated[
        list[Path],
        argument("Run folders, folders of seeds, or folders that contain them, such as runs/glue.", "RUN"),
    ],
    rows: Annotated[
        Literal["model", "folder"],
        option("Content of a row: model (a pretrained model) or folder (each RUN).", "ROW"),
    ] = "model",
    format: Annotated[
        Literal["text", "markdown", "latex", "csv"] | None,
        option("Table format: text, markdown, latex or csv.", "FORMAT", "text, or as in --output"),
    ] = None,
    output: Annotated[Path | None, output_option("File to write: .md, .tex or .csv.", "FILE")] = None,
) -> None:
    """Tabulate the scores of finished runs: a row for each model, a column for each task.

    The table has 95% intervals, and means and standard deviations over seeds. A star marks a score that differs
    significantly from the first row in a paired test. CSV has a line per model and task.
    """
    name = _find_format(format, output)
    from bertkit.reports.table import FORMATS, describe_marks, make_grid
    from bertkit.workflows.table import tabulate

    table = tabulate(folders, rows=rows)
    if output is not None:
        from bertkit.storage.outputs import lock_output

        with lock_output(output):
            write_text(output, FORMATS[name][1](table))
        print_file(output, len(table.rows))
        return

    def show(_: object) -> None:
        if name != "text":
            print_line(FORMATS[name][1](table).rstrip("\n"))
            return
        header, *lines = make_grid(table)
        print_table("scores", [dict(zip(header, line, strict=True)) for line in lines], max_rows=len(lines))
        print_notes([*describe_marks(table), *table.notes])

    # `p` is a property, so `vars` does not include it.
    cells = [{**vars(cell), "p": cell.p} for cell in table.cells]
    print_result({**vars(table), "cells": cells}, show)


def _find_format(format: str | None, output: Path | None) -> str:
    """Return the format of the option, or else the format for the ending of the file."""
    from bertkit.reports.table import FORMATS
    from bertkit.storage.outputs import check_parent_exists

    if output is None:
        return format or "text"
    name = format or next((key for key, (endings, _) in FORMATS.items() if output.suffix.lower() in endings), "text")
    if name == "text":
        raise UsageError("a table is written as Markdown, LaTeX or CSV", "name it .md, .tex or .csv", file=output)
    check_parent_exists(output)
    return name


def remove_runs(
    folders: Annotated[list[Path], argument("Run folders, or folders of seeds.", "RUN")],
    yes: Annotated[bool, option("Do not ask for confirmation.", names=("--yes", "-y"))] = False,
) -> None:
    """Delete run folders, with their models, checkpoints and scores.

    Deletes nothing if one of the folders is not a run folder, or if a command is writing to it. If the command is
    killed, repeat it.
    """
    from bertkit.storage.run_list import check_removable, remove_run

    # The second deletion of the same folder would fail.
    folders = list(dict.fromkeys(folders))
    for folder in folders:
        check_removable(folder)
    if not yes and not _confirm_removal(folders):
        return
    for folder in folders:
        remove_run(folder)
    lines = "\n".join(f"{folder}: deleted" for folder in folders)
    print_result({"removed": folders}, lambda _: print_line(lines))


def _confirm_removal(folders: list[Path]) -> bool:
    """Return whether the user confirms the deletion on stderr; without a terminal, --yes is required."""
    if not sys.stdin.isatty():
        raise UsageError("the deletion cannot be confirmed without a terminal", "add --yes")
    names = printable(", ".join(map(str, folders)))
    sys.stderr.write(f"Delete {names}? This cannot be undone. [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


COMMANDS = {
    "list": (list_runs, "bertkit runs list --sort score"),
    "show": (show_run, "bertkit runs show runs/cola"),
    "table": (tabulate_runs, "bertkit runs table runs/cola runs/cola-2 --rows folder --format markdown"),
    "rm": (remove_runs, "bertkit runs rm runs/cola"),
}
