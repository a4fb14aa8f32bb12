"""The page of a folder with the runs of GLUE."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from bertkit.reports.html import score_text
from bertkit.storage.files import write_text


def write_glue_report(folder: Path, summary: Mapping[str, Any], command: str) -> None:
    """Write report.html of a folder.

    Args:
        folder: that of the runs.
        summary: what ``glue.json`` holds, by the names of `bertkit.evaluation.glue_summary.GlueSummary`.
        command: the command that trained them.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["score"] = score_text
    page = environment.get_template("glue.html.j2").render(summary=summary, command=command)
    write_text(folder / "report.html", page)
