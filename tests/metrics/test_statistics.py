from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import accuracy_score

from bertkit.metrics.statistics import bootstrap_intervals, calibration, wilson_interval


def test_bootstrap_equals_a_plain_loop() -> None:
    values = np.random.default_rng(1).normal(size=40)
    draw = np.random.default_rng(7)
    means = sorted(values[draw.integers(0, 40, size=40)].mean() for _ in range(201))

    found = bootstrap_intervals(lambda rows: {"mean": values[rows].mean()}, 40, samples=201, level=0.9, seed=7)

    assert found == {"mean": pytest.approx((means[10], means[190]))}


def test_bootstrap_agrees_with_scipy_on_accuracy() -> None:
    gold = np.random.default_rng(0).integers(0, 2, 300)
    predicted = np.where(np.random.default_rng(1).random(300) < 0.8, gold, 1 - gold)
    reference = stats.bootstrap(
        (gold == predicted,), np.mean, n_resamples=2000, method="percentile", rng=np.random.default_rng(3)
    ).confidence_interval

    found = bootstrap_intervals(
        lambda rows: {"accuracy": accuracy_score(gold[rows], predicted[rows])}, 300, samples=2000
    )

    assert found["accuracy"] == pytest.approx((reference.low, reference.high), abs=0.01)


def test_bootstrap_is_repeatable_and_seeded() -> None:
    def score(rows: np.ndarray) -> dict[str, float]:
        return {"mean": float(rows.mean())}

    assert bootstrap_intervals(score, 50, samples=99) == bootstrap_intervals(score, 50, samples=99)
    assert bootstrap_intervals(score, 50, samples=99) != bootstrap_intervals(score, 50, samples=99, seed=1)


def test_bootstrap_leaves_out_what_is_not_finite() -> None:
    finite: list[float] = []

    def score(rows: np.ndarray) -> dict[str, float]:
        value = float(rows.mean()) if 0 in rows else math.nan
        finite.extend([value] * (0 in rows))
        return {"sometimes": value, "never": math.inf}

    found = bootstrap_intervals(score, 3, samples=200)

    assert 0 < len(finite) < 200
    assert found["sometimes"] == pytest.approx(np.quantile(finite, [0.025, 0.975]))
    assert found["never"] is None


def test_one_row_cannot_be_resampled():
    assert bootstrap_intervals(lambda rows: {"accuracy": float(len(rows))}, 1) == {"accuracy": None}


def test_bootstrap_covers_the_truth_about_as_often_as_it_says() -> None:
    draw = np.random.default_rng(5)
    hits = 0
    for trial in range(200):
        sample = draw.random(100) < 0.7
        low, high = bootstrap_intervals(
            lambda rows, sample=sample: {"share": sample[rows].mean()}, 100, samples=200, seed=trial
        )["share"]
        hits += low <= 0.7 <= high
    assert 178 <= hits <= 199


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


@pytest.mark.parametrize(("successes", "total"), [(0, 5), (1, 1), (7, 9), (50, 100), (9999, 10000)])
@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
def test_wilson_agrees_with_scipy(successes: int, total: int, level: float) -> None:
    reference = stats.binomtest(successes, total).proportion_ci(level, method="wilson")
    assert wilson_interval(successes, total, level) == pytest.approx((reference.low, reference.high))


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="successes"):
        wilson_interval(3, 2)
    with pytest.raises(ValueError, match="level"):
        wilson_interval(1, 2, level=95)
    with pytest.raises(ValueError, match="at least one"):
        bootstrap_intervals(lambda rows: {}, 0)
