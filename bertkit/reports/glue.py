"""The page of a folder with the runs of GLUE."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.reports.templates import write_page


def write_glue_report(folder: Path, summary: Mapping[str, Any], command: str) -> None:
    """Write report.html of a folder.

    Args:
        folder: that of the runs.
        summary: what ``glue.json`` holds, by the names of `bertkit.evaluation.glue.summary.GlueSummary`.
        command: the command that trained them.
    """
    write_page(folder / "report.html", "glue.html.j2", summary=summary, command=command)
