"""The ways to deploy runs beside each other: what `bertkit bench --deploy` measured, as a table and a picture.

    bertkit bench --deploy RUN --json > benchmarks/results/deploy-NAME.json
    python -m benchmarks.report

Each file is of one task; the first way of its first run, torch in float32, is what the others are compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import Report, table, with_ends
from benchmarks.pictures import draw_panels
from bertkit.reports.svg import Point, scatter


def deploy_part(reports: Sequence[Report]) -> str:
    """Build a table with a row per way of each task."""
    columns = {
        "task": lambda way: _name(way["report"]),
        "model": lambda way: Path(way["model"]).name,
        "way": "{way}",
        "MB": lambda way: f"{way['bytes'] / 1e6:.1f}",
        "ms, one row": lambda way: f"{way['row_milliseconds']:.2f}, {_times(way, 'row_milliseconds', -1)}",
        "rows/s": lambda way: f"{way['rows_per_second']:,.0f}, {_times(way, 'rows_per_second', 1)}",
        "score": "{score:.4f}",
        "change, 95% interval": change_text,
    }
    ways = [{**way, "report": report} for report in reports for way in report["ways"]]
    return table(columns, ways, "lllrrrrl")


def _times(way: Report, name: str, power: int) -> str:
    return f"{(way[name] / way['report']['ways'][0][name]) ** power:.1f}x"


def deploy_picture(reports: Sequence[Report]) -> str:
    """Draw the change of the score by the time of one row, a panel per task; ways of the first model are large."""
    panels = []
    for report in reports:
        points = []
        for way in report["ways"]:
            is_first = way["model"] == report["ways"][0]["model"]
            hover = f"{way['model']}, {way['way']}: {way['row_milliseconds']:.2f} ms, {change_text(way)}"
            ends = way["interval"] or (None, None)
            label = way["way"] if is_first else ""
            radius = 4.5 if is_first else 2.5
            points.append(Point(way["row_milliseconds"], way["difference"], hover, *ends, radius, label))
        best = sorted((way["row_milliseconds"], way["difference"]) for way in report["ways"] if way["is_best"])
        title = f"{_name(report)}: change of {report['metric']}"
        panels.append((title, scatter(points, name=title, x="milliseconds of one row", y="", guide=best)))
    return draw_panels(panels, "score and time of each way to deploy")


def _name(report: Report) -> str:
    return f"{report['recipe']}, {report['rows']:,} rows"


def change_text(way: Report) -> str:
    """Write a change of a score, with its interval where there is one."""
    return with_ends(way["difference"], way["interval"], "+.4f")
