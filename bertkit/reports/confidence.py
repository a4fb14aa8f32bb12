"""Pictures of confidence and accuracy, and the page calibration.html."""

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

_CURVE_POINTS = 100


def draw_reliability(confidence: np.ndarray, is_right: np.ndarray) -> Markup:
    """Draw the accuracy of decisions over their confidence. Shape of both arrays: (decisions,)."""
    _, bin_indices, counts = np.unique(find_bins(confidence), return_inverse=True, return_counts=True)
    dots = []
    for index, count in enumerate(counts.tolist()):
        mean, accuracy = confidence[bin_indices == index].mean(), is_right[bin_indices == index].mean()
        hover = f"confidence {mean:.3f}, accuracy {accuracy:.3f}, {count:,} decisions"
        # The whisker shows how far a bin with few decisions can be from the diagonal by chance.
        interval = wilson_interval(round(accuracy * count), count)
        dots.append(svg.Dot(mean, accuracy, hover, *interval, radius=3 + 6 * math.sqrt(count / counts.max())))
    return svg.scatter(dots, name="Reliability diagram", x="confidence", y="accuracy", guide=((0, 0), (1, 1)))


def draw_risk(confidence: np.ndarray, is_right: np.ndarray) -> tuple[float, Markup] | None:
    """Draw the risk over the coverage: the fraction of wrong answers among the most confident ones.

    Args:
        confidence: Confidence in the answer of each row. Shape: (rows,).
        is_right: Whether the answer is right, 0 or 1. Shape: (rows,).

    Returns:
        Mean risk and picture, or None if no answer is wrong.
    """
    if is_right.all():
        return None
    curve = [
        (coverage, 1 - precision)
        for coverage, precision, _ in calibration.risk_coverage(confidence, is_right, _CURVE_POINTS)
    ]
    error = float(1 - is_right.mean())
    # If the confidence has no information, the risk is the same at every coverage.
    lines = {"by confidence": curve, "at random": [(0.0, error), (1.0, error)]}
    mean_risk = calibration.area_under_risk(confidence, is_right)
    return mean_risk, svg.line_chart(lines, name="Risk and coverage", x="fraction answered")


CALIBRATION_PAGE = "calibration.html"


def write_calibration_page(
    folder: Path, result: Mapping[str, Any], confidence: Mapping[str, np.ndarray], is_right: np.ndarray
) -> None:
    """Write calibration.html into the folder of a model.

    Args:
        folder: Folder of the model.
        result: Fields of a `bertkit.workflows.calibrate.CalibrationResult`.
        confidence: ``before`` and ``after`` -> probability of the predicted label. Shape: (decisions,).
        is_right: Whether that label is right. Shape: (decisions,).
    """
    pictures = [(f"Reliability {stage}", draw_reliability(values, is_right)) for stage, values in confidence.items()]
    # Models abstain from rows, so decisions about single labels or words have no risk curve.
    risk = draw_risk(confidence["after"], is_right) if result["per"] == "row" else None
    if risk is not None:
        pictures.append((f"Risk and coverage · mean risk {score_text(risk[0])}", risk[1]))
    result = {**result, "temperature": calibration.describe_temperature(result["temperature"])}
    page = folder / CALIBRATION_PAGE
    write_page(page, "calibration.html.j2", result=result, pictures=pictures, has_risk=risk is not None)
