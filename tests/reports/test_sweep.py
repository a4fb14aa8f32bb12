"""The page of a sweep."""

from __future__ import annotations

from dataclasses import asdict
from xml.etree import ElementTree

import pytest

from bertkit.evaluation.run_sets import SetRun
from bertkit.evaluation.sweeps import CurvePoint
from bertkit.recipe.space import parse_axis
from bertkit.reports.sweep import draw_curves, place_values, write_sweep_report
from tests.cli.commands.test_sweep import RATE, SIZE, summary_of


def test_the_page_draws_each_trial_and_marks_the_best(tmp_path):
    lost = SetRun("trial-0003", "diverged", {RATE: 1e-3, SIZE: 32}, failure="the loss is nan")
    summary = summary_of([0.7, 0.6], recipe="a <b>", trials=[*summary_of([0.7, 0.6]).trials, lost])
    write_sweep_report(tmp_path, summary.to_dict(), "bertkit sweep a")
    page = (tmp_path / "report.html").read_text()
    pictures = [ElementTree.fromstring(f"<svg {part.split('</svg>')[0]}</svg>") for part in page.split("<svg ")[1:]]
    assert len(pictures) == 2  # one per key
    dots = list(pictures[0].iter("circle"))
    assert [dot.find("title").text.split(":")[0] for dot in dots] == ["trial-0002", "trial-0001"]  # the best on top
    assert [dot.get("class") for dot in dots] == ["dot", "dot chosen"]
    named = [{node.text for node in picture.iter("text") if node.get("class") == "axis end"} for picture in pictures]
    assert named == [{RATE}, {SIZE}]
    assert "a &lt;b&gt;: 3 trials" in page and "trial-0003: the loss is nan" in page
    assert "25% of the variance" in page and "expected on other rows" in page


def test_a_page_without_a_finished_trial_has_no_picture(tmp_path):
    lost = SetRun("trial-0001", "diverged", {RATE: 1e-3, SIZE: 32}, failure="the loss is nan")
    write_sweep_report(tmp_path, summary_of([], trials=[lost], best=None, selection=None).to_dict(), "bertkit sweep a")
    page = (tmp_path / "report.html").read_text()
    assert "the loss is nan" in page and "<svg" not in page


def test_each_learning_curve_is_a_line_with_intervals(tmp_path):
    points = [
        CurvePoint({SIZE: 16}, 100, 1, 0.5, (0.4, 0.6)),
        CurvePoint({SIZE: 16}, 1000, 1, 0.7, (0.6, 0.8)),
        CurvePoint({SIZE: 32}, 100, 1, 0.4, None),
    ]
    picture = ElementTree.fromstring(draw_curves([asdict(point) for point in points], "f1"))
    assert [len(line.get("points").split()) for line in picture.iter("polyline")] == [2, 1]
    assert len([path for path in picture.iter("path") if path.get("class") == "whisker"]) == 2
    assert {"training.batch_size=16", "training.batch_size=32"} <= {text.text for text in picture.iter("text")}
    write_sweep_report(tmp_path, summary_of([0.7, 0.6], curve=points).to_dict(), "bertkit sweep a")
    assert "<h2>Learning curve</h2>" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("text", "values", "positions", "labels"),
    [
        ("a=32,16", [16, 32], [0.25, 0.75], ["16", "32"]),
        ("a=yes,no,null", ["no", None], [0.5, 5 / 6], ["yes", "no", "null"]),
        ("a=log:1e-5..1e-3", [1e-5, 1e-4, 1e-3], [0, 0.5, 1], ["1e-05", "0.0001", "0.001"]),
        ("a=int:2..4", [2, 3], [0, 0.5], ["2", "3", "4"]),
        ("a=float:0..0.5", [0.25], [0.5], ["0", "0.1", "0.2", "0.3", "0.4", "0.5"]),
    ],
)
def test_values_stand_where_their_axis_says(text, values, positions, labels):
    ticks, places = place_values(parse_axis(text), values)
    assert places == pytest.approx(positions) and [label for _, label in ticks] == labels
