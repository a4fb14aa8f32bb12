"""`bertkit runs table`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from bertkit.cli.options import argument, option, output_option
from bertkit.cli.output import print_file, print_line, print_notes, print_result, print_table
from bertkit.errors import UsageError
from bertkit.storage.files import write_text

ORDER = 3
EXAMPLE = "bertkit runs table runs/cola runs/cola-2 --rows folder --format markdown"


def command(
    folders: Annotated[
        list[Path],
        argument("Run folders, folders of seeds, or folders that hold some, such as that of `bertkit glue`.", "RUN"),
    ],
    rows: Annotated[
        Literal["model", "folder"],
        option("What makes a row: the model that a run starts from, or the folder named.", "WHAT"),
    ] = "model",
    format: Annotated[
        Literal["text", "markdown", "latex", "csv"] | None,
        option("text, markdown, latex or csv.", "FORMAT", "text, or as --output is called"),
    ] = None,
    output: Annotated[Path | None, output_option("File to write: .md, .tex or .csv.", "FILE")] = None,
) -> None:
    """Tabulate the scores of finished runs: a row for each model, a column for each task.

    With 95% intervals, and means and deviations over seeds. A star marks a model that differs from that of the first
    row, by a paired test on the same rows. CSV has a line for each model and task.
    """
    name = _find_format(format, output)
    from bertkit.reports.table import FORMATS, describe_marks, make_grid
    from bertkit.workflows.table import tabulate

    table = tabulate(folders, rows=rows)
    if output is not None:
        from bertkit.storage.outputs import claimed

        with claimed(output):
            write_text(output, FORMATS[name][1](table))
        print_file(output, len(table.rows))
        return

    def show(_: object) -> None:
        if name != "text":
            print_line(FORMATS[name][1](table).rstrip("\n"))
            return
        head, *lines = make_grid(table)
        print_table("scores", [dict(zip(head, line, strict=True)) for line in lines], max_rows=len(lines))
        print_notes([*describe_marks(table), *table.notes])

    # `p` is computed on access, and so is not among the fields.
    cells = [{**vars(cell), "p": cell.p} for cell in table.cells]
    print_result({**vars(table), "cells": cells}, show)


def _find_format(format: str | None, output: Path | None) -> str:
    """Return the format that was named, or that of the ending of the file."""
    from bertkit.reports.table import FORMATS
    from bertkit.storage.outputs import check_folder_of

    if output is None:
        return format or "text"
    named = format or next((name for name, (endings, _) in FORMATS.items() if output.suffix.lower() in endings), "text")
    if named == "text":
        raise UsageError("a table is written as Markdown, LaTeX or CSV", "name it .md, .tex or .csv", file=output)
    check_folder_of(output)
    return named
