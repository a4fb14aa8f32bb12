"""`bertkit rerun`: what it prints of two runs."""

from __future__ import annotations

import pytest

from bertkit.cli.commands.rerun import _disagreement, print_rerun
from bertkit.errors import UnavailableError
from bertkit.workflows.rerun import RecordDifference, RepeatedScore, Rerun


def test_scores_that_agree_are_said_to(capsys):
    print_rerun(Rerun("a", "b", [RepeatedScore("validation", "f1", None, None)], True, None, []))
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[-2:] == ["Weights: the same to the last bit.", "Scores: the same to the last digit."]
    assert lines[-4].split() == ["validation", "f1", "n/a", "n/a", "none"]


def test_what_differs_is_named_and_ends_in_the_code_of_the_environment(capsys):
    score = RepeatedScore("validation", "f1", 0.5, 0.5 + 1e-12)
    differences = [RecordDifference("versions.torch", "2.1", "2.2"), RecordDifference("data.train", "a" * 64, None)]
    result = Rerun("a b", "c", [score], False, 7, differences)
    print_rerun(result)
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert ["validation", "f1", "0.5000", "0.5000", "+1e-12"] in lines
    assert ["versions.torch", "2.1", "2.2"] in lines and ["data.train", "aaaaaaaaaaaa"] in lines
    assert "The logs differ from step 7 on." in out and "same to the last" not in out
    error = _disagreement(result)
    assert isinstance(error, UnavailableError) and error.exit_code == 5
    assert str(error) == ("the scores are not those of 'a b' (c) - make these as they were: versions.torch, data.train")
    with pytest.raises(UnavailableError, match="nothing that is recorded differs"):
        raise _disagreement(Rerun("a", "c", [score], False, 7, []))
