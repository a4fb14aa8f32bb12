"""Every metric beside scikit-learn or SciPy on random values."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

from bertkit.errors import RecipeError
from bertkit.metrics import registry as metrics
from bertkit.metrics.intervals import find_undefined_reasons
from bertkit.recipe import load_recipe

REFERENCES = {
    "accuracy": sklearn.metrics.accuracy_score,
    "f1_macro": lambda gold, predicted: sklearn.metrics.f1_score(gold, predicted, average="macro", zero_division=0),
    "f1_micro": lambda gold, predicted: sklearn.metrics.f1_score(gold, predicted, average="micro", zero_division=0),
    "f1_weighted": lambda gold, predicted: sklearn.metrics.f1_score(
        gold, predicted, average="weighted", zero_division=0
    ),
    "balanced_accuracy": sklearn.metrics.balanced_accuracy_score,
    "matthews_correlation": sklearn.metrics.matthews_corrcoef,
}
OF_TWO = {
    "f1": sklearn.metrics.f1_score,
    "precision": sklearn.metrics.precision_score,
    "recall": sklearn.metrics.recall_score,
}
NUMBERS = {
    "pearsonr": lambda gold, predicted: scipy.stats.pearsonr(gold, predicted).statistic,
    "spearmanr": lambda gold, predicted: scipy.stats.spearmanr(gold, predicted).statistic,
    "mean_squared_error": sklearn.metrics.mean_squared_error,
    "mean_absolute_error": sklearn.metrics.mean_absolute_error,
    "r2": sklearn.metrics.r2_score,
}


def compute(name, gold, predicted):
    return metrics.VALUE_METRICS[name].compute({"gold": gold, "predicted": predicted})


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.parametrize("labels", [2, 3, 7])
@pytest.mark.parametrize("name", REFERENCES)
def test_labels(name, labels):
    for seed in range(8):
        rng = np.random.default_rng(seed)
        gold = rng.integers(0, labels, 50)
        predicted = np.where(rng.random(50) < 0.6, gold, rng.integers(0, labels, 50))
        assert compute(name, gold, predicted) == pytest.approx(REFERENCES[name](gold, predicted), abs=1e-12)


@pytest.mark.parametrize("name", OF_TWO)
def test_two_labels(name):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        gold, predicted = rng.integers(0, 2, (2, 30))
        expected = OF_TWO[name](gold, predicted, zero_division=0)
        assert compute(name, gold, predicted) == pytest.approx(expected)
    nothing = np.zeros(4, dtype=int)
    assert compute(name, nothing, nothing) == 0


@pytest.mark.parametrize("name", OF_TWO)
def test_metrics_of_two_labels_refuse_three(name):
    with pytest.raises(RecipeError, match="is for two labels"):
        compute(name, np.array([0, 1, 2]), np.array([0, 1, 2]))


@pytest.mark.parametrize("name", ["accuracy", "f1_macro", "f1_micro", "f1_weighted"])
def test_several_labels_at_once(name):
    rng = np.random.default_rng(0)
    gold, predicted = rng.integers(0, 2, (2, 40, 5))
    assert compute(name, gold, predicted) == pytest.approx(REFERENCES[name](gold, predicted))


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name):
    rng = np.random.default_rng(0)
    gold = rng.normal(size=60)
    predicted = gold + rng.normal(size=60)
    assert compute(name, gold, predicted) == pytest.approx(NUMBERS[name](gold, predicted))


@pytest.mark.parametrize(
    ("gold", "predicted", "reason"),
    [
        ([1.0], [2.0], "one row has no correlation"),
        ([1.0, 2.0, 3.0], [2.0, 2.0, 2.0], "all predictions are the same"),
        ([2.0, 2.0], [1.0, 2.0], "all gold values are the same"),
        ([1.0, 2.0], [1.0, math.nan], "it is not a finite number"),
    ],
)
@pytest.mark.parametrize("name", ["pearsonr", "spearmanr"])
def test_a_correlation_that_is_undefined_says_why(name, gold, predicted, reason):
    row_scores = {"gold": np.array(gold), "predicted": np.array(predicted)}
    score = metrics.REGRESSION_METRICS[name].compute(row_scores)
    assert math.isnan(score) and find_undefined_reasons(metrics.REGRESSION_METRICS, {name: score}, row_scores) == {
        name: reason
    }


def test_directions_are_those_of_the_records(monkeypatch):
    assert [name for name in metrics.VALUE_METRICS if metrics.is_lower_better(name)] == [
        "mean_squared_error",
        "mean_absolute_error",
    ]
    assert metrics.is_lower_better("query_active_dims") and metrics.is_lower_better("ranked_probability_score")
    assert not metrics.is_lower_better(f"{__name__}.wrong_rows")
    monkeypatch.setattr(wrong_rows, "lower_is_better", True, raising=False)
    assert metrics.is_lower_better(f"{__name__}.wrong_rows")


def wrong_rows(gold, predicted):
    return float((gold != predicted).sum())


def test_a_step_with_a_score_is_better_than_any_without():
    steps = [(None, 0.1), (0.2, 9.0), (math.nan, 0.05), (0.1, 0.0)]

    def best(greater_is_better, steps):
        return max(steps, key=lambda step: metrics.rank_step(*step, greater_is_better=greater_is_better))

    assert best(True, steps) == (0.2, 9.0)
    assert best(False, steps) == (0.1, 0.0)
    assert best(True, [(None, 0.3), (math.nan, 0.1), (None, None)]) == pytest.approx((math.nan, 0.1), nan_ok=True)


def test_a_constant_prediction_has_matthews_correlation_zero():
    assert metrics.matthews_correlation(np.array([0, 1, 1]), np.array([1, 1, 1])) == 0


@pytest.fixture
def share_script(tmp_path):
    def write(computation: str):
        script = tmp_path / "share" / "share.py"
        script.parent.mkdir()
        script.write_text(
            "import datasets\nimport evaluate\n\n\nclass Share(evaluate.Metric):\n"
            "    def _info(self):\n"
            "        numbers = datasets.Value('int64')\n"
            "        features = datasets.Features({'predictions': numbers, 'references': numbers})\n"
            "        return evaluate.MetricInfo(description='', citation='', features=features)\n\n"
            "    def _compute(self, predictions, references):\n"
            f"        {computation}\n"
        )
        return script

    return write


def test_a_metric_of_the_evaluate_package_by_path(share_script):
    script = share_script("return {'share': sum(a == b for a, b in zip(predictions, references)) / len(references)}")
    recipe = load_recipe("cola", {"metrics": [f"evaluate:{script.parent}"], "best_metric": "share"})
    scores = metrics.compute_metrics(recipe, np.array([0, 1, 1, 0]), np.array([0, 1, 0, 0]))
    assert scores == {"share": 0.75}


def test_a_local_file_is_never_taken_for_a_metric_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "accuracy").mkdir()
    recipe = load_recipe("cola", {"metrics": ["evaluate:accuracy"], "best_metric": "accuracy"})
    with pytest.raises(RecipeError, match="the metric 'accuracy' would load the local path"):
        metrics.compute_metrics(recipe, np.array([0, 1]), np.array([0, 1]))


def test_a_metric_script_that_fails_names_its_line(share_script):
    script = share_script("return {'share': references[99]}")
    recipe = load_recipe("cola", {"metrics": [f"evaluate:{script.parent}"], "best_metric": "share"})
    with pytest.raises(RecipeError, match=r"failed: IndexError: list index out of range \(.*share.py:12\)") as raised:
        metrics.compute_metrics(recipe, np.array([0, 1]), np.array([0, 1]))
    assert raised.value.exit_code == 2
