"""Pictures of how sure a model is, and how often it is right then."""

from __future__ import annotations

import math

from markupsafe import Markup

from bertkit.metrics import Numbers, calibration, statistics
from bertkit.metrics.intervals import wilson_interval
from bertkit.reports import svg

_POINTS = 100  # of a curve


def draw_reliability(confidence: Numbers, right: Numbers) -> tuple[float, Markup]:
    """Draw accuracy over confidence, both of shape (decisions,); return the expected calibration error with it."""
    bins = statistics.calibration(confidence, right)
    points = []
    for count, mean, share in zip(bins.counts, bins.confidence, bins.accuracy, strict=True):
        if count:
            hover = f"confidence {mean:.3f}, accuracy {share:.3f}, {count:,} predictions"
            ends = wilson_interval(round(share * count), count)
            radius = 3 + 6 * math.sqrt(count / max(bins.counts))
            points.append(svg.Point(mean, share, hover, *ends, radius))
    x, y = "confidence", "accuracy"
    return bins.ece, svg.scatter(points, name="Reliability diagram", x=x, y=y, guide=((0, 0), (1, 1)))


def draw_risk(confidence: Numbers, right: Numbers) -> tuple[float, Markup] | None:
    """Draw the share that is wrong over the share that is answered, the most confident first; None if nothing is wrong.

    The mean of that share comes with it.

    Args:
        confidence: of the answer of each row, (rows,).
        right: whether it is right, 0 or 1, (rows,).
    """
    if right.all():
        return None
    curve = [
        (coverage, 1 - precision) for coverage, precision, _ in calibration.risk_coverage(confidence, right, _POINTS)
    ]
    error = float(1 - right.mean())
    lines = {"by confidence": curve, "at random": [(0.0, error), (1.0, error)]}
    area = calibration.area_under_risk(confidence, right)
    return area, svg.line_chart(lines, name="Risk and coverage", x="share answered")
