"""Numbers for texts: rows, features, predictions and the baseline."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

from bertkit.errors import DataError
from bertkit.metrics.linear import TFIDF
from bertkit.recipe import load_recipe
from bertkit.tasks import REGRESSION_METRICS, TaskContext
from bertkit.tasks import text_regression as task
from tests.conftest import make_tokenizer


@pytest.fixture
def context():
    return TaskContext(load_recipe("stsb"), make_tokenizer(), ("value",))


@pytest.mark.parametrize(("label", "number"), [("2.5", 2.5), (3, 3.0), ("-1e-3", -0.001), (True, 1.0)])
def test_a_label_is_read_as_a_number(label, number):
    assert task.read({"text": "a", "label": label}, load_recipe("regress"))["label"] == number


@pytest.mark.parametrize("label", ["", " ", None, float("nan")])
def test_no_label_is_refused_with_its_remedy(context, label):
    with pytest.raises(DataError, match=r"no label \(column 'label'\) - fill it in, or --set data.empty_label=drop"):
        task.read({"text": "a", "label": label}, context.recipe)


@pytest.mark.parametrize("label", ["many", "nan", float("inf"), [1]])
def test_anything_else_is_refused(context, label):
    with pytest.raises(DataError, match=r"is not a number \(column 'label'\)"):
        task.read({"text": "a", "label": label}, context.recipe)


def test_a_decimal_comma_is_named(context):
    with pytest.raises(DataError, match=r"label '4,5' is not a number \(column 'label'\) - write a decimal point: 4.5"):
        task.read({"text": "a", "label": "4,5"}, context.recipe)


@pytest.mark.parametrize("label", ["5.01", -1, 45])
def test_a_number_out_of_the_range_of_its_recipe_is_refused(context, label):
    expected = f"label {label} is not in the range of this recipe, 0 to 5 (column 'label') - correct it, or change"
    with pytest.raises(DataError, match=re.escape(expected)):
        task.read({"text": "a", "label": label}, context.recipe)
    assert task.read({"text": "a", "label": label}, load_recipe("regress"))["label"] == float(label)


@pytest.mark.parametrize("label", [0, 5, "2.5"])
def test_the_ends_of_a_range_are_in_it(context, label):
    assert task.read({"text": "a", "label": label}, context.recipe)["label"] == float(label)


def test_a_text_that_is_not_text_is_refused(context):
    with pytest.raises(DataError, match=r"7 is not text \(column 'text_pair'\)"):
        task.read({"text": "a", "text_pair": 7}, context.recipe)


def test_numbers_of_windows_have_a_mean_or_a_highest_and_no_votes():
    outputs = [{"logits": np.array([[1.0], [4.0], [np.nan]]), "windows": 2.0}]
    for way, number in (("windows_mean", 2.5), ("windows_max", 4.0)):
        context = TaskContext(load_recipe("stsb", {"options.long_text": way}), make_tokenizer(), ("value",))
        assert task.decode(outputs, [], [], context) == [{"prediction": number}]
    assert "windows_vote" not in task.OPTIONS["long_text"].choices


def test_rows_go_to_scores(context):
    rows = [{"text": "good", "text_pair": "fine", "label": 4.0}, {"text": "bad", "text_pair": "good", "label": 1.0}]
    features = task.encode(rows, context)
    batch = task.collator(context)(features)
    assert batch["labels"].tolist() == [4.0, 1.0] and batch["input_ids"].shape == (2, 5)
    outputs = [{"logits": np.array([3.5], dtype=np.float32)}, {"logits": np.array([2.0], dtype=np.float32)}]
    predictions = task.decode(outputs, features, rows, context)
    assert predictions == [{"prediction": 3.5}, {"prediction": 2.0}]
    scores = task.score(task.compare(predictions, rows, context), context)
    assert set(scores) == set(context.recipe.metrics) and scores["pearsonr"] == pytest.approx(1.0)


def test_scores_are_those_of_scipy_and_scikit_learn():
    draw = np.random.default_rng(0)
    gold = draw.integers(0, 11, 50) / 2  # with ties
    predicted = gold + draw.normal(size=50)
    context = TaskContext(
        load_recipe("regress", {"metrics": list(REGRESSION_METRICS), "best_metric": "r2"}), make_tokenizer(), ()
    )
    rows, records = [{"label": value} for value in gold], [{"prediction": value} for value in predicted]
    assert task.score(task.compare(records, rows, context), context) == pytest.approx(
        {
            "pearsonr": scipy.stats.pearsonr(gold, predicted).statistic,
            "spearmanr": scipy.stats.spearmanr(gold, predicted).statistic,
            "mean_squared_error": sklearn.metrics.mean_squared_error(gold, predicted),
            "mean_absolute_error": sklearn.metrics.mean_absolute_error(gold, predicted),
            "r2": sklearn.metrics.r2_score(gold, predicted),
        }
    )


def test_a_row_to_predict_has_no_label(context):
    (feature,) = task.encode([task.read({"text": "a", "text_pair": "b"}, context.recipe)], context)
    assert "labels" not in feature


def test_the_baseline_is_the_mean(context):
    rows = [{"text": "small", "label": 1.0}, {"text": "large", "label": 4.0}]
    assert task.baselines(task.fit_baselines(rows, context), rows, context) == {"mean": [{"prediction": 2.5}] * 2}
    predicted = task.baselines(task.fit_baselines(rows * 20, context), rows, context)[TFIDF]
    assert [row["prediction"] for row in predicted] == pytest.approx([1, 4], abs=0.2)


@pytest.mark.parametrize("factor", [100_000.0, 1e-5])
def test_baselines_have_any_scale(context, factor):
    rows = [{"text": word, "text_pair": "small", "label": factor * n} for n, word in enumerate(("small", "large"), 1)]
    predicted = task.baselines(task.fit_baselines(rows * 20, context), rows, context)
    for name in (TFIDF, "shared words"):
        assert [row["prediction"] for row in predicted[name]] == pytest.approx([factor, 2 * factor], rel=0.4)


def test_pairs_have_the_shared_words_as_a_baseline(context):
    words = ["one two", "three four", "five six", "two three", "six one"]
    rows = [
        {"text": one, "text_pair": other, "label": 5.0 if one == other else 2.5 if set(one) & set(other) else 0.0}
        for one in words
        for other in words
    ]
    predicted = task.baselines(task.fit_baselines(rows * 4, context), rows, context)["shared words"]
    same = [row["prediction"] for row, gold in zip(predicted, rows, strict=True) if gold["label"] == 5.0]
    assert min(same) > 4 and all(type(number) is float for number in same)
