from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from bertkit.metrics.statistics import calibration, confusion_table, label_scores

LABELS = ["joy", "fear", "anger"]


def drawn_labels() -> tuple[list[str], list[str]]:
    draw = np.random.default_rng(0)
    return draw.choice(LABELS, 60).tolist(), draw.choice(LABELS, 60).tolist()


def test_scores_of_labels_are_those_of_scikit_learn() -> None:
    gold, predicted = drawn_labels()
    expected = precision_recall_fscore_support(gold, predicted, labels=LABELS)
    found = {
        score.name: (score.precision, score.recall, score.f1, score.support)
        for score in label_scores([{name} for name in gold], [{name} for name in predicted], LABELS)
    }
    assert [found[name] for name in LABELS] == [pytest.approx(of_label) for of_label in zip(*expected, strict=True)]


def test_confused_labels_are_those_of_scikit_learn() -> None:
    gold, predicted = drawn_labels()
    table = confusion_table(gold, predicted, LABELS)
    assert [name for name, _ in table] == LABELS
    assert [list(counts.values()) for _, counts in table] == confusion_matrix(gold, predicted, labels=LABELS).tolist()


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
