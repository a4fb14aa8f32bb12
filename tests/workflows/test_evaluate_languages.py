"""The mean of the scores of several languages."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import pytest

from bertkit.evaluation.scoring import EvalResult
from bertkit.metrics.intervals import wilson_interval
from bertkit.workflows.evaluate import average_languages


def result(right, rows, split="validation"):
    scores, ends = {"accuracy": right / rows}, {"accuracy": wilson_interval(right, rows)}
    baselines = {"most frequent label": {"accuracy": 0.5}}
    return EvalResult("xnli", "runs/xnli", split, scores, rows, 1.0, intervals=ends, baselines=baselines)


def test_the_mean_has_the_interval_of_independent_rows():
    results = {"en": [result(90, 100)], "de": [result(70, 100)], "sw": [result(50, 100)]}
    (mean,) = average_languages(results, "accuracy")
    assert mean["score"] == pytest.approx(0.7)
    lows = [group[0].scores["accuracy"] - group[0].intervals["accuracy"][0] for group in results.values()]
    assert mean["interval"][0] == pytest.approx(0.7 - sqrt(sum(low**2 for low in lows)) / 3)


def test_an_undefined_score_or_a_single_language_has_no_mean():
    undefined = replace(result(5, 10), scores={"accuracy": None}, intervals={})
    assert [mean["score"] for mean in average_languages({"en": [result(7, 10)], "de": [undefined]}, "accuracy")] == [
        None
    ]
    assert [mean["score"] for mean in average_languages({"en": [result(7, 10)]}, "accuracy")] == [None]


def test_several_splits_have_a_mean_each_and_languages_of_one_split_each_share_one():
    both = [result(7, 10), result(8, 10, "validation_mismatched")]
    means = average_languages({"en": both, "de": both}, "accuracy")
    assert [mean["splits"] for mean in means] == [["validation"], ["validation_mismatched"]]
    (mean,) = average_languages({"en": both[:1], "de": [result(6, 10, "all")]}, "accuracy")
    assert (mean["splits"], mean["score"]) == (["validation", "all"], pytest.approx(0.65))
