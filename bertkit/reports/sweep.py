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
    """Write report.html for the folder of a sweep.

    Args:
        folder: Folder of the sweep.
        summary: Content of ``sweep.json``; see `bertkit.evaluation.sweeps.SweepSummary.to_dict`.
        command: Command that trained the trials.
    """
    metric = summary["best_metric"]
    trials = [trial for trial in summary["trials"] if trial["scores"].get(metric) is not None]
    values: dict[str, Any] = {"summary": summary, "command": command, "trials": trials, "name_value": name_value}
    values |= {"key_pictures": draw_keys(summary, trials), "curve": draw_curves(summary["curve"], metric)}
    write_page(folder / "report.html", "sweep.html.j2", **values)


def draw_keys(summary: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> list[tuple[str, Markup]]:
    """Draw a picture per key with its caption: the score of each finished trial over the value of the key."""
    metric, pictures = summary["best_metric"], []
    for key, text in summary["space"].items() if trials else ():
        labels, positions = place_values(parse_axis(f"{key}={text}"), [trial["settings"][key] for trial in trials])
        dots = []
        for trial, position in zip(trials, positions, strict=True):
            score = trial["scores"][metric]
            hover = f"{trial['folder']}: {score:.4f}, {name_point(trial['settings'])}"
            dots.append(svg.Dot(position, score, hover, radius=4))
        # Draw the best trial, which is first, last: later elements of an SVG file cover earlier ones.
        dots = [*dots[:0:-1], dots[0]._replace(kind="chosen")]
        share = summary["importance"][key]
        caption = key if share is None else f"{key}: {share:.0%} of the variance"
        picture = svg.scatter(dots, name=f"{metric} against {key}", x=key, y=metric, labels=labels)
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
            line.append(svg.Dot(point["limit"], point["score"], hover, *(point["interval"] or ())))
        lines[label] = line
    return svg.line_chart(lines, name=f"{metric} by training rows", x="training rows") if lines else None


def place_values(axis: SweepDimension, values: Sequence[Any]) -> tuple[list[tuple[float, str]], list[float]]:
    """Place values on an axis from 0 to 1: at equal distances for a list (sorted if numeric), to scale for a range.

    Returns:
        Labels of the axis as (position, text), and the position of each value.
    """
    if axis.scale == "list":
        # In Python, a bool is an int, so exclude it.
        are_numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in axis.values)
        order = sorted(axis.values) if are_numbers else axis.values
        positions = {name_value(value): (index + 0.5) / len(order) for index, value in enumerate(order)}
        labels = [(position, label) for label, position in positions.items()]
        return labels, [positions[name_value(value)] for value in values]

    def to_position(value: float) -> float:
        if axis.scale == "log":
            return math.log(value / axis.low) / math.log(axis.high / axis.low)
        return (value - axis.low) / (axis.high - axis.low)

    # Label both ends, and between them round values, or on a logarithmic axis the powers of ten.
    ticks = [tick for tick in svg.ticks(axis.low, axis.high) if axis.low < tick < axis.high]
    if axis.scale == "log":
        powers = range(math.floor(math.log10(axis.low)) + 1, math.ceil(math.log10(axis.high)))
        ticks = [10.0**power for power in powers]
    elif axis.scale == "int":
        ticks = [tick for tick in ticks if tick == int(tick)]
    labels = [(to_position(tick), f"{tick:g}") for tick in (axis.low, *ticks, axis.high)]
    return labels, list(map(to_position, values))
