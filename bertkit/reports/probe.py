"""The page of `bertkit probe`: layers against scores, and the table behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import Markup

from bertkit.reports import svg
from bertkit.reports.templates import write_page


def write_probe(file: Path, result: Any) -> None:
    """Write the page; `result` as `bertkit.workflows.probe.probe` returns it."""
    write_page(
        file,
        "probe.html.j2",
        page=result,
        count=count_items,
        picture=draw_layers(result),
        control=describe_control(result.control, result.group),
        warnings=[f"{note[0].upper()}{note[1:]}." for note in result.probed.notes],
    )


def count_items(items: int, unit: str) -> str:
    """Return a number of texts, pairs, words or pairs of words.

    >>> count_items(1, "text"), count_items(1200, "pair of words")
    ('1 text', '1,200 pairs of words')
    """
    plural = unit.replace("pair", "pairs") if " of " in unit else f"{unit}s"
    return f"{items:,} {unit if items == 1 else plural}"


def describe_control(control: str, group: str) -> str:
    """Describe the control task.

    >>> describe_control("types", "word")
    'a random label per word, which can only be known by heart (Hewitt and Liang 2019)'
    """
    if control == "types":
        return f"a random label per {group}, which can only be known by heart (Hewitt and Liang 2019)"
    within, tested = (f" within each {group}", f"the {group} alone predicts") if group else ("", "chance scores")
    return f"the training labels shuffled{within}, scored on the true labels: what {tested}"


def draw_layers(result: Any) -> Markup:
    """Draw the scores of the probes and of the control task at each layer, with the baselines."""
    probed, control = result.probed, "control task"
    # A layer knows the task as far as its probe is above the control task, not above 0 (Hewitt and Liang 2019).
    lines = {
        # The ends of an interval become the whisker of a point.
        "probe, with its 95% interval": [
            svg.Point(layer.layer, layer.score, f"layer {layer.layer}: {layer.score:.4f}", *(layer.interval or ()))
            for layer in probed.layers
        ],
        control: [
            svg.Point(layer.layer, layer.control, f"{control} at layer {layer.layer}: {layer.control:.4f}")
            for layer in probed.layers
        ],
    }
    name, x = f"{result.metric} of {result.task} at each layer", "layer (0: embeddings)"
    return svg.line_chart(lines, name=name, x=x, marked=probed.best_layer, guides=probed.baselines)
