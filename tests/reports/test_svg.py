"""Charts: ticks that enclose values, places in proportion, and texts that stay texts."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from xml.etree import ElementTree

import pytest
from markupsafe import Markup

from bertkit.reports.svg import (
    WIDTH,
    Dot,
    Span,
    escape_text,
    interval_strip,
    line_chart,
    scatter,
    ticks,
)

NASTY = 'a < b & "c" </svg> \x00 \ud800 日本'
PLACES = {"x", "y", "cx", "cy", "r", "width", "height"}


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.811, 0.862, [0.8, 0.82, 0.84, 0.86, 0.88]),
        (-0.3, 0.4, [-0.4, -0.2, 0.0, 0.2, 0.4]),
        (3, 1870, [0, 500, 1000, 1500, 2000]),
        (0, 2e-5, [0, 5e-06, 1e-05, 1.5e-05, 2e-05]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == expected


@pytest.mark.parametrize(("low", "high"), [(5, 5), (0, 0), (-3, -3), (1e-9, 2e-9), (-1e12, 1e12), (0.1, 0.3)])
def test_ticks_enclose_any_range(low: float, high: float) -> None:
    found = ticks(low, high)
    slack = 1e-6 * (found[-1] - found[0])
    assert 2 <= len(found) <= 12
    assert found[0] <= low + slack and high - slack <= found[-1]
    assert found == sorted(set(found))


def parsed(picture: Markup) -> ElementTree.Element:
    tree = ElementTree.fromstring(picture)
    numbers = [float(value) for node in tree.iter() for name, value in node.items() if name in PLACES]
    assert numbers and all(math.isfinite(number) for number in numbers)
    return tree


def count_classes(tree: ElementTree.Element) -> Counter[str]:
    return Counter(node.get("class", "") for node in tree.iter())


def test_texts_stay_texts():
    assert escape_text('a < b\x00 & "c"') == "a &lt; b  &amp; &#34;c&#34;"


def test_line_chart_names_its_lines_and_its_points() -> None:
    lines = {NASTY: [(10, 0.5), (20, 0.25)], "evaluation": [(20, 0.4)]}
    tree = parsed(line_chart(lines, name=NASTY, x="step", best_x=20))
    titles = [node.text or "" for node in tree.iter("title")]
    assert len(titles) == 3 and titles[2] == "evaluation: 0.4 at step 20"
    assert count_classes(tree)["guide"] == 1


def test_a_long_line_has_no_dots() -> None:
    tree = parsed(line_chart({"loss": [(step, 1 / (step + 1)) for step in range(5000)]}, name="loss", x="step"))
    assert not list(tree.iter("circle"))


def test_a_legend_stands_above_the_lines_in_as_many_rows_as_it_needs() -> None:
    lines = {"by confidence, the first": [(0, 0.5), (20, 0.25)], "at random": [(0, 0.4), (20, 0.4)]}
    lines |= {f"a line with a long name {number}": [(0, 0.3), (20, 0.4)] for number in range(3)}
    tree = parsed(line_chart(lines, name="risk", x="step", best_x=20, guides={"chance": 0.1}))
    texts = {node.text: node for node in tree.iter("text")}
    places = [(float(texts[name].get("y")), float(texts[name].get("x")), len(name)) for name in lines]
    for (row, left, length), (next_row, next_left, _) in itertools.pairwise(places):
        assert next_row > row or next_left >= left + 8 * length
    assert len({row for row, _, _ in places}) > 1 and all(left + 8 * length < WIDTH for _, left, length in places)
    highest = min(float(node.get("cy")) for node in tree.iter("circle"))
    assert "chance: 0.100" in texts and highest > max(row for row, _, _ in places)
    # "best" stands below the axis, where no line is, and apart from the name of the axis
    assert float(texts["best"].get("y")) == float(texts["step"].get("y"))
    assert float(texts["best"].get("x")) + 60 < float(texts["step"].get("x"))


def test_points_of_a_line_have_whiskers():
    line = [Dot(layer, value, f"<{value}>", value - 0.2, value + 0.2) for layer, value in enumerate((0.5, 0.8))]
    tree = parsed(line_chart({"a <b>": line, "control": [(0, 0.3), (1, 0.3)]}, name="x", x="layer"))
    assert count_classes(tree)["whisker"] == 2 and count_classes(tree)["dot"] == 4
    assert "<0.5>" in [node.text for node in tree.iter("title")]


def test_long_numbers_of_the_y_axis_stand_in_the_picture():
    tree = parsed(line_chart({"rate": [(0, 0.0), (1, 0.00075)]}, name="rate", x="step"))
    (mark,) = (node for node in tree.iter("text") if node.text == "0.0002")
    assert float(mark.get("x")) >= 8 * len("0.0002")


def test_higher_values_lie_higher_up() -> None:
    tree = parsed(scatter([Dot(1, 1, "a"), Dot(2, 5, "b")], name="s", x="x", y="y", guide=((0, 0), (5, 5))))
    low, high = list(tree.iter("circle"))
    assert float(high.get("cy", "")) < float(low.get("cy", ""))
    assert float(high.get("cx", "")) > float(low.get("cx", ""))
    (line,) = tree.iter("polyline")
    assert len(line.get("points", "").split()) == 2


def test_labels_replace_the_numbers_of_an_axis():
    points = [Dot(0.25, 1, "a"), Dot(0.75, 2, "b", kind="chosen")]
    tree = parsed(scatter(points, name="s", x="x", y="y", labels=[(0.25, NASTY), (0.75, "two")]))
    (label,) = (node for node in tree.iter("text") if node.text == "two")
    (chosen,) = (node for node in tree.iter("circle") if node.get("class") == "dot chosen")
    assert label.get("x") == chosen.get("cx")


def test_strip_puts_all_rows_on_one_axis() -> None:
    spans = [
        Span("This run", "0.80", 0.8, 0.75, 0.85, is_reference=True),
        Span(NASTY * 5, "0.7 – 0.8", None, 0.7, 0.8),
    ]
    tree = parsed(interval_strip(spans, name="strip"))
    own, other = (node for node in tree.iter("path") if node.get("class") == "span")
    assert own.get("d") != other.get("d")
    assert len(list(tree.iter("circle"))) == 1
    assert any((node.text or "").endswith("...") for node in tree.iter("text"))


def test_a_strip_has_a_dot_per_run_and_no_dot_covers_another() -> None:
    dots = [Dot(0.5, 0, NASTY), Dot(0.5, 0, "seed 2", kind="failed"), Dot(0.9, 0, "seed 3")]
    tree = parsed(interval_strip([Span("mean", "0.6", 0.6, 0.45, 0.8, dots=dots)], name=NASTY))
    circles = [node for node in tree.iter("circle") if node.get("class", "").startswith("dot")]
    assert len({(node.get("cx"), node.get("cy")) for node in circles}) == 3
    assert count_classes(tree)["dot failed"] == 1
    assert all(0 <= float(node.get("cx")) <= WIDTH for node in circles)
