"""The ways to deploy runs beside each other: what `bertkit bench --deploy` measured, as a table and a picture.

    bertkit bench --deploy RUN --json > benchmarks/results/deploy-NAME.json
    python -m benchmarks.report

Each file is of one task; the first way of its first run, torch in float32, is what the others are compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.pictures import Way, panels


def deploy_part(reports: Sequence[dict[str, Any]]) -> str:
    """Build a table with a row per way of each task."""
    head = ["task", "model", "way", "MB", "ms, one row", "rows/s", "score", "change, 95% interval"]
    rows = []
    for report in reports:
        first = report["ways"][0]
        for way in report["ways"]:
            times = f"{way['row_milliseconds']:.2f}, {first['row_milliseconds'] / way['row_milliseconds']:.1f}x"
            rate = f"{way['rows_per_second']:,.0f}, {way['rows_per_second'] / first['rows_per_second']:.1f}x"
            cells = [_name(report), Path(way["model"]).name, way["way"], f"{way['bytes'] / 1e6:.1f}", times, rate]
            rows.append([*cells, f"{way['score']:.4f}", change_text(way)])
    rule = ["---", "---", "---", *["---:"] * 4, "---"]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *rows])


def deploy_picture(reports: Sequence[dict[str, Any]]) -> str:
    """Draw the change of the score by the time of one row, a panel per task."""
    groups = []
    for report in reports:
        first = report["ways"][0]["model"]
        ways = [
            Way(
                way["row_milliseconds"],
                way["difference"],
                *(way["interval"] or (way["difference"], way["difference"])),
                f"{way['model']}, {way['way']}: {way['row_milliseconds']:.2f} ms, {change_text(way)}",
                way["way"] if way["model"] == first else "",
                way["is_best"],
                way["model"] == first,
            )
            for way in report["ways"]
        ]
        groups.append((f"{_name(report)}: change of {report['metric']}", ways))
    return panels(groups, x="milliseconds of one row", name="score and time of each way to deploy")


def _name(report: dict[str, Any]) -> str:
    return f"{report['recipe']}, {report['rows']:,} rows"


def change_text(case: dict[str, Any], digits: int = 4) -> str:
    """Write a change of a score, with its interval where there is one."""
    change = f"{case['difference']:+.{digits}f}"
    if case["interval"] is None:
        return change
    low, high = case["interval"]
    return f"{change} ({low:+.{digits}f} to {high:+.{digits}f})"
