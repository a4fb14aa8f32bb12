"""Languages side by side: gaps to the language of training, and means."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from types import SimpleNamespace

import pytest

from bertkit.errors import UsageError
from bertkit.evaluation import languages
from bertkit.evaluation.languages import find_reference, tabulate_languages, with_oracle
from bertkit.evaluation.scoring import Result
from bertkit.metrics.intervals import wilson_interval


def result(right, rows, split="validation"):
    scores, ends = {"accuracy": right / rows}, {"accuracy": wilson_interval(right, rows)}
    baselines = {"most frequent label": {"accuracy": 0.5}}
    return Result("xnli", "runs/xnli", split, scores, rows, 1.0, intervals=ends, baselines=baselines)


def test_the_gap_is_the_difference_with_the_interval_of_newcombe():
    (table,) = tabulate_languages({"en": [result(56, 70)], "de": [result(48, 80)]}, "accuracy", "en")
    english, german = table.scores
    assert (english.gap, english.gap_interval, english.baseline) == (None, None, 0.5)
    assert german.gap == pytest.approx(-0.2)
    assert german.gap_interval == pytest.approx((-0.3339, -0.0524), abs=5e-5)  # Newcombe 1998, table II, method 10


def test_the_mean_has_the_interval_of_independent_rows():
    results = {"en": [result(90, 100)], "de": [result(70, 100)], "sw": [result(50, 100)]}
    (table,) = tabulate_languages(results, "accuracy", "en")
    everything, others = table.means
    assert (everything.languages, everything.score) == (["en", "de", "sw"], pytest.approx(0.7))
    assert (others.languages, others.score) == (["de", "sw"], pytest.approx(0.6))
    lows = [score.score - score.interval[0] for score in table.scores]
    assert everything.interval[0] == pytest.approx(0.7 - sqrt(sum(low**2 for low in lows)) / 3)


def test_without_the_language_of_training_there_are_no_gaps_and_one_mean():
    (table,) = tabulate_languages({"de": [result(7, 10)], "fr": [result(8, 10)]}, "accuracy", "en")
    assert [score.gap for score in table.scores] == [None, None]
    assert [mean.languages for mean in table.means] == [["de", "fr"]]


def test_an_undefined_score_has_no_gap_and_no_mean():
    undefined = replace(result(5, 10), scores={"accuracy": None}, intervals={})
    (table,) = tabulate_languages({"en": [result(7, 10)], "de": [undefined]}, "accuracy", "en")
    assert (table.scores[1].gap, table.means) == (None, [])


def test_several_splits_have_a_table_each_and_files_without_splits_one_together():
    both = [result(7, 10), result(8, 10, "validation_mismatched")]
    tables = tabulate_languages({"en": both, "de": both[:1]}, "accuracy", "en")
    assert [[score.language for score in table.scores] for table in tables] == [["en", "de"], ["en"]]
    (table,) = tabulate_languages({"en": both[:1], "de": [result(6, 10, "all")]}, "accuracy", "en")
    assert [score.split for score in table.scores] == ["validation", "all"]


@pytest.mark.parametrize(("metric", "best", "step"), [("accuracy", 0.9, 20), ("mean_squared_error", 0.6, 10)])
def test_the_best_checkpoint_of_each_language_is_the_first_of_equal_ones(metric, best, step):
    scored = replace(result(7, 10), scores={metric: 0.7}, intervals={})
    (table,) = tabulate_languages({"en": [scored], "de": [scored]}, metric, "en")
    by_step = {
        number: {"en": {"validation": score}, "de": {"validation": None}}
        for number, score in ((10, 0.6), (20, 0.9), (30, 0.9), (40, None))
    }
    english, german = with_oracle(table, by_step).scores
    assert (english.oracle, english.oracle_step) == (best, step)
    assert (german.oracle, german.oracle_step) == (None, None)


def test_checkpoints_that_hold_adapters_apart_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(languages, "whole_checkpoints", lambda folder: {3: folder / "checkpoint-3"})
    record = {"identity": {"recipe": {"training": {"lora": None}}}}
    saved = SimpleNamespace(members=(), folder=tmp_path, record=record, recipe=SimpleNamespace(model="runs/own"))
    assert languages.find_checkpoints(saved) == {3: tmp_path / "checkpoint-3"}
    record["identity"]["recipe"]["training"]["lora"] = {"rank": 8}
    with pytest.raises(UsageError, match="--oracle with runs/own, whose checkpoints hold adapters that are not merged"):
        languages.find_checkpoints(saved)


def test_the_record_of_a_run_names_its_language():
    record = {"identity": {"recipe": {"data": {"language": "fr"}}}}
    assert find_reference(record, ["en", "de"]) == ("fr", True)
    assert find_reference({}, ["en", "de"]) == ("en", False)
