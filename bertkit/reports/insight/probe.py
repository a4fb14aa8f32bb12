"""The page of `bertkit probe`: layers against scores, the table behind it, and how layers are mixed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import Markup

from bertkit.reports import svg
from bertkit.reports.insight.layer_chart import LayerPoint, layer_chart
from bertkit.reports.templates import write_page


def write_probe(file: Path, result: Any) -> None:
    """Write the page; `result` as `bertkit.workflows.probe.probe` returns it."""
    write_page(
        file,
        "insight/probe.html.j2",
        page=result,
        count=count_items,
        picture=draw_layers(result),
        mixing=_draw_mixing(result),
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
    probe = [
        LayerPoint(one.score, min(one.scores), max(one.scores), f"layer {one.layer}: {one.score:.4f}", one.interval)
        for one in probed.layers
    ]
    control = [
        LayerPoint(one.control, one.control, one.control, f"control task at layer {one.layer}: {one.control:.4f}")
        for one in probed.layers
    ]
    lines = {"probe: mean, range of seeds, 95% interval": probe, "control task": control}
    name = f"{result.metric} of {result.task} at each layer"
    return layer_chart(lines, probed.baselines, name=name, y=result.metric, marked=probed.best_layer)


def _draw_mixing(result: Any) -> Markup:
    bars = [
        svg.Bar(str(layer), share, share, share, f"layer {layer}: {share:.1%}")
        for layer, share in enumerate(result.probed.mixing)
    ]
    return svg.bar_chart(bars, name="share of each layer in the mix", x="layer", y="share")
