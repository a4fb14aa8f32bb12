"""The page of `bertkit probe`: layers against scores, and the table behind it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from bertkit.reports.canvas import draw_axes, draw_dot, draw_picture, draw_whisker, escape_text, fit_area
from bertkit.reports.templates import write_page

_LEGEND = 20  # of height, per line of it


class LayerPoint(NamedTuple):
    """A point of a line at a layer."""

    value: float
    hover: str
    interval: tuple[float, float] | None = None


def layer_chart(
    lines: Mapping[str, Sequence[LayerPoint]], guides: Mapping[str, float], *, name: str, y: str, marked: int
) -> Markup:
    """Draw at most two lines over layers from 0, a dashed horizontal line per guide, and a ring at the best layer.

    Args:
        lines: name -> a point per layer; the first is marked.
        guides: name -> score.
        name: of the picture, for those who cannot see it.
        y: what scores are.
        marked: the layer with the ring.
    """
    points = [point for line in lines.values() for point in line]
    ends = [end for point in points for end in (point.value, *(point.interval or ()))]
    area = fit_area([0, max(map(len, lines.values())) - 1], [*ends, *guides.values()])
    elements = [draw_axes(area, "layer (0: embeddings)", y)]
    for score in guides.values():
        up = area.up(score)
        elements.append(f'<line class="guide" x1="{area.left}" y1="{up:.1f}" x2="{area.end}" y2="{up:.1f}"/>')
    for number, line in enumerate(lines.values()):
        path = " ".join(f"{area.right(layer):.1f},{area.up(point.value):.1f}" for layer, point in enumerate(line))
        elements.append(f'<g class="s{number}"><polyline class="line" points="{path}"/>')
        for layer, point in enumerate(line):
            across = area.right(layer)
            if point.interval:
                elements.append(draw_whisker(across, *(area.up(end) for end in point.interval)))
            elements.append(draw_dot(across, area.up(point.value), point.hover))
            if number == 0 and layer == marked:
                elements.append(f'<circle class="ring" cx="{across:.1f}" cy="{area.up(point.value):.1f}" r="7"/>')
        elements.append("</g>")
    for number, (label, mark) in enumerate(_legend(lines, guides, area.left)):
        up = area.height + 8 + _LEGEND * number
        text = f'<text class="tick" x="{area.left + 30}" y="6">{escape_text(label)}</text>'
        elements.append(f'<g transform="translate(0 {up})">{mark}{text}</g>')
    return draw_picture(area.height + 8 + _LEGEND * (len(lines) + len(guides)), name, elements)


def _legend(lines: Iterable[str], guides: Mapping[str, float], left: float) -> Iterator[tuple[str, str]]:
    """Yield each line of the legend and its mark; guides have their score there, where no line crosses it."""
    for number, label in enumerate(lines):
        yield label, f'<g class="s{number}"><rect class="swatch" x="{left}" y="1" width="22" height="3"/></g>'
    for label, score in guides.items():
        yield f"{label}: {score:.3f}", f'<line class="guide" x1="{left}" y1="2" x2="{left + 22}" y2="2"/>'


def write_probe(file: Path, result: Any) -> None:
    """Write the page; `result` as `bertkit.workflows.probe.probe` returns it."""
    write_page(
        file,
        "probe.html.j2",
        page=result,
        count=count_items,
        picture=draw_layers(result),
        control=describe_control(result.control, result.group),
    )


def count_items(items: int, unit: str) -> str:
    """Return a number of texts, pairs, words or pairs of words.

    >>> count_items(1, "text"), count_items(1200, "pair of words")
    ('1 text', '1,200 pairs of words')
    """
    plural = unit.replace("pair", "pairs") if " of " in unit else f"{unit}s"
    return f"{items:,} {unit if items == 1 else plural}"


def describe_control(control: str, group: str) -> str:
    """Say what the control task is.

    >>> describe_control("types", "word")
    'a random label per word, which can only be known by heart (Hewitt and Liang 2019)'
    """
    if control == "types":
        return f"a random label per {group}, which can only be known by heart (Hewitt and Liang 2019)"
    within, what = (f" within each {group}", f"the {group} alone tells") if group else ("", "chance scores")
    return f"the training labels shuffled{within}, scored on the true labels: what {what}"


def draw_layers(result: Any) -> Markup:
    """Draw the scores of the probes and of those of the control task, with the baselines."""
    probed = result.probed
    probe = [LayerPoint(one.score, f"layer {one.layer}: {one.score:.4f}", one.interval) for one in probed.layers]
    control = [
        LayerPoint(one.control, f"control task at layer {one.layer}: {one.control:.4f}") for one in probed.layers
    ]
    lines = {"probe, with its 95% interval": probe, "control task": control}
    name = f"{result.metric} of {result.task} at each layer"
    return layer_chart(lines, probed.baselines, name=name, y=result.metric, marked=probed.best_layer)
