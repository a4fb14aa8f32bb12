"""Proposals of Optuna: they follow from the trials alone, stay in the space and come near to what scored best."""

from __future__ import annotations

import math
import statistics
import sys

import pytest

from bertkit.errors import UnavailableError
from bertkit.recipe.space import make_search, name_point
from bertkit.workflows.tpe import Tried, check_optuna, propose

SPACE = ["rate=log:1e-5..1e-3", "size=16,32,null", "epochs=int:2..4"]


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UnavailableError, match=r"needs Optuna, .* `pip install .*\[sweep\]'"):
        check_optuna()


def test_proposals_follow_from_the_trials_and_search_near_the_best():
    pytest.importorskip("optuna")
    check_optuna()
    search, tried, errors = make_search("tpe", SPACE, 30), [], []
    for number in range(30):
        point = propose(search, 1, tried, lower_is_better=True)
        assert 1e-5 <= point["rate"] <= 1e-3 and point["size"] in (16, 32, None) and point["epochs"] in (2, 3, 4)
        errors.append(abs(math.log(point["rate"] / 2e-4)) + (point["size"] is not None))
        if number % 10 == 3:
            tried.append(Tried(point, None))  # another process is at work on it
        else:
            diverged = point["rate"] > 8e-4
            tried.append(Tried(point, None if diverged else errors[-1], diverged))
    assert statistics.fmean(errors[15:]) < 0.8 * statistics.fmean(errors[:10])
    again = propose(search, 1, tried, lower_is_better=True)
    assert again == propose(search, 1, tried, lower_is_better=True) != propose(search, 2, tried, lower_is_better=True)


def test_no_point_is_proposed_twice():
    pytest.importorskip("optuna")
    search, tried = make_search("tpe", ["size=16,32", "epochs=int:2..4"], None), []
    for _ in range(search.trials):
        tried.append(Tried(propose(search, 1, tried, lower_is_better=False), 0.5))
    assert len({name_point(trial.settings) for trial in tried}) == search.trials == 6
