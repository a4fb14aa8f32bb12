"""What `bertkit calibrate` prints."""

from __future__ import annotations

from dataclasses import replace

from bertkit.cli.commands.calibrate import print_calibration
from bertkit.workflows.calibrate import CalibrationResult

ONE = CalibrationResult(
    model="runs/x",
    split="validation",
    source="demo",
    rows=500,
    temperature=1.7312,
    before={"ece": {"value": 0.1, "interval": (0.08, 0.12)}},
    after={"ece": {"value": 0.02, "interval": None}},
    file="runs/x/calibration.json",
    abstention=[{"asked": 0.9, "threshold": 0.8, "coverage": 0.7, "precision": 0.95}, {"asked": 0.99}],
    risk_coverage=[{"coverage": 1.0, "precision": 0.9, "threshold": 0.5}],
)


def test_measures_stand_side_by_side_and_thresholds_below(capsys):
    print_calibration(ONE)
    text = capsys.readouterr().out
    assert "  temperature 1.731\n" in text
    assert "0.1000 (0.0800 to 0.1200)" in text and "0.0200 (n/a)" in text
    assert "not reached" in text
    assert text.endswith("  written: runs/x/calibration.json, and calibration.html next to it\n")


def test_several_labels_have_thresholds_and_f1(capsys):
    print_calibration(replace(ONE, abstention=[], thresholds={"joy": 0.25}, f1_macro={"before": 0.5, "after": 0.6}))
    text = capsys.readouterr().out
    assert "joy       0.2500" in text and "f1_macro 0.5000 at 0.5, 0.6000 at thresholds tuned on other rows" in text
    assert "risk" not in text


def test_words_and_prediction_sets_have_their_lines(capsys):
    one = {"asked": 0.9, "held": 0.91, "interval": (0.88, 0.93), "mean_size": 1.2, "single": 0.8}
    print_calibration(replace(ONE, per="word", decisions=7000, prediction_sets=[one]))
    text = capsys.readouterr().out
    assert "500 rows, 7,000 words" in text and "of each word, on rows" in text
    assert "0.9100 (0.8800 to 0.9300)     1.2000     0.8000" in text
