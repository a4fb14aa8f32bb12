"""The page of a calibration."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np

from bertkit.reports.confidence import write_calibration_page
from tests.cli.commands.test_calibrate import ONE
from tests.reports.test_html import Balance


def write(folder, result) -> Balance:
    confidence = {"before": np.array([0.9, 0.8]), "after": np.array([0.8, 0.6])}
    write_calibration_page(folder, asdict(result), confidence, np.array([1, 0]))
    return Balance((folder / "calibration.html").read_text())


def test_a_page_has_the_sections_that_were_asked_for(tmp_path):
    one = {"asked": 0.9, "held": 0.91, "interval": (0.88, 0.93), "mean_size": 1.2, "single": 0.8}
    page = write(tmp_path, replace(ONE, prediction_sets=[one], training_rows=3))
    assert page.ids == ["before-and-after", "confidence", "abstention", "prediction-sets"]
    assert "0.9 0.9100 0.8800 – 0.9300 1.2000 80.0%" in page.text and "Risk and coverage" in page.text
    assert "3 of the rows are training rows" in page.text and "not reached" in page.text


def test_words_have_no_risk_and_labels_have_thresholds(tmp_path):
    words = replace(ONE, per="word", decisions=7000, abstention=[])
    page = write(tmp_path, words)
    assert page.ids == ["before-and-after", "confidence"] and "Words 7,000" in page.text and "Risk" not in page.text
    several = {"thresholds": {"joy": 0.25}, "f1_macro": {"before": 0.5, "after": 0.6}}
    text = write(tmp_path, replace(words, per="label", **several)).text
    assert "joy 0.2500" in text and "Decisions on labels 7,000" in text
