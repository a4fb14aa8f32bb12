"""Pictures of confidence."""

from __future__ import annotations

import numpy as np

from bertkit.metrics.calibration import area_under_risk
from bertkit.reports.confidence import draw_reliability, draw_risk


def test_a_reliability_diagram_has_a_dot_per_bin():
    confidence, right = np.array([0.55, 0.56, 0.95]), np.array([1.0, 0.0, 1.0])
    picture = draw_reliability(confidence, right)
    assert picture.count("<circle") == 2 and "confidence 0.555, accuracy 0.500, 2 decisions" in picture


def test_risk_is_drawn_where_something_is_wrong():
    confidence, right = np.array([0.9, 0.8, 0.7, 0.6]), np.array([1, 1, 1, 0])
    area, picture = draw_risk(confidence, right)
    assert area == area_under_risk(confidence, right) == 0.0625
    assert "by confidence: 0.25 at fraction answered 1" in picture and "at random: 0.25" in picture
    assert draw_risk(confidence, np.ones(4)) is None
