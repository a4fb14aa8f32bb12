"""Scores: a metric that is missing is refused, and what is predicted is written under the name of its split."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from bertkit.data.rows import Split
from bertkit.errors import RecipeError
from bertkit.evaluation.scoring import explain_undefined, find_intervals, get_split_suffix, write_predictions
from bertkit.metrics.registry import REGRESSION_METRICS, check_best_metric
from bertkit.recipe import load_recipe


def test_a_best_metric_that_is_not_scored_is_refused_with_those_that_are():
    recipe = load_recipe("classify", {"best_metric": "accuracy"})
    check_best_metric(recipe, {"accuracy": 0.5, "f1_macro": 0.4})
    with pytest.raises(RecipeError, match="best_metric 'accuracy' is not scored"):
        check_best_metric(recipe, {"f1_macro": 0.4})


def test_an_interval_is_around_the_score_and_the_same_every_time():
    right = np.arange(200) % 4 > 0
    task = SimpleNamespace(
        METRICS=["accuracy"], score=lambda row_scores, context: {"accuracy": float(row_scores["right"].mean())}
    )
    scored = SimpleNamespace(
        row_scores={"right": right}, context=None, predictions=right.tolist(), scores={"accuracy": right.mean()}
    )
    low, high = find_intervals(task, scored).bounds["accuracy"]
    assert 0.65 < low < 0.75 < high < 0.85
    assert find_intervals(task, scored).bounds["accuracy"] == (low, high)


def test_what_is_undefined_is_none_with_its_reason():
    task = SimpleNamespace(
        METRICS=REGRESSION_METRICS,
        score=lambda row_scores, context: {"r2": REGRESSION_METRICS["r2"].compute(row_scores)},
    )
    same = {"gold": np.ones(4), "predicted": np.ones(4)}
    scored = SimpleNamespace(row_scores=same, context=None, predictions=[1.0] * 4, scores={"r2": np.nan})
    intervals = find_intervals(task, scored)
    assert (intervals.bounds, intervals.methods) == ({"r2": None}, {})
    reasons = {
        "scores": {"r2": "all gold values are the same"},
        "intervals": {"r2": "undefined in every resample"},
    }
    half_right = {"gold": np.array([0.0, 0.0, 2.0, 2.0]), "predicted": np.array([1.0, 1.0, 2.0, 2.0])}
    assert explain_undefined(task, scored, intervals, {"mean": half_right}, {"mean": {"r2": 0.5}}) == reasons
    reasons["baselines"] = reasons["scores"]
    assert explain_undefined(task, scored, intervals, {"mean": same}, {"mean": {"r2": np.nan}}) == reasons


@pytest.mark.parametrize("split", ["validation", "validation_mismatched", "test"])
def test_predictions_are_written_row_by_row_under_the_name_of_their_split(split, tmp_path):
    rows = [{"text": "good"}, {"id": "b7", "text": "bad"}]
    predictions = [{"prediction": "good", "probabilities": {"good": 1.0}}, {"prediction": "bad", "probabilities": {}}]
    details = SimpleNamespace(files={"answers.json": {"b7": "bad"}})
    trained_on = frozenset({1} if split == "test" else ())
    write_predictions(tmp_path, Split(split, "", rows, [1, 2], training_rows=trained_on), predictions, details)
    names = {f"predictions{get_split_suffix(split)}.jsonl", f"answers{get_split_suffix(split)}.json"}
    assert {file.name for file in tmp_path.iterdir()} == names
    lines = (tmp_path / f"predictions{get_split_suffix(split)}.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == [0, "b7"]
    assert [json.loads(line)["prediction"] for line in lines] == ["good", "bad"]
    marks = [json.loads(line).get("is_training_row") for line in lines]
    assert marks == ([False, True] if split == "test" else [None, None])
