"""calibration.html: how sure a model is before and after its calibration, what it may abstain from, prediction sets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.metrics import Numbers
from bertkit.reports.confidence import draw_reliability, draw_risk
from bertkit.reports.templates import write_page
from bertkit.reports.text import score_text

CALIBRATION_PAGE = "calibration.html"


def write_calibration_page(
    folder: Path, result: Mapping[str, Any], confidence: Mapping[str, Numbers], right: Numbers
) -> None:
    """Write calibration.html into the folder of a model.

    Args:
        folder: the model's.
        result: the fields of a `bertkit.workflows.calibrate.CalibrationResult`.
        confidence: ``before`` and ``after`` -> the probability of the label that was chosen, (decisions,).
        right: whether it was right, (decisions,).
    """
    pictures = []
    for side, values in confidence.items():
        pictures.append((f"Reliability {side}", draw_reliability(values, right)[1]))
    risk = draw_risk(confidence["after"], right) if result["per"] == "row" else None
    if risk is not None:
        pictures.append((f"Risk and coverage · mean risk {score_text(risk[0])}", risk[1]))
    page = folder / CALIBRATION_PAGE
    write_page(page, "calibration.html.j2", result=result, pictures=pictures, has_risk=risk is not None)
