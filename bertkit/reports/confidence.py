"""Pictures of confidence and accuracy, and calibration.html, which shows them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from bertkit.metrics import calibration
from bertkit.metrics.intervals import wilson_interval
from bertkit.metrics.reliability import find_bins
from bertkit.reports import svg
from bertkit.reports.templates import write_page
from bertkit.reports.text import score_text

_POINTS = 100  # points per curve


def draw_reliability(confidence: np.ndarray, correct: np.ndarray) -> Markup:
    """Draw accuracy over confidence, both of shape (decisions,)."""
    points, (_, inverse, counts) = [], np.unique(find_bins(confidence), return_inverse=True, return_counts=True)
    for index, count in enumerate(counts.tolist()):
        mean, share = confidence[inverse == index].mean(), correct[inverse == index].mean()
        hover = f"confidence {mean:.3f}, accuracy {share:.3f}, {count:,} decisions"
        # A bin with few decisions is far from the diagonal by chance; its whisker shows how far that can be.
        ends = wilson_interval(round(share * count), count)
        points.append(svg.Point(mean, share, hover, *ends, radius=3 + 6 * math.sqrt(count / counts.max())))
    return svg.scatter(points, name="Reliability diagram", x="confidence", y="accuracy", guide=((0, 0), (1, 1)))


def draw_risk(confidence: np.ndarray, correct: np.ndarray) -> tuple[float, Markup] | None:
    """Draw the fraction of wrong answers over the answered fraction, most confident first; None if nothing is wrong.

    The mean of that fraction is returned with the picture.

    Args:
        confidence: Confidence in the answer of each row, (rows,).
        correct: Whether the answer is correct, 0 or 1, (rows,).
    """
    if correct.all():
        return None
    curve = [
        (coverage, 1 - precision) for coverage, precision, _ in calibration.risk_coverage(confidence, correct, _POINTS)
    ]
    error = float(1 - correct.mean())
    # A model whose confidence means nothing has the horizontal line: its risk is the same at every coverage.
    lines = {"by confidence": curve, "at random": [(0.0, error), (1.0, error)]}
    area = calibration.area_under_risk(confidence, correct)
    return area, svg.line_chart(lines, name="Risk and coverage", x="share answered")


CALIBRATION_PAGE = "calibration.html"


def write_calibration_page(
    folder: Path, result: Mapping[str, Any], confidence: Mapping[str, np.ndarray], correct: np.ndarray
) -> None:
    """Write calibration.html into the folder of a model.

    Args:
        folder: Folder of the model.
        result: Fields of a `bertkit.workflows.calibrate.CalibrationResult`.
        confidence: ``before`` and ``after`` -> probability of the selected label, (decisions,).
        correct: Whether that label is correct, (decisions,).
    """
    pictures = []
    for side, values in confidence.items():
        pictures.append((f"Reliability {side}", draw_reliability(values, correct)))
    # A model abstains from rows, so decisions on single labels or entities have no such curve.
    risk = draw_risk(confidence["after"], correct) if result["per"] == "row" else None
    if risk is not None:
        pictures.append((f"Risk and coverage · mean risk {score_text(risk[0])}", risk[1]))
    page = folder / CALIBRATION_PAGE
    described = {**result, "temperature": calibration.describe_temperature(result["temperature"])}
    write_page(page, "calibration.html.j2", result=described, pictures=pictures, has_risk=risk is not None)
