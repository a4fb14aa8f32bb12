"""Baselines of a run: fitted once, kept in its folder, and what is said of a model that does not beat them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from bertkit.evaluation.baselines import BASELINES_FILE, find_warnings, fit_and_score, read_learned, write_learned
from bertkit.tasks import text_classification as task

ROWS = [{"text": "a", "label": "good"}, {"text": "b", "label": "bad"}, {"text": "c", "label": "good"}]
SETUP = SimpleNamespace(
    labels=("bad", "good"), recipe=SimpleNamespace(labels=None, metrics=["accuracy"], options={}, task="")
)


def test_baselines_are_scored_on_each_split_as_a_model_is():
    scored = fit_and_score(task, ROWS, {"validation": ROWS, "test": ROWS[1:2]}, SETUP)
    assert scored.scores == {
        "validation": {"most frequent label": {"accuracy": pytest.approx(2 / 3)}},
        "test": {"most frequent label": {"accuracy": 0.0}},
    }
    assert scored.learned == {"most frequent label": 1}


def saved(folder: Path, checksum: str | None = None, name: str = "text_classification") -> SimpleNamespace:
    record = {"identity": {"recipe": {"task": "text_classification"}}} | ({"baselines": checksum} if checksum else {})
    return SimpleNamespace(folder=folder, record=record, recipe=SimpleNamespace(task=name))


def test_what_was_fitted_is_read_as_it_was_written_or_not_at_all(tmp_path, caplog):
    learned = {"most frequent label": 1, "text alone": {"intercept": [0.25]}}
    checksum = write_learned(tmp_path, learned)
    assert read_learned(saved(tmp_path, checksum)) == learned
    assert read_learned(saved(tmp_path)) is None  # the run of an earlier release, or a plain checkpoint
    assert read_learned(saved(tmp_path, checksum, "text_regression")) is None
    caplog.set_level("INFO", "bertkit")
    for content in (json.dumps({**learned, "most frequent label": 0}), "{"):
        (tmp_path / BASELINES_FILE).write_text(content)
        assert read_learned(saved(tmp_path, checksum)) is None
        assert "is not as its run wrote it, so there are no baselines" in caplog.text
        caplog.clear()
    (tmp_path / BASELINES_FILE).unlink()  # it stays behind where a model is published
    assert read_learned(saved(tmp_path, checksum)) is None and not caplog.messages


@pytest.mark.parametrize(
    ("answers", "gold", "warns"), [("aa", "ab", True), ("aa", "aa", False), ("ab", "ab", False), ("a", "b", False)]
)
def test_one_answer_for_all_rows_is_said_where_they_differ(answers, gold, warns):
    scored = SimpleNamespace(predictions=[{"prediction": answer} for answer in answers], scores={"f1": 0.9})
    found = find_warnings(list(gold), scored, {"most frequent label": {"f1": 0.5}}, "f1")
    assert found == ["The model gives every row the same answer, 'a': it has learned nothing yet."] * warns


def test_a_model_that_does_not_beat_its_baselines_gets_a_remedy():
    scored = SimpleNamespace(predictions=[{"prediction": "a"}, {"prediction": "b"}], scores={"f1": 0.5})
    (found,) = find_warnings(["a", "b"], scored, {"text alone": {"f1": 0.5}}, "f1", " Try more --epochs.")
    assert found == "The f1 of 0.5000 is no better than the 0.5000 of a baseline (text alone). Try more --epochs."
    assert find_warnings(["a", "b"], scored, {}, "f1") == []
