from __future__ import annotations

import math

import numpy as np
import pytest

from bertkit.metrics.statistics import calibration


def test_calibration_equals_a_plain_loop() -> None:
    draw = np.random.default_rng(2)
    confidence = np.concatenate([draw.random(500), [0.0, 0.1, 0.3, 0.7, 1.0]])
    correct = draw.random(505) < confidence**2
    found = calibration(confidence, correct, bins=10)

    expected = 0.0
    for bin_number in range(10):
        low, high = found.edges[bin_number], found.edges[bin_number + 1]
        inside = (confidence > low) & (confidence <= high) | ((bin_number == 0) & (confidence == 0))
        assert found.counts[bin_number] == inside.sum()
        assert found.accuracy[bin_number] == pytest.approx(correct[inside].mean())
        assert found.confidence[bin_number] == pytest.approx(confidence[inside].mean())
        expected += inside.sum() / 505 * abs(correct[inside].mean() - confidence[inside].mean())
    assert found.ece == pytest.approx(expected)
    assert sum(found.counts) == 505


def test_calibration_of_known_rows() -> None:
    found = calibration(np.array([0.95, 0.95, 0.55, 0.55]), np.array([True, False, True, False]), bins=2)
    assert found.counts == (0, 4)
    assert found.ece == pytest.approx(0.25)
    assert math.isnan(found.accuracy[0]) and math.isnan(found.confidence[0])
    assert calibration(np.ones(8), np.ones(8, dtype=bool)).ece == 0.0


def test_calibration_takes_what_a_float32_softmax_gives() -> None:
    above_one = np.nextafter(np.float32(1), np.float32(2), dtype=np.float32)
    assert calibration(np.array([above_one]), np.array([True])).counts[-1] == 1


def test_calibration_of_no_rows_is_not_a_number() -> None:
    assert math.isnan(calibration(np.array([]), np.array([])).ece)


@pytest.mark.parametrize(
    ("confidence", "correct", "bins"),
    [([1.2], [1], 10), ([math.nan], [1], 10), ([0.5, 0.5], [1], 10), ([0.5], [1], 0), ([[0.5]], [[1]], 10)],
)
def test_calibration_refuses(confidence: list[float], correct: list[int], bins: int) -> None:
    with pytest.raises(ValueError, match=r"\[0, 1\]|one length"):
        calibration(np.array(confidence), np.array(correct), bins)
