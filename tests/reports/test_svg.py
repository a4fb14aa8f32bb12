from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest
from markupsafe import Markup

from bertkit.reports.svg import (
    Bar,
    Point,
    RunDot,
    Span,
    bar_chart,
    interval_strip,
    line_chart,
    scatter,
    strip_plot,
)

NASTY = 'a < b & "c" </svg> \x00 \ud800 日本'


def parsed(picture: Markup) -> ElementTree.Element:
    tree = ElementTree.fromstring(picture)
    numbers = [float(value) for node in tree.iter() for name, value in node.items() if name in PLACES]
    assert numbers and all(math.isfinite(number) for number in numbers)
    return tree


PLACES = {"x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "width", "height"}


def test_line_chart_names_its_lines_and_its_points() -> None:
    lines = {NASTY: [(10, 0.5), (20, 0.25)], "evaluation": [(20, 0.4)]}
    tree = parsed(line_chart(lines, name=NASTY, x="step", marked=20))
    titles = [node.text or "" for node in tree.iter("title")]
    assert len(titles) == 3 and titles[2] == "evaluation: 0.4 at step 20"
    assert sum(node.get("class") == "guide" for node in tree.iter("line")) == 1


def test_a_long_line_has_no_dots() -> None:
    tree = parsed(line_chart({"loss": [(step, 1 / (step + 1)) for step in range(5000)]}, name="loss", x="step"))
    assert not list(tree.iter("circle"))


def test_higher_values_lie_higher_up() -> None:
    tree = parsed(scatter([Point(1, 1, "a"), Point(2, 5, "b")], name="s", x="x", y="y", guide=((0, 0), (5, 5))))
    low, high = list(tree.iter("circle"))
    assert float(high.get("cy", "")) < float(low.get("cy", ""))
    assert float(high.get("cx", "")) > float(low.get("cx", ""))


def test_a_label_stands_beside_its_point_within_the_picture() -> None:
    points = [Point(1, 1, "a", label="left <"), Point(9, 5, "b", label="right"), Point(5, 5, "c")]
    tree = parsed(scatter(points, name="s", x="x", y="y", guide=[(1, 1), (5, 5), (9, 5)]))
    left, right = (node for node in tree.iter("text") if node.text in ("left <", "right"))
    at = [float(node.get("cx", "")) for node in tree.iter("circle")]
    assert float(left.get("x", "")) > at[0] and "end" not in left.get("class", "")
    assert float(right.get("x", "")) < at[1] and "end" in right.get("class", "")
    (line,) = tree.iter("polyline")
    assert len(line.get("points", "").split()) == 3


def test_bars_stand_on_zero_in_proportion() -> None:
    bars = [Bar(NASTY, 0.1, 0.05, 0.2, NASTY), Bar("b", 0.2, 0.1, 0.4, "b")]
    tree = parsed(bar_chart(bars, name="bars", x="tokens", y="share"))
    one, two = (float(node.get("height", "")) for node in tree.iter("rect"))
    assert two == pytest.approx(2 * one, abs=0.2)
    assert len([node for node in tree.iter("path") if node.get("class") == "whisker"]) == 2


def test_strip_puts_all_rows_on_one_axis() -> None:
    spans = [
        Span("This run", "0.80", 0.8, 0.75, 0.85, own=True),
        Span(NASTY * 5, "0.7 – 0.8", None, 0.7, 0.8),
    ]
    tree = parsed(interval_strip(spans, name="strip"))
    own, other = (node for node in tree.iter("line") if node.get("class") == "span")
    assert own.get("x2") != other.get("x2")
    assert len(list(tree.iter("circle"))) == 1
    assert any((node.text or "").endswith("...") for node in tree.iter("text"))


def test_a_strip_plot_has_a_dot_per_run_a_mean_and_a_guide() -> None:
    dots = [RunDot(0.5, NASTY), RunDot(0.5, "seed 2", failed=True), RunDot(0.7, "seed 3")]
    tree = parsed(strip_plot(dots, name=NASTY, mean=0.6, interval=(0.45, 0.8), marked=0.5))
    circles = [node for node in tree.iter("circle") if node.get("class") == "dot"]
    assert len({(node.get("cx"), node.get("cy")) for node in circles}) == 3  # equal scores do not cover one another
    assert sum(node.get("class") == "guide" for node in tree.iter("line")) == 1
    parsed(strip_plot(dots[:1], name="one", mean=0.5, interval=None))


def test_a_legend_stands_above_the_lines_and_its_names_apart() -> None:
    lines = {"by confidence, the first": [(0, 0.5), (20, 0.25)], "at random": [(0, 0.4), (20, 0.4)]}
    tree = parsed(line_chart(lines, name="risk", x="step", marked=20))
    first, second = (float(node.get("x", "")) for node in tree.iter("rect"))
    assert second >= first + 20 + 8 * len("by confidence, the first")
    texts = {node.text: node for node in tree.iter("text")}
    (guide,) = (node for node in tree.iter("line") if node.get("class") == "guide")
    assert float(texts["best"].get("y", "")) > float(guide.get("y2", ""))  # below the axis, where no line is
    assert float(texts["best"].get("x", "")) + 60 < float(texts["step"].get("x", ""))


def test_labels_of_points_that_are_near_each_other_stand_apart() -> None:
    points = [Point(x, 5, "a", label=name) for x, name in ((1, "one"), (1.1, "two"), (1.2, "three"), (9, "far"))]
    tree = parsed(scatter(points, name="s", x="x", y="y", guide=[(1, 5), (9, 5)]))
    heights = {node.text: float(node.get("y", "")) for node in tree.iter("text") if node.text in "one two three far"}
    near = sorted(heights[name] for name in ("one", "two", "three"))
    assert near[1] - near[0] >= 16 and near[2] - near[1] >= 16
    assert heights["far"] == heights["one"]
