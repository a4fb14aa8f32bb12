"""What `bertkit runs trim` deletes, and that the run is as good as before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bertkit.storage import checkpoints
from tests.evaluation.stored_runs import make_run


@pytest.fixture
def command(tiny_model, toy_data):
    options = ["--epochs", "1", "--batch-size", "50", "--set", "training.evaluate_every=5"]
    return ["finetune", "classify", "--model", tiny_model, "--data", toy_data, "--output", "kept", *options]


def test_a_finished_run_has_no_optimizer_states_unless_it_keeps_them_or_is_trimmed(run, command):
    assert run(*command, "--set", "training.keep_optimizer=true").code == 0
    files = sorted(Path("kept").glob("checkpoint-*/optimizer.pt"))
    size = sum(file.stat().st_size for file in files)
    assert len(files) == len(checkpoints.whole_checkpoints(Path("kept")))
    ended = run("runs", "trim", "kept", "--json")
    assert json.loads(ended.out)["trimmed"] == [{"folder": "kept", "bytes": size}]
    assert run("runs", "trim", "kept").out == "kept: 0.0 MB freed\n"
    for folder in checkpoints.whole_checkpoints(Path("kept")).values():
        assert run("predict", "classify", "--model", folder, "--text", "good").code == 0
    again = run(*command)  # which says nothing of optimizer states: the run is the same
    assert (again.code, "already finished" in again.err) == (0, True)
    command[command.index("kept")] = "plain"
    assert run(*command).code == 0
    assert not list(Path("plain").glob("checkpoint-*/optimizer.pt"))
    assert sorted(checkpoints.whole_checkpoints(Path("plain"))) == sorted(checkpoints.whole_checkpoints(Path("kept")))


def test_a_run_that_is_not_finished_is_refused_before_anything_is_deleted(run, tmp_path):
    for name, status in (("done", "finished"), ("open", "stopped")):
        folder = make_run(tmp_path / "work" / name, [], status=status)
        (folder / "checkpoint-7").mkdir()
        (folder / "checkpoint-7" / "optimizer.pt").write_text("moments")
        checkpoints.commit(folder / "checkpoint-7", {})
    ended = run("runs", "trim", "done", "open")
    assert (ended.code, "the run is not finished (stopped)" in ended.last) == (2, True)
    assert Path("done/checkpoint-7/optimizer.pt").exists()
