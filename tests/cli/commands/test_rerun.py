"""`bertkit rerun`: what it prints of two runs."""

from __future__ import annotations

import pytest

from bertkit.cli.commands.rerun import _disagreement_error, print_rerun
from bertkit.errors import UnavailableError


def make_rerun(run, folder, scores, weights_agree, first_difference, differences):
    agree = all(score["before"] == score["now"] for score in scores)
    facts = {"run": run, "folder": folder, "scores": scores, "weights_agree": weights_agree}
    return {**facts, "first_difference": first_difference, "differences": differences, "scores_agree": agree}


def test_scores_that_agree_are_said_to(capsys):
    print_rerun(
        make_rerun("a", "b", [{"split": "validation", "metric": "f1", "before": None, "now": None}], True, None, [])
    )
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[-2:] == ["Weights: the same to the last bit.", "Scores: the same to the last digit."]
    assert lines[-4].split() == ["validation", "f1", "n/a", "n/a", "none"]


def test_what_differs_is_named_and_ends_in_the_code_of_the_environment(capsys):
    score = {"split": "validation", "metric": "f1", "before": 0.5, "now": 0.5 + 1e-12}
    differences = [
        {"what": "versions.torch", "before": "2.1", "now": "2.2"},
        {"what": "data.train", "before": "a" * 64, "now": None},
    ]
    result = make_rerun("a b", "c", [score], False, 7, differences)
    print_rerun(result)
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert ["validation", "f1", "0.5000", "0.5000", "+1e-12"] in lines
    assert ["versions.torch", "2.1", "2.2"] in lines and ["data.train", "aaaaaaaaaaaa"] in lines
    assert "The logs differ from step 7 on." in out and "same to the last" not in out
    error = _disagreement_error(result)
    assert isinstance(error, UnavailableError) and error.exit_code == 5
    assert str(error) == ("the scores differ from the scores of 'a b' (c) - restore these: versions.torch, data.train")
    with pytest.raises(UnavailableError, match="no recorded version or setting differs"):
        raise _disagreement_error(make_rerun("a", "c", [score], False, 7, []))
