"""The page of a sweep: the scores of its trials, key by key."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from bertkit.recipe.space import Axis, name_point, name_value, parse_axis
from bertkit.reports import canvas, svg
from bertkit.reports.templates import write_page


@dataclass(frozen=True)
class Track:
    """An axis of a picture: its name, its ticks as (label, position), and the position of each trial, from 0 to 1."""

    name: str
    ticks: list[tuple[str, float]]
    positions: list[float]


def write_sweep_report(folder: Path, summary: Mapping[str, Any], command: str) -> None:
    """Write report.html of a folder of a sweep.

    Args:
        folder: that of the sweep.
        summary: Content of ``sweep.json``; see `bertkit.evaluation.sweeps.SweepSummary.to_dict`.
        command: the command that trained it.
    """
    metric = summary["best_metric"]
    finished = [trial for trial in summary["trials"] if trial["scores"].get(metric) is not None]
    scores = [trial["scores"][metric] for trial in finished]
    names = [f"{trial['folder']}: {trial['scores'][metric]:.4f}" for trial in finished]
    points = [trial["settings"] for trial in finished]
    axes = [parse_axis(f"{key}={text}") for key, text in summary["space"].items()]
    write_page(
        folder / "report.html",
        "sweep.html.j2",
        summary=summary,
        value=name_value,
        command=command,
        finished=finished,
        hovers=[f"{name}, {name_point(point)}" for name, point in zip(names, points, strict=True)],
        keys=[make_track(axis, [point[axis.key] for point in points]) for axis in axes],
        scores=make_score_track(metric, scores),
        curve=draw_curves(summary["curve"], metric),
    )


def draw_curves(points: Sequence[Mapping[str, Any]], metric: str) -> Markup | None:
    """Draw the scores of learning curves over the number of training rows; None where there are none.

    Args:
        points: by the names of `bertkit.evaluation.sweeps.CurvePoint`.
        metric: what is on the y axis.
    """
    curves = [list(curve) for _, curve in itertools.groupby(points, lambda point: point["settings"])]
    if not curves:
        return None
    dots = []
    for curve in curves:
        label = name_point(curve[0]["settings"])
        for number, point in enumerate(curve, 1):
            hover = f"{point['limit']:,} rows: {point['score']:.4f}" + (f", {label}" if label else "")
            low, high = point["interval"] or (None, None)
            named = label if number == len(curve) else ""
            dots.append(svg.Point(point["limit"], point["score"], hover, low, high, radius=4, label=named))
    guide, *more = [[(point["limit"], point["score"]) for point in curve] for curve in curves]
    return svg.scatter(dots, name="learning curve", x="training rows", y=metric, guide=guide, more_guides=more)


def make_track(axis: Axis, values: Sequence[Any]) -> Track:
    """Place values on the axis of a key: a list evenly, and sorted if of numbers; others as far as the number is."""
    if axis.scale == "list":
        are_numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in axis.values)
        order = sorted(axis.values) if are_numbers else axis.values
        at = {name_value(value): (place + 0.5) / len(order) for place, value in enumerate(order)}
        return Track(axis.key, list(at.items()), [at[name_value(value)] for value in values])

    def place(value: float) -> float:
        if axis.scale == "log":
            return math.log(value / axis.low) / math.log(axis.high / axis.low)
        return (value - axis.low) / (axis.high - axis.low)

    middle = [number for number in canvas.ticks(axis.low, axis.high) if axis.low < number < axis.high]
    if axis.scale == "log":
        low, high = math.log10(axis.low), math.log10(axis.high)
        middle = [10.0**power for power in range(math.floor(low) + 1, math.ceil(high))]
    elif axis.scale == "int":
        middle = [number for number in middle if number == int(number)]
    ends = [axis.low, *middle, axis.high]
    return Track(axis.key, [(f"{end:g}", place(end)) for end in ends], list(map(place, values)))


def make_score_track(metric: str, scores: Sequence[float]) -> Track:
    """Place the trials on the axis of their scores."""
    if not scores:
        return Track(metric, [], [])
    ticks = canvas.ticks(min(scores), max(scores))
    low, width = ticks[0], ticks[-1] - ticks[0]
    return Track(metric, [(f"{tick:g}", (tick - low) / width) for tick in ticks], [(s - low) / width for s in scores])
