"""The page of `bench --deploy`: what each way to deploy a model costs, and what it scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertkit.reports import svg
from bertkit.reports.templates import write_page


def write_deployment(file: Path, deployment: Any) -> None:
    """Write the page; `deployment` as `bertkit.workflows.bench.deploy` returns it."""
    several = len({way.model for way in deployment.ways}) > 1
    names = [f"{Path(way.model).name}, {way.way}" if several else way.way for way in deployment.ways]
    # Scores beside the milliseconds of a row, and a line through the ways that nothing beats, with names.
    points = [
        svg.Point(
            way.row_milliseconds,
            way.score,
            f"{name}: {deployment.metric} {way.score:.4f}, {way.row_milliseconds:.2f} ms",
            radius=4,
            # all names would cover one another
            label=name if way.is_best or not number else "",
        )
        for number, (name, way) in enumerate(zip(names, deployment.ways, strict=True))
    ]
    best = sorted((way.row_milliseconds, way.score) for way in deployment.ways if way.is_best)
    picture = svg.scatter(points, name="scores and times", x="milliseconds of one row", y=deployment.metric, guide=best)
    write_page(file, "deploy.html.j2", found=deployment, several=several, picture=picture)
