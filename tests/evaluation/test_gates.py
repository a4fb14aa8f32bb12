"""A gate stops what is worse beyond chance, and says so where the rows are too few."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bertkit.evaluation.gates import GateTest, WorseGate, judge_scores, judge_seeds, judge_worse
from bertkit.evaluation.run_sets import SeedsOfSplit, SeedsSummary, SetRun
from bertkit.evaluation.scoring import EvalResult
from bertkit.metrics.paired import Difference, judge_difference
from bertkit.metrics.seeds import compute_spread
from bertkit.recipe import GateConfig

WORSE = Difference(0.9, 0.8, -0.1, (-0.15, -0.05), 0.001, "permutation", detectable=0.07)


@pytest.mark.parametrize(
    ("changes", "margin", "outcome"),
    [
        ({}, 0.0, "failed"),
        ({}, 0.04, "failed"),
        ({}, 0.1, "undecided"),
        ({}, 0.16, "passed"),
        ({"difference": 0.1, "interval": (0.05, 0.15)}, 0.01, "passed"),
        ({"interval": (-0.15, 0.05)}, 0.0, "passed"),
        ({"interval": (-0.15, 0.05)}, 0.1, "undecided"),
        ({"p_holm": 0.2}, 0.0, "passed"),
        ({"p_holm": 0.02}, 0.0, "failed"),
        ({"difference": float("nan"), "interval": None, "p": None}, 0.0, "undecided"),
        # all rows alike: wrong now where they were right, and, without a difference, no more than rows can show
        ({"difference": -1.0, "interval": None}, 0.0, "failed"),
        ({"difference": -1.0, "interval": None, "p": 1.0}, 0.0, "passed"),
        ({"difference": 0.0, "interval": None, "p": 1.0}, 0.05, "passed"),
        ({"difference": 0.0, "interval": None, "p": 1.0}, 0.01, "undecided"),
    ],
)
def test_the_interval_decides(changes, margin, outcome):
    assert judge_difference(replace(WORSE, **changes), 100, margin) == outcome


def test_of_an_error_less_is_better():
    better = replace(WORSE, difference=-0.1)
    assert judge_difference(better, 100, lower_is_better=True) == "passed"
    worse = replace(WORSE, difference=0.1, interval=(0.05, 0.15))
    assert judge_difference(worse, 100, lower_is_better=True) == "failed"


def test_several_are_corrected_and_few_rows_are_not_tested():
    tested = [GateTest("b, kind", str(n), "accuracy", 100, replace(WORSE, p=0.02)) for n in range(3)]
    assert [case.outcome for case in judge_worse(tested[:1], WorseGate())] == ["failed"]
    cases = judge_worse([*tested, GateTest("b, kind", "few", "accuracy", 9, None)], WorseGate())
    assert [case.outcome for case in cases] == ["passed"] * 3 + ["skipped"]


def test_what_too_few_rows_tell_is_passed_or_not_as_is_asked():
    tested = [GateTest("b", "accuracy", "accuracy", 100, WORSE)]
    for choice, outcome in (("fail", "failed"), ("pass", "skipped")):
        (case,) = judge_worse(tested, WorseGate(margin=0.1, undecided=choice))
        assert case.outcome == outcome
        assert "too few rows" in case.text and "0.0700" in case.text


def judge(gates, scores, intervals=None, ece=None):
    ends = intervals or {}
    return [case.outcome for case in judge_scores(GateConfig(**gates), "validation", scores, ends, ece, 2_500_000)]


@pytest.mark.parametrize(
    ("gates", "outcome"),
    [
        ({"f1": 0.8}, "passed"),
        ({"f1": 0.81}, "failed"),
        ({"f1": 0.7, "use_interval": True}, "passed"),
        ({"f1": 0.75, "use_interval": True}, "failed"),
        ({"mean_absolute_error": 0.4}, "passed"),
        ({"mean_absolute_error": 0.3}, "failed"),
        ({"mean_absolute_error": 0.45, "use_interval": True}, "failed"),
        ({"ece": 0.1}, "passed"),
        ({"ece": 0.1, "use_interval": True}, "failed"),
        ({"ece": 0.01}, "failed"),
        ({"size_mb": 2.5, "use_interval": True}, "passed"),
        ({"size_mb": 2.4}, "failed"),
        ({"accuracy": 0.0}, "failed"),  # it is not measured
        ({"undefined": 0.0}, "failed"),
    ],
)
def test_a_score_must_reach_what_is_asked_for(gates, outcome):
    scores = {"f1": 0.8, "mean_absolute_error": 0.4, "undefined": None}
    ends = {"f1": (0.72, 0.88), "mean_absolute_error": (0.3, 0.5)}
    assert judge(gates, scores, ends, {"value": 0.05, "interval": (0.0, 0.15)}) == [outcome]


def test_without_an_interval_nothing_is_sure():
    assert judge({"f1": 0.1, "use_interval": True}, {"f1": 0.8}) == ["failed"]
    assert judge({"ece": 0.1}, {}) == ["failed"]


def test_the_mean_of_seeds_is_judged(tmp_path):
    (tmp_path / "seed-1").mkdir()
    (tmp_path / "seed-1" / "model.safetensors").write_bytes(b"0" * 1000)
    spreads = {"f1": compute_spread([0.7, 0.9], interval=(0.5, 1.0)), "accuracy": None}
    split = SeedsOfSplit("validation", 9, spreads, {})
    runs = [
        SetRun("seed-2", "diverged"),
        SetRun("seed-1", "finished", results=[EvalResult("r", "m", "validation", {}, 9, 1.0)]),
    ]
    summary = SeedsSummary("r", "m", str(tmp_path), "f1", runs, [split], 1)
    gates = GateConfig(f1=0.75, accuracy=0.1, size_mb=0.001)
    assert [case.outcome for case in judge_seeds(gates, summary)] == ["passed", "failed", "passed"]
