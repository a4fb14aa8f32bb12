"""What `bertkit runs show` prints."""

from __future__ import annotations

import json

from tests.evaluation.stored_runs import make_run


def test_a_run_is_told_in_words_and_json(run, tmp_path):
    training = {"seed": 7, "epochs": 9.0}
    make_run(tmp_path / "work" / "a", [], scores={"accuracy": 0.75}, name="cola", training=training)
    ended = run("runs", "show", "a")
    assert ended.code == 0, ended.err
    lines = [line.split() for line in ended.out.splitlines()]
    assert ["state", "finished"] in lines
    assert ["score", "accuracy", "0.7500"] in lines
    assert ["validation", "accuracy", "0.7500", "n/a"] in lines
    assert ["training.epochs", "3.0", "9.0"] in lines
    found = json.loads(run("runs", "show", "a", "--json").out)
    assert found["scores"] == [{"split": "validation", "metric": "accuracy", "score": 0.75, "95% CI": None}]
    assert {"setting": "training.seed", "recipe": "42", "run": "7"} in found["settings"]


def test_a_damaged_run_is_shown_and_any_other_folder_refused(run, tmp_path):
    (tmp_path / "work" / "a").mkdir(parents=True)
    ended = run("runs", "show", "a")
    assert (ended.code, ended.last) == (2, "error: not a run folder (a) - `bertkit runs list` shows the runs")
    (tmp_path / "work" / "a" / "run.json").write_text("{")
    ended = run("runs", "show", "a")
    assert ended.code == 0
    assert "damaged" in ended.out
