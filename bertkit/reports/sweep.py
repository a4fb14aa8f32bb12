"""The page of a sweep: the scores of its trials, key by key."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from bertkit.recipe.space import SweepDimension, name_point, name_value, parse_axis
from bertkit.reports import svg
from bertkit.reports.templates import write_page


def write_sweep_report(folder: Path, summary: Mapping[str, Any], command: str) -> None:
    """Write report.html of a folder of a sweep.

    Args:
        folder: Folder of the sweep.
        summary: Content of ``sweep.json``; see `bertkit.evaluation.sweeps.SweepSummary.to_dict`.
        command: Command that trained it.
    """
    metric = summary["best_metric"]
    finished = [trial for trial in summary["trials"] if trial["scores"].get(metric) is not None]
    facts: dict[str, Any] = {"summary": summary, "command": command, "finished": finished, "value": name_value}
    facts |= {"keys": draw_keys(summary, finished), "curve": draw_curves(summary["curve"], metric)}
    write_page(folder / "report.html", "sweep.html.j2", **facts)


def draw_keys(summary: Mapping[str, Any], finished: Sequence[Mapping[str, Any]]) -> list[tuple[str, Markup]]:
    """Draw the score of each finished trial over the values of each key, each picture with its caption."""
    metric, pictures = summary["best_metric"], []
    for key, text in summary["space"].items() if finished else ():
        labels, places = place_values(parse_axis(f"{key}={text}"), [trial["settings"][key] for trial in finished])
        points = []
        for trial, place in zip(finished, places, strict=True):
            score = trial["scores"][metric]
            hover = f"{trial['folder']}: {score:.4f}, {name_point(trial['settings'])}"
            points.append(svg.Point(place, score, hover, radius=4))
        # The best trial is drawn last, above the others.
        # SVG has no z-index: an element covers the ones before it.
        points = [*points[:0:-1], points[0]._replace(kind="chosen")]
        share = summary["importance"][key]
        caption = key if share is None else f"{key}: {share:.0%} of the variance"
        picture = svg.scatter(points, name=f"{metric} against {key}", x=key, y=metric, labels=labels)
        pictures.append((caption, picture))
    return pictures


def draw_curves(points: Sequence[Mapping[str, Any]], metric: str) -> Markup | None:
    """Draw the scores of learning curves over the number of training rows, or return None without points.

    Args:
        points: Points by the names of `bertkit.evaluation.sweeps.CurvePoint`, curve by curve.
        metric: Name of the score.
    """
    lines = {}
    # Points of one curve follow one another and have the same settings.
    for settings, curve in itertools.groupby(points, lambda point: point["settings"]):
        label, line = name_point(settings), []
        for point in curve:
            hover = f"{point['limit']:,} rows: {point['score']:.4f}" + (f", {label}" if label else "")
            line.append(svg.Point(point["limit"], point["score"], hover, *(point["interval"] or ())))
        lines[label] = line
    return svg.line_chart(lines, name=f"{metric} by training rows", x="training rows") if lines else None


def place_values(axis: SweepDimension, values: Sequence[Any]) -> tuple[list[tuple[float, str]], list[float]]:
    """Return the labels of an axis from 0 to 1 with their positions, and the positions of these values.

    Values of a list are placed at equal distances, and sorted if they are numbers; values of a range are to scale.
    """
    if axis.scale == "list":
        # A bool is an int for Python, but it has no place among numbers.
        are_numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in axis.values)
        order = sorted(axis.values) if are_numbers else axis.values
        places = {name_value(value): (index + 0.5) / len(order) for index, value in enumerate(order)}
        return [(place, label) for label, place in places.items()], [places[name_value(value)] for value in values]

    def place(value: float) -> float:
        if axis.scale == "log":
            return math.log(value / axis.low) / math.log(axis.high / axis.low)
        return (value - axis.low) / (axis.high - axis.low)

    middle = [mark for mark in svg.ticks(axis.low, axis.high) if axis.low < mark < axis.high]
    # The ends are always labeled; a logarithmic axis has the powers of ten between them.
    if axis.scale == "log":
        powers = range(math.floor(math.log10(axis.low)) + 1, math.ceil(math.log10(axis.high)))
        middle = [10.0**power for power in powers]
    elif axis.scale == "int":
        middle = [mark for mark in middle if mark == int(mark)]
    return [(place(mark), f"{mark:g}") for mark in (axis.low, *middle, axis.high)], list(map(place, values))
