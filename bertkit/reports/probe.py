"""The page of `bertkit probe`: a picture of the scores of all layers, and a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import Markup

from bertkit.reports import svg
from bertkit.reports.templates import write_page


def write_probe(file: Path, result: Any) -> None:
    """Write the page; `result` is what `bertkit.workflows.probe.probe` returns."""
    write_page(
        file,
        "probe.html.j2",
        page=result,
        format_count=format_count,
        picture=draw_layers(result),
        control=describe_control(result.control, result.group),
        warnings=[f"{note[0].upper()}{note[1:]}." for note in result.probed.notes],
    )


def format_count(items: int, unit: str) -> str:
    """Format a number of texts, pairs, words or pairs of words.

    >>> format_count(1, "text"), format_count(1200, "pair of words")
    ('1 text', '1,200 pairs of words')
    """
    plural = unit.replace("pair", "pairs") if " of " in unit else f"{unit}s"
    return f"{items:,} {unit if items == 1 else plural}"


def describe_control(control: str, group: str) -> str:
    """Describe the control task.

    >>> describe_control("types", "word")
    'a random label per word, which a probe can only memorize (Hewitt and Liang 2019)'
    """
    if control == "types":
        return f"a random label per {group}, which a probe can only memorize (Hewitt and Liang 2019)"
    within = f" within each {group}" if group else ""
    score = f"the score of the {group} alone" if group else "the score of chance"
    return f"the training labels shuffled{within}, scored on the true labels: {score}"


def draw_layers(result: Any) -> Markup:
    """Draw the scores of the probes and of the control task at each layer, with the baselines."""
    probed, control = result.probed, "control task"
    # Compare a probe with the control task, not with 0: the difference shows what the layer encodes (Hewitt and Liang
    # 2019).
    lines = {
        "probe, with its 95% interval": [
            svg.Dot(layer.layer, layer.score, f"layer {layer.layer}: {layer.score:.4f}", *(layer.interval or ()))
            for layer in probed.layers
        ],
        control: [
            svg.Dot(layer.layer, layer.control, f"{control} at layer {layer.layer}: {layer.control:.4f}")
            for layer in probed.layers
        ],
    }
    name, x = f"{result.metric} of {result.task} at each layer", "layer (0: embeddings)"
    return svg.line_chart(lines, name=name, x=x, best_x=probed.best_layer, guides=probed.baselines)
