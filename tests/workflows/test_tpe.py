"""Proposals of Optuna: they follow from the trials alone, stay in the space and come near to what scored best."""

from __future__ import annotations

import math
import statistics
import sys

import pytest

from bertkit.errors import UnavailableError
from bertkit.evaluation.run_sets import SetRun
from bertkit.evaluation.scoring import EvalResult
from bertkit.recipe.space import name_point, parse_sweep_space
from bertkit.workflows.tpe import check_optuna, propose

SPACE = ["rate=log:1e-5..1e-3", "size=16,32,null", "epochs=int:2..4"]


def finished(point, metric, score):
    return SetRun("", "finished", point, [EvalResult("r", "m", "validation", {metric: score}, 9, 1.0)])


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UnavailableError, match=r"needs Optuna, .* `pip install .*\[sweep\]'"):
        check_optuna()


def test_proposals_follow_from_the_trials_and_search_near_the_best():
    pytest.importorskip("optuna")
    check_optuna()
    search, tried, errors = parse_sweep_space("tpe", SPACE, 30), [], []
    for number in range(30):
        point = propose(search, 1, tried, "loss")
        assert 1e-5 <= point["rate"] <= 1e-3 and point["size"] in (16, 32, None) and point["epochs"] in (2, 3, 4)
        errors.append(abs(math.log(point["rate"] / 2e-4)) + (point["size"] is not None))
        if number % 10 == 3:
            tried.append(SetRun("", "running", point))  # another process trains it
        else:
            diverged = point["rate"] > 8e-4
            tried.append(SetRun("", "diverged", point) if diverged else finished(point, "loss", errors[-1]))
    assert statistics.fmean(errors[15:]) < 0.8 * statistics.fmean(errors[:10])
    again = propose(search, 1, tried, "loss")
    assert again == propose(search, 1, tried, "loss") != propose(search, 2, tried, "loss")


def test_no_point_is_proposed_twice():
    pytest.importorskip("optuna")
    search, tried = parse_sweep_space("tpe", ["size=16,32", "epochs=int:2..4"], None), []
    for _ in range(search.trials):
        tried.append(finished(propose(search, 1, tried, "f1"), "f1", 0.5))
    assert len({name_point(trial.settings) for trial in tried}) == search.trials == 6
