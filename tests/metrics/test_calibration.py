"""Calibration beside scipy, scikit-learn and plain loops; what is promised of new rows is tested by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_softmax, logit, softmax
from sklearn.metrics import f1_score, log_loss

from bertkit.metrics import calibration as metrics
from bertkit.metrics.reliability import describe_calibration


def draw(rows: int, labels: int = 3, sharp: float = 2.0, seed: int = 0):
    """Probabilities that are too sure by the factor `sharp`, and gold labels drawn from the true ones."""
    random = np.random.default_rng(seed)
    logits = 1.5 * random.normal(size=(rows, labels))
    gold = np.array([random.choice(labels, p=row) for row in softmax(logits, axis=1)])
    return softmax(sharp * logits, axis=1), gold, sharp * logits


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.7])
def test_tempered_probabilities_are_a_softmax_of_divided_logits(temperature):
    probabilities, _, logits = draw(20)
    expected = softmax(logits / temperature, axis=1)
    assert metrics.temper(probabilities, temperature) == pytest.approx(expected)
    one = metrics.temper_labels(expit(logits), temperature)
    assert one == pytest.approx(expit(logits / temperature))


def test_a_label_that_a_row_lacks_stays_without_probability():
    assert metrics.temper(np.array([[0.8, 0.2, 0.0]]), 2)[0, 2] == 0


def test_the_temperature_is_that_of_the_least_likelihood_of_scipy_and_finds_the_true_one():
    probabilities, gold, logits = draw(4000)
    nll = lambda t: -log_softmax(logits / t, axis=1)[np.arange(len(gold)), gold].mean()  # noqa: E731
    found = metrics.fit_temperature(probabilities, gold)
    assert found == pytest.approx(minimize_scalar(nll, bounds=(0.1, 10), method="bounded").x, rel=1e-3)
    assert found == pytest.approx(2.0, rel=0.1)
    tempered = metrics.temper(probabilities, found)
    assert describe_calibration(tempered[:200], gold[:200], np.arange(200))["nll"]["value"] == pytest.approx(
        log_loss(gold[:200], tempered[:200], labels=[0, 1, 2])
    )


def test_no_row_is_tempered_by_a_temperature_that_it_was_fitted_to():
    probabilities, gold, _ = draw(60)
    groups = np.repeat(np.arange(30), 2)

    def temper_folds(gold):
        decisions = metrics.Decisions(probabilities, gold, groups)
        return metrics.temper_folds(decisions, metrics.fit_folds(decisions, groups, 3))

    across = temper_folds(gold)
    for is_held_out in metrics.split_folds(groups):
        assert is_held_out.reshape(-1, 2).all(axis=1).sum() * 2 == is_held_out.sum() == 12  # whole groups
        other = gold.copy()
        other[is_held_out] = (gold[is_held_out] + 1) % 3
        again = temper_folds(other)
        assert (again[is_held_out] == across[is_held_out]).all()


def test_each_type_has_the_temperature_of_its_own_decisions():
    """Held against a loop over the types; one of few decisions gets the temperature of all."""
    probabilities, gold, _ = draw(300)
    types = np.array(["choice", "score"])[np.arange(300) % 2]
    probabilities[types == "score"] = metrics.temper(probabilities[types == "score"], 3.0)
    types[:5] = "yes_no"
    decisions = metrics.Decisions(probabilities, gold, np.arange(300), types=types)
    found = metrics.fit_temperatures(decisions)
    for name in ("choice", "score"):
        assert found[name] == metrics.fit_temperature(probabilities[types == name], gold[types == name])
    assert found["choice"] > 2 * found["score"]
    assert found["yes_no"] == metrics.fit_temperature(probabilities, gold)
    tempered = metrics.temper_decisions(decisions, found)
    for line, row, name in zip(tempered, probabilities, types, strict=True):
        assert line == pytest.approx(row ** (1 / found[name]) / (row ** (1 / found[name])).sum())
    unknown = metrics.temper_decisions(decisions, {"choice": 2.0})
    assert unknown[types == "score"] == pytest.approx(probabilities[types == "score"])


def test_one_question_of_each_type_is_drawn_from_a_row():
    rows, types = np.array([0, 0, 0, 1, 1, 2]), np.array(["a", "a", "b", "a", "a", "b"])
    decisions = metrics.Decisions(np.ones((6, 1)), np.zeros(6, dtype=int), rows, "question", types)
    chosen = decisions.by_type()
    assert rows[chosen["a"]].tolist() == [0, 1] and rows[chosen["b"]].tolist() == [0, 2]
    assert set(types[chosen["a"]]) == {"a"}
    assert decisions._replace(unit="word").by_type() == {}


def test_a_threshold_has_the_best_f1_of_all():
    random = np.random.default_rng(3)
    for _ in range(3):
        probabilities = random.integers(1, 20, size=30) / 20
        gold = (random.uniform(size=30) < probabilities).astype(int)
        threshold = metrics.tune_threshold(probabilities, gold)
        scores = [f1_score(gold, probabilities >= one, zero_division=0) for one in np.arange(1, 40, 2) / 40]
        assert f1_score(gold, probabilities >= threshold) == pytest.approx(max(scores))
    assert metrics.tune_threshold(probabilities, np.zeros(30)) == 0.5


@pytest.mark.slow
def test_the_precision_that_is_asked_for_holds_on_new_rows_as_often_as_promised():
    probabilities, gold, _ = draw(200_000, labels=2, sharp=1.5, seed=9)
    missed = shown = 0
    for seed in range(150):
        rows = np.random.default_rng(seed).choice(len(gold), 400, replace=False)
        temperature = metrics.fit_temperature(probabilities[rows[:100]], gold[rows[:100]])
        confidence = metrics.temper(probabilities, temperature).max(axis=1)
        right = (probabilities.argmax(axis=1) == gold).astype(int)
        found = metrics.find_abstention(confidence[rows], right[rows], 0.85)
        if found is not None:
            shown += 1
            missed += right[confidence >= found.threshold].mean() < 0.85
    assert shown > 75 and missed <= 0.05 * 150 + 2 * math.sqrt(150 * 0.05 * 0.95)


def test_a_precision_that_rows_do_not_show_has_no_threshold():
    assert metrics.find_abstention(np.full(20, 0.99), np.ones(20), 0.99) is None
    found = metrics.find_abstention(np.full(200, 0.99), np.ones(200), 0.95)
    assert found is not None and (found.coverage, found.precision) == (1, 1)


def test_prediction_sets_hold_the_gold_label_as_often_as_promised():
    covered = []
    for seed in range(300):
        probabilities, gold, _ = draw(60, labels=2, seed=seed)
        of_gold = probabilities[np.arange(60), gold]
        threshold = metrics.find_set_threshold(of_gold[:59], 0.9)
        covered.append(of_gold[59] >= threshold)
    # the share is between 0.9 and 0.9 + 1 / 60, over rows to calibrate on and the new one
    assert 0.9 - 3 * math.sqrt(0.09 / 300) <= np.mean(covered) <= 0.92 + 3 * math.sqrt(0.09 / 300)
    assert metrics.find_set_threshold(np.array([0.5, 0.6]), 0.9) == 0  # two rows can promise it of all labels only


def test_risk_and_coverage_are_those_of_the_most_confident_rows():
    confidence, right = np.array([0.9, 0.5, 0.7, 0.6]), np.array([1, 0, 1, 0])
    assert metrics.risk_coverage(confidence, right, points=2) == [(0.5, 1.0, 0.7), (1.0, 0.5, 0.5)]


def test_what_a_prediction_adds():
    probabilities = np.array([0.1, 0.6, 0.3])
    decide = lambda **options: metrics.apply_options(probabilities, "abc", options.get)  # noqa: E731
    assert decide() == {}
    assert decide(abstain_below=0.6) == {"abstain": False} and decide(abstain_below=0.7) == {"abstain": True}
    assert decide(set_above=0.25) == {"prediction_set": ["b", "c"]} and decide(set_above=0.9)["prediction_set"] == ["b"]


@pytest.mark.parametrize("value", [3, {"a": 2}, {"a": True}, ["a"]])
def test_thresholds_are_shares_by_label(value):
    with pytest.raises(ValueError, match="give label: number between 0 and 1"):
        metrics.read_thresholds(value)
    assert metrics.read_thresholds({"a": 1}) == {"a": 1.0} and metrics.read_thresholds(None) is None


def test_yes_or_no_labels_are_rows_of_two():
    assert metrics.as_pairs(np.array([0.2, 0.9])) == pytest.approx(np.array([[0.8, 0.2], [0.1, 0.9]]))
    assert logit(metrics.temper_labels(np.array([0.9]), 2))[0] == pytest.approx(logit(0.9) / 2)


def test_the_area_under_the_risk_is_that_of_a_plain_loop():
    confidence, right = np.random.default_rng(0).uniform(size=(2, 30)).round(3)
    right = (right < 0.7).astype(int)
    order = sorted(range(30), key=lambda row: -confidence[row])
    risks = [np.mean([1 - right[row] for row in order[:count]]) for count in range(1, 31)]
    assert metrics.area_under_risk(confidence, right) == pytest.approx(np.mean(risks))


def test_sets_are_measured_on_rows_that_they_were_not_fitted_to():
    probabilities, gold, _ = draw(600)
    found = metrics.measure_prediction_sets(probabilities, gold, np.arange(600), 0.9)
    assert found["interval"][0] < 0.9 < found["interval"][1] and 1 <= found["mean_size"] <= 3
    small = metrics.measure_prediction_sets(probabilities, gold, np.arange(600), 0.2)
    assert (small["mean_size"], small["single"]) == (1, 1)  # no set is empty
    assert small["held"] == pytest.approx((probabilities.argmax(axis=1) == gold).mean())
    lacking = np.pad(probabilities[:4], ((0, 0), (0, 1)))
    assert metrics.measure_prediction_sets(lacking, gold[:4], np.arange(4), 0.9)["mean_size"] == 3
