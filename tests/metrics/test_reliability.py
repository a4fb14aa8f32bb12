from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import expit
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from bertkit.metrics.calibration import as_pairs
from bertkit.metrics.reliability import (
    calibration_errors,
    confusion_table,
    describe_calibration,
    find_bins,
    label_scores,
    sample_evenly,
)
from tests.metrics.test_calibration import draw

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
    expected = 0.0
    for bin_number in range(15):
        low, high = np.linspace(0, 1, 16)[bin_number : bin_number + 2]
        inside = (confidence >= low) & ((confidence < high) | (high == 1))
        assert (find_bins(confidence) == bin_number).sum() == inside.sum()
        if inside.any():
            expected += inside.sum() / 505 * abs(correct[inside].mean() - confidence[inside].mean())
    assert calibration_errors(confidence, correct)["ece"] == pytest.approx(expected)


def test_calibration_of_known_rows() -> None:
    found = calibration_errors(np.array([0.95, 0.95, 0.55, 0.55]), np.array([1, 0, 1, 0]))
    assert found["ece"] == pytest.approx(0.25)
    assert calibration_errors(np.ones(8), np.ones(8))["ece"] == 0.0


def test_calibration_takes_what_a_float32_softmax_gives() -> None:
    above_one = np.nextafter(np.float32(1), np.float32(2), dtype=np.float32)
    assert find_bins(np.array([above_one])).tolist() == [14]


def test_calibration_errors_are_those_of_a_plain_loop():
    random = np.random.default_rng(1)
    confidence = random.uniform(0.3, 1, size=75)
    right = (random.uniform(size=75) < confidence**2).astype(float)
    expected = 0.0
    for low in range(15):
        rows = [n for n in range(75) if low / 15 <= confidence[n] < (low + 1) / 15]
        if rows:
            expected += len(rows) / 75 * abs(confidence[rows].mean() - right[rows].mean())
    by_rank = np.argsort(confidence).reshape(15, 5)
    gaps = [confidence[rows].mean() - right[rows].mean() for rows in by_rank]
    chance = [right[rows].var(ddof=1) / 5 for rows in by_rank]
    assert calibration_errors(confidence, right) == pytest.approx(
        {
            "ece": expected,
            "adaptive_ece": np.abs(gaps).mean(),
            "squared_error_debiased": np.mean(np.square(gaps)) - np.mean(chance),
        }
    )


def test_the_debiased_error_of_calibrated_probabilities_is_zero_on_average_and_that_of_bins_is_not():
    found = []
    for seed in range(100):
        confidence = np.random.default_rng(seed).uniform(0.5, 1, size=300)
        right = (np.random.default_rng(seed + 10**6).uniform(size=300) < confidence).astype(float)
        found.append([*calibration_errors(confidence, right).values()])
    means, deviations = np.mean(found, axis=0), np.std(found, axis=0) / math.sqrt(len(found))
    assert abs(means[2]) < 3 * deviations[2] and means[1] > 0.05


def test_weights_count_decisions_again():
    random = np.random.default_rng(2)
    confidence, right = random.uniform(0.3, 1, size=45), random.integers(2, size=45).astype(float)
    weights = np.full(45, 2.0)
    again = calibration_errors(np.repeat(confidence, 2), np.repeat(right, 2))
    assert calibration_errors(confidence, right, weights) == pytest.approx(again)
    weights = random.integers(3, size=45)
    ece = calibration_errors(np.repeat(confidence, weights), np.repeat(right, weights))["ece"]
    assert calibration_errors(confidence, right, weights.astype(float))["ece"] == pytest.approx(ece)


def test_words_of_a_row_are_drawn_together():
    probabilities, gold, _ = draw(60)
    one = describe_calibration(probabilities, gold, np.arange(60))["nll"]
    five = describe_calibration(np.repeat(probabilities, 5, axis=0), np.repeat(gold, 5), np.repeat(np.arange(60), 5))
    assert five["nll"]["value"] == pytest.approx(one["value"])  # equal words tell nothing new
    assert five["nll"]["interval"] == pytest.approx(one["interval"])
    assert one["interval"][0] < one["value"] < one["interval"][1]


def test_intervals_of_calibration_errors_hold_what_they_are_of():
    """Their own values, 0 of a calibrated model, and the error of one that is too sure, on nearly all draws of rows."""
    random = np.random.default_rng(0)
    logits = 2 * random.normal(size=200_000)
    for times in (1, 2):
        sure = expit(times * logits)
        true = calibration_errors(np.maximum(sure, 1 - sure), np.where(logits > 0, expit(logits), expit(-logits)))
        held = 0
        for _ in range(20):
            rows = random.integers(len(logits), size=300)
            gold = (random.uniform(size=300) < expit(logits[rows])).astype(int)
            found = describe_calibration(as_pairs(sure[rows]), gold, np.arange(300), samples=60)
            ends = [found[name]["interval"] for name in true]
            assert all(low <= found[name]["value"] <= high for name, (low, high) in zip(true, ends, strict=True))
            assert (ends[0][0] == 0) == (ends[1][0] == 0) == (ends[2][0] <= 0)
            held += all(
                low <= value + 1e-9 and value <= high for value, (low, high) in zip(true.values(), ends, strict=True)
            )
        assert held >= 16


def test_probabilities_without_any_error_have_no_interval():
    certain = np.tile([0.0, 1.0], (40, 1))
    found = describe_calibration(certain, np.ones(40, dtype=int), np.arange(40), samples=20)
    assert {name: (one["value"], one["interval"]) for name, one in found.items()} == dict.fromkeys(found, (0.0, None))


def test_thin_keeps_the_ends() -> None:
    assert sample_evenly(range(1000), 5) == [0, 250, 500, 749, 999]
    assert sample_evenly([1, 2], 5) == [1, 2]
