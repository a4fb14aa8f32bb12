"""`--smoke-test`: every stage of a run on a few rows, and what fails is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bertkit.data.rows import Split
from bertkit.workflows.trial_run import SMOKE_ROWS, choose_rows
from tests.conftest import toy_rows, write_csv

STAGES = ["read the data", "train a step and stop", "resume, train to the end, score and publish", "predict"]


def split_of(labels):
    rows = [{"text": str(number), "label": label} for number, label in enumerate(labels)]
    return Split("train", "rows.csv", rows, list(range(2, len(rows) + 2)))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["a"] * 40 + ["b"], [*range(15), 40]),
        ([str(number) for number in range(20)], list(range(20))),
        ([["a"]] * 30 + [["a", "b"], ["c"]], [*range(14), 30, 31]),
        (["a"] * 3, [0, 1, 2]),
    ],
)
def test_a_few_rows_hold_every_label(labels, expected):
    chosen = choose_rows(split_of(labels), "label")
    assert [row["text"] for row in chosen.rows] == [str(number) for number in expected]
    assert list(chosen.lines) == [number + 2 for number in expected]
    assert len(choose_rows(split_of(labels), "").rows) == min(SMOKE_ROWS, len(labels))


def test_a_run_passes_every_stage_and_keeps_nothing(run, tiny_model, monkeypatch):
    monkeypatch.setattr("bertkit.runtime.sessions.find_spec", lambda name: None)
    write_csv(Path("rows.csv"), toy_rows(60, seed=1))
    ended = run("finetune", "classify", "--model", tiny_model, "--data", "rows.csv", "--smoke-test", "--json")
    assert ended.code == 0, ended.err
    result = json.loads(ended.out)
    stages = {stage["name"]: stage["outcome"] for stage in result["stages"]}
    assert stages == {**dict.fromkeys(STAGES, "passed"), "export to onnx": "left out"}
    assert result["rows"]["train"] == 16
    assert [path.name for path in Path().iterdir()] == ["rows.csv"]


def test_a_stage_that_fails_is_named_and_gives_the_exit_code(run, tiny_model):
    write_csv(Path("rows.csv"), toy_rows(60, seed=1))
    command = ["finetune", "classify", "--model", tiny_model, "--data", "rows.csv", "--smoke-test"]
    ended = run(*command, "--set", "data.columns.text=words")
    assert ended.code == 3
    assert "failed: read the data. " in ended.out
    assert "train a step" not in ended.out
    for other in (["--dry-run"], ["--seeds", 2], ["--output", "runs/a"]):
        refused = run(*command, *other)
        assert (refused.code, "--smoke-test with" in refused.last) == (2, True)


def test_a_pretraining_passes_every_stage(run, tiny_model):
    ended = run("pretrain", "mlm", "--model", tiny_model, "--data", "demo", "--max-length", 32, "--smoke-test")
    assert ended.code == 0, ended.err
    assert ended.out.count(" passed ") == 3


def test_a_distillation_passes_every_stage(run, trained, monkeypatch):
    monkeypatch.setattr("bertkit.runtime.sessions.find_spec", lambda name: None)
    ended = run("distill", trained / "recipe.yaml", "--teacher", trained, "--student-layers", 1, "--smoke-test")
    assert ended.code == 0, ended.err
    assert ended.out.count(" passed ") == 4


def test_a_training_that_takes_no_step_is_no_stop_that_was_tried(run, tiny_model, monkeypatch):
    monkeypatch.setattr("bertkit.runtime.sessions.find_spec", lambda name: None)
    monkeypatch.setattr("bertkit.workflows.trial_run._StopAfterStep", lambda: None)
    write_csv(Path("rows.csv"), toy_rows(60, seed=1))
    ended = run("finetune", "classify", "--model", tiny_model, "--data", "rows.csv", "--smoke-test", "--json")
    assert ended.code == 0, ended.err
    stages = {stage["name"]: stage["outcome"] for stage in json.loads(ended.out)["stages"]}
    assert stages[STAGES[1]] == "left out"


def test_a_smoke_computes_with_the_threads_of_a_run(run, tiny_model, two_threads, monkeypatch):
    monkeypatch.setattr("bertkit.runtime.sessions.find_spec", lambda name: None)
    write_csv(Path("rows.csv"), toy_rows(60, seed=1))
    command = ["finetune", "classify", "--model", tiny_model, "--data", "rows.csv", "--smoke-test"]
    assert "CPU, 2 threads" in run(*command).err
    assert "CPU, 1 thread (--threads)" in run(*command, "--threads", 1).err
