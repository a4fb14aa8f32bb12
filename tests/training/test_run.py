"""An opened run: what its record holds when it begins, ends badly, and goes on elsewhere."""

from __future__ import annotations

import fcntl
import json
import logging
import re
from pathlib import Path

import pytest

from bertkit.errors import DataError
from bertkit.hardware import precision, process
from bertkit.recipe import load_recipe
from bertkit.storage import runs
from bertkit.training.run import RunPlan, open_run
from tests.conftest import finetune


def make_plan(folder: Path) -> RunPlan:
    recipe = load_recipe("classify", {"training.precision": "fp32"})
    return RunPlan(recipe, folder, {"recipe": {"name": "x"}}, {"model": "m"}, "bert")


def test_a_run_goes_on_without_onednn_where_its_products_are_not_exact(tmp_path, monkeypatch, caplog):
    folder = Path(tmp_path, "run")
    monkeypatch.setattr(precision, "_measure_gain", lambda device, dtype, widths: 2.0)
    monkeypatch.setattr(precision, "onednn_is_exact", lambda: True)
    with pytest.raises(DataError), open_run(make_plan(folder), restart=False) as run:
        assert run.record["machine"]["matmul_backend"] == "onednn"
        (folder / "checkpoint-3").mkdir()
        raise DataError("a bad row", "mend it")
    record = runs.read_record(folder)
    assert (record["status"], record["error"]) == ("failed", "a bad row - mend it")
    monkeypatch.setattr(precision, "onednn_is_exact", lambda: False)
    with caplog.at_level(logging.INFO, "bertkit"), open_run(make_plan(folder), restart=False) as run:
        assert run.record["machine"]["matmul_backend"] == "torch"
        assert len(run.record["resumed"]) == 1
        assert runs.read_record(folder) == run.record
    assert "not bit-identical to an unbroken run: matmul_backend: onednn there, torch requested" in caplog.text


def test_a_run_goes_on_where_its_device_is_missing(tmp_path, caplog):
    folder = Path(tmp_path, "run")
    with pytest.raises(DataError), open_run(make_plan(folder), restart=False) as run:
        (folder / "checkpoint-3").mkdir()
        raise DataError("a bad row", "mend it")
    machine = {**run.record["machine"], "device": "cuda", "precision": "bf16", "threads": 4}
    runs.write_record(folder, {**run.record, "machine": machine})
    with caplog.at_level(logging.INFO, "bertkit"), open_run(make_plan(folder), restart=False) as run:
        assert (run.machine.device, run.machine.precision) == ("cpu", "bf16")
        assert runs.read_record(folder) == run.record
    assert "not bit-identical to an unbroken run: device: cuda there, cpu requested" in caplog.text


def test_a_run_that_goes_on_no_longer_says_what_ended_it_before(tmp_path):
    folder = Path(tmp_path, "run")
    with pytest.raises(DataError), open_run(make_plan(folder), restart=False):
        (folder / "checkpoint-3").mkdir()  # a run without one begins anew
        raise DataError("a bad row", "mend it")
    assert runs.read_record(folder)["error"] == "a bad row - mend it"
    with open_run(make_plan(folder), restart=False):
        assert "error" not in runs.read_record(folder)


def test_a_finished_run_says_so_and_another_is_refused(run, tiny_model, toy_data):
    first = finetune(run, tiny_model, toy_data, "--epochs", 1)
    assert first.code == 0
    again = finetune(run, tiny_model, toy_data, "--epochs", 1)
    assert again.code == 0
    assert "already finished on" in again.err
    assert again.out == first.out
    other = finetune(run, tiny_model, toy_data, "--epochs", 2, "--seed", 1)
    assert other.code == 2
    assert other.last == (
        "error: the folder holds another run (recipe.training.epochs: 1.0 there, 2.0 requested; recipe.training.seed: "
        "42 there, 1 requested) (runs/classify) - use --output runs/classify-2 for a new run, or --restart to move the "
        "old one aside"
    )
    with (toy_data / "train.csv").open("a") as stream:
        stream.write("one more,good\n")
    assert "data.train" in finetune(run, tiny_model, toy_data, "--epochs", 1).last
    assert finetune(run, tiny_model, toy_data, "--epochs", 3, "--dry-run").code == 2
    fresh = finetune(run, tiny_model, toy_data, "--epochs", 1, "--restart")
    assert fresh.code == 0
    assert sorted(folder.name for folder in Path("runs").iterdir()) == ["classify", "classify.before"]


def test_a_folder_of_something_else_is_left_alone(run, tiny_model, toy_data):
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("dear diary")
    ended = finetune(run, tiny_model, toy_data, "--output", "mine")
    expected = "error: the folder holds something that is not a run of bertkit (mine) - choose another --output"
    assert (ended.code, ended.last) == (2, expected)
    assert [file.name for file in Path("mine").iterdir()] == ["notes.txt"]
    Path("file").write_text("")
    assert finetune(run, tiny_model, toy_data, "--output", "file").code == 6


def test_two_processes_never_write_one_run(run, tiny_model, toy_data):
    Path("runs/classify").mkdir(parents=True)
    with Path("runs/classify/.lock").open("w") as held:
        held.write("process 7 on elsewhere")
        held.flush()
        fcntl.flock(held, fcntl.LOCK_EX)
        ended = finetune(run, tiny_model, toy_data)
    assert (ended.code, ended.last) == (
        6,
        "error: process 7 on elsewhere is writing this run (runs/classify) - wait for it, or choose another --output",
    )


def test_fresh_waits_for_the_lock_too(run, tiny_model, toy_data):
    assert finetune(run, tiny_model, toy_data, "--epochs", 1).code == 0
    with Path("runs/classify/.lock").open("a+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert finetune(run, tiny_model, toy_data, "--epochs", 1, "--restart").code == 6
    assert [folder.name for folder in Path("runs").iterdir()] == ["classify"]


@pytest.mark.slow
def test_a_run_that_never_got_anywhere_blocks_nothing(run, tiny_model, toy_data):
    assert finetune(run, tiny_model, toy_data, "--set", "training.extra={adam_beta: 1}").code == 2
    assert finetune(run, tiny_model, toy_data, "--epochs", 1).code == 0


def test_a_home_that_the_shell_left_in_a_path_is_expanded_once(run, tiny_model, toy_data, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert finetune(run, tiny_model, toy_data, "--epochs", 1, "--output=~/runs/x").code == 0
    folder = tmp_path / "home" / "runs" / "x"
    assert {".lock", "run.json", "metrics.jsonl", "checkpoint-6"} <= {entry.name for entry in folder.iterdir()}
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    ended = finetune(run, tiny_model, toy_data, "--epochs", 2, "--output=~/runs/x")
    assert (ended.code, "the folder holds another run" in ended.last) == (2, True)
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
    assert list(Path().iterdir()) == []


@pytest.mark.slow
def test_a_run_may_be_in_the_current_folder(run, tiny_model, toy_data):
    for options, code in [((1,), 0), ((2,), 2), ((2, "--restart"), 0)]:
        ended = finetune(run, tiny_model, toy_data, "--output", ".", "--epochs", *options)
        assert ended.code == code, ended.err
    assert Path.cwd().with_name("work.before").is_dir()


def test_a_finished_run_may_be_moved(run, tiny_model, toy_data, tmp_path):
    first = finetune(run, tiny_model, toy_data, "--epochs", 1, "--output", "here")
    there = Path("here").rename(tmp_path / "out there")
    again = finetune(run, tiny_model, toy_data, "--epochs", 1, "--output", there)
    assert (again.code, again.out) == (0, first.out.replace("here", f"'{there}'")), again.err
    assert json.loads(finetune(run, tiny_model, toy_data, "--epochs", 1, "--output", there, "--json").out)["results"][
        0
    ]["folder"] == str(there)
    for model in (there, there / "checkpoint-6"):
        assert run("eval", there / "recipe.yaml", "--model", model).code == 0
        assert run("predict", there / "recipe.yaml", "--model", model, "--text", "a good film").code == 0
    assert not Path("here").exists()


def test_no_file_of_a_run_names_its_folder(trained):
    for file in trained.rglob("*"):
        assert file.is_dir() or str(trained).encode() not in file.read_bytes(), file
    states = [json.loads(file.read_text()) for file in trained.rglob("trainer_state.json")]
    assert [state["best_model_checkpoint"] for state in states] == [None] * len(states)


def test_what_a_killed_process_left_is_deleted_but_nothing_else(tmp_path):
    folder = Path(tmp_path, "run")
    with open_run(make_plan(folder), restart=False):
        pass
    for name in (".export", ".discarded-checkpoint-4", "checkpoint-3", ".mine"):
        (folder / name).mkdir()
    for name in (".run.json.tmp", ".metrics.jsonl.tmp", ".predictions.jsonl.7.ab.tmp", ".notes.tmp", "x.json.tmp"):
        (folder / name).touch()
    with open_run(make_plan(folder), restart=False):
        left = {entry.name for entry in folder.iterdir()}
    assert left == {".lock", "run.json", "checkpoint-3", ".mine", ".notes.tmp", "x.json.tmp"}


def test_a_resumed_run_keeps_its_number_of_threads(tmp_path, two_threads, monkeypatch):
    folder = tmp_path / "run"
    monkeypatch.setattr(process._PROCESS, "option", process.Threads(1, "--threads"))
    with pytest.raises(DataError), open_run(make_plan(folder), restart=False):
        (folder / "checkpoint-3").mkdir()
        raise DataError("a bad row", "mend it")
    monkeypatch.setattr(process._PROCESS, "option", None)
    assert process.available_threads().number == 2
    with open_run(make_plan(folder), restart=False) as run:
        assert run.machine.threads == process._PROCESS.count == 1


def test_a_run_has_all_threads_that_fit(run, tiny_model, toy_data, two_threads):
    """The weights are those of a run with the same number by `--threads`."""
    options = ["--epochs", 1, "--limit", 40, "--set", "training.precision=fp32"]
    assert finetune(run, tiny_model, toy_data, *options).code == 0
    ended = finetune(run, tiny_model, toy_data, *options, "--threads", 2, "--output", "named")
    assert ended.code == 0 and re.search(r"^finished in 0:\d\d:\d\d, peak memory [\d,]+ MB$", ended.err, re.MULTILINE)
    assert re.search(r"^memory +[\d,]+ MB at peak$", run("runs", "show", "named").out, re.MULTILINE)
    weights = [Path(folder, "model.safetensors").read_bytes() for folder in ("runs/classify", "named")]
    assert weights[0] == weights[1]
    assert [runs.read_record(Path(folder))["machine"]["threads"] for folder in ("runs/classify", "named")] == [2, 2]
