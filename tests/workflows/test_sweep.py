"""Sweeps: trials are those of single commands, nothing is trained twice, and whoever finds a trial goes on with it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from bertkit.errors import DivergedError, ModelError, ResourceError, UsageError
from bertkit.recipe.space import parse_sweep_space
from bertkit.storage import files, runs
from bertkit.storage.run_sets import find_trials, name_trial, read_settings, write_settings, write_space
from bertkit.workflows import sweep as workflow
from bertkit.workflows.sweep import check_sweep, dry_run, sweep
from tests.kills import TRAINING_STEP, check_equal

RATES = ("--space", "training.learning_rate=1e-3,3e-3")
DEMO = {"model": "demo", "data.source": "demo", "data.limit": 40}


def read_summary(folder):
    file = folder / "sweep.json"
    return json.loads(file.read_text()) if file.is_file() else None


def test_each_trial_is_an_ordinary_run_and_only_missing_ones_are_trained(run, tiny_model, toy_data, monkeypatch):
    options = ["--batch-size", 16, "--epochs", 0.5, "--set", "training.precision=fp32"]
    common = ["classify", "--model", tiny_model, "--data", toy_data, *options]
    ended = run("sweep", *common, *RATES, "--output", "both", "--json")
    assert ended.code == 0, ended.err
    printed = json.loads(ended.out)
    summary = read_summary(Path("both"))
    assert printed["trials"] == summary["trials"] and printed["best"] == summary["best"]
    assert [read_settings(Path("both"), n)["training.learning_rate"] for n in find_trials(Path("both"))] == [1e-3, 3e-3]
    assert run("finetune", *common, "--learning-rate", "3e-3", "--output", "alone").code == 0
    check_equal(Path("both/trial-0002"), Path("alone"))
    monkeypatch.setattr(workflow, "finetune_rows", lambda inputs, **_: pytest.fail(str(inputs.plan.folder)))
    again = run("sweep", *common, *RATES, "--output", "both")
    assert (again.code, "best of 2: " in again.out, "expected on other rows: " in again.out) == (0, True, True)
    predictions = Path("both/trial-0002/predictions.jsonl")
    whole = predictions.read_bytes()
    for damaged in (whole.replace(b"good", b"bad", 1), b""):
        predictions.write_bytes(damaged)
        compared = run("compare", "both/trial-0001", "both/trial-0002")
        assert (compared.code, "does not match its checksum" in compared.last) == (3, True)
        repaired = run("sweep", *common, *RATES, "--output", "both")
        assert "is missing or damaged; computing the predictions again" in repaired.err
        assert (repaired.code, repaired.out, predictions.read_bytes()) == (0, again.out, whole)
    other = run("sweep", *common, *RATES, "--output", "both", "--max-length", 9)
    assert (other.code, "holds trials of another sweep (recipe.training.max_length: " in other.last) == (2, True)
    both = run("sweep", *common, *RATES, "--learning-rate", "3e-3", "--output", "both")
    assert (both.code, "training.learning_rate is both set and searched" in both.last) == (2, True)
    refused = run("sweep", *common, *RATES, "--output", "alone")
    assert (refused.code, "the folder holds a single run" in refused.last) == (2, True)


@pytest.fixture
def diverging(monkeypatch):
    """Let every run diverge; return what was tried."""
    tried = []

    def finetune_rows(inputs, **_):
        tried.append(inputs.recipe.training.epochs)
        inputs.plan.folder.mkdir()
        record = runs.new_record(inputs.plan.identity, status="diverged", error="the loss is nan")
        runs.write_record(inputs.plan.folder, record)
        raise DivergedError("the loss is nan", "lower it")

    monkeypatch.setattr(workflow, "finetune_rows", finetune_rows)
    return tried


def test_a_trial_that_diverges_has_ended_and_the_others_go_on(diverging, tmp_path):
    search = parse_sweep_space("grid", ["training.epochs=1,2"], None)
    for _ in range(2):
        with pytest.raises(DivergedError, match="all trials diverged"):
            sweep("classify", search, DEMO, output=tmp_path / "sweep")
    assert diverging == [1, 2]
    assert [trial["status"] for trial in read_summary(tmp_path / "sweep")["trials"]] == ["diverged"] * 2
    other = parse_sweep_space("grid", ["training.epochs=3,4"], None)
    with pytest.raises(UsageError, match="the folder holds another sweep"):
        sweep("classify", other, DEMO, output=tmp_path / "sweep")
    with pytest.raises(DivergedError):
        sweep("classify", other, DEMO, output=tmp_path / "sweep", restart=True)
    assert diverging == [1, 2, 3, 4] and find_trials(tmp_path / "sweep.before") == ["trial-0001", "trial-0002"]


def begin(search, folder):
    """Return a sweep whose folder another process has made, and left."""
    job = check_sweep("classify", search, DEMO, folder)
    with job.lock():
        write_space(folder, job.space)
    return job


def test_trials_that_another_process_has_are_left_to_it_and_the_summary_too(diverging, tmp_path, monkeypatch):
    monkeypatch.setattr(workflow.Sweep, "find_machine", lambda *_: None)  # it would wait for the first run
    search = parse_sweep_space("random", ["training.epochs=int:1..3"], 3)
    job = begin(search, tmp_path / "sweep")
    with files.hold_lock(job.run_lock("trial-0001")):
        summary = sweep("classify", search, DEMO, output=tmp_path / "sweep", worker=True)
        assert summary.unfinished == 1 and len(diverging) == 2
        assert read_summary(tmp_path / "sweep") is None
    with pytest.raises(DivergedError):  # the last process writes it
        sweep("classify", search, DEMO, output=tmp_path / "sweep", worker=True)
    assert len(set(diverging)) == 3 and len(read_summary(tmp_path / "sweep")["trials"]) == 3


def test_a_process_that_joins_before_a_trial_has_settings_has_none_to_show(diverging, tmp_path):
    search = parse_sweep_space("grid", ["training.epochs=1,2"], None)
    job = begin(search, tmp_path / "sweep")
    with files.hold_lock(job.run_lock("trial-0001")), files.hold_lock(job.run_lock("trial-0002")):
        summary = sweep("classify", search, DEMO, output=tmp_path / "sweep", worker=True)
    assert (summary.trials, summary.unfinished, diverging) == ([], 2, [])


def test_fresh_leaves_a_sweep_alone_while_a_trial_is_trained(diverging, tmp_path):
    search, folder = parse_sweep_space("grid", ["training.epochs=1,2"], None), tmp_path / "sweep"
    job = begin(search, folder)
    other = parse_sweep_space("grid", ["training.epochs=3,4"], None)
    with files.hold_lock(job.run_lock("trial-0002")), pytest.raises(ResourceError, match="still trains trial-0002"):
        sweep("classify", other, DEMO, output=folder, restart=True)
    assert json.loads((folder / "space.json").read_text())["space"] == {"training.epochs": "1,2"}


def test_an_error_of_a_trial_names_it_and_its_settings(monkeypatch, tmp_path):
    def finetune_rows(inputs, **_):
        raise ModelError("the model is damaged", "download it again")

    monkeypatch.setattr(workflow, "finetune_rows", finetune_rows)
    search = parse_sweep_space("grid", ["training.epochs=1,2"], None)
    with pytest.raises(ModelError, match=r"^trial-0001 \(training.epochs=1\): the model is damaged"):
        sweep("classify", search, DEMO, output=tmp_path / "sweep")


@pytest.mark.parametrize(
    ("space", "what"),
    [
        ("training.epoch=1,2", "--space: unknown key 'training.epoch'"),
        ("training.batch_size=16,x", "--space: training.batch_size = 'x' is wrong"),
        ("training.batch_size=float:8..16", "--space: training.batch_size = 11"),
        ("training.warmup_ratio=float:0..2", "--space: training.warmup_ratio = 2.0"),
    ],
)
def test_a_bad_space_is_refused_before_anything_is_read(space, what, tmp_path):
    with pytest.raises(UsageError) as refused:
        sweep("classify", parse_sweep_space("random", [space], 2), DEMO, output=tmp_path / "sweep")
    assert what in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_processes_of_torchrun_are_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="under torchrun"):
        sweep("classify", parse_sweep_space("grid", ["training.epochs=1,2"], None), DEMO, output=tmp_path / "sweep")


def test_a_dry_run_refuses_the_folder_of_other_trials(diverging, tmp_path):
    search, output = parse_sweep_space("grid", ["training.epochs=1,2"], None), tmp_path / "sweep"
    with pytest.raises(DivergedError):
        sweep("classify", search, DEMO, output=output)
    (output / "trial-0001" / "checkpoint-1").mkdir()
    dry_run(check_sweep("classify", search, DEMO, output))
    with pytest.raises(UsageError):
        dry_run(check_sweep("classify", search, {**DEMO, "training.warmup_ratio": 0.3}, output))


def test_a_dry_run_lists_the_trials_and_writes_nothing(tmp_path):
    search = parse_sweep_space("grid", ["training.epochs=1,2", "training.seed=1,2"], None)
    plan = dry_run(check_sweep("classify", search, DEMO, tmp_path / "sweep"))
    assert plan["settings"] == list(search.points(1)) and plan["trials"] == 4 and plan["rows"]["train"] == 40
    one = dry_run(
        check_sweep("classify", parse_sweep_space("random", ["training.epochs=1,2"], 1), DEMO, tmp_path / "sweep")
    )
    assert plan["disk_bytes"] == 4 * one["disk_bytes"]
    assert list(tmp_path.iterdir()) == []


SEARCHES = [
    ["--search", "random", "--trials", "3", "--batch-size", "16", "--space", "training.learning_rate=log:1e-4..1e-2"],
    ["--search", "tpe", "--trials", "3", "--batch-size", "16", "--space", "training.learning_rate=log:1e-4..1e-2"],
    ["--space", "training.batch_size=16,24,32"],
]


def arguments_of(model, data, search):
    arguments = ["sweep", "classify", "--model", model, "--data", data, "--epochs", 2, "--output", "run", *search]
    return [*arguments, "--set", "training.evaluate_every=5", "--set", "training.precision=fp32"]


@pytest.mark.slow
@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: search[1])
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_a_killed_sweep_goes_on_where_it_was(zygote, tmp_path, toy_data, tiny_model, search, name):
    if "tpe" in search and importlib.util.find_spec("optuna") is None:
        pytest.skip("needs Optuna")
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    for folder in (broken, whole):
        folder.mkdir()
    arguments = arguments_of(tiny_model, toy_data, search)
    code, text = zygote.run(whole, arguments)
    assert code == 0, text
    steps = [trial["steps"] for trial in sorted(read_summary(whole / "run")["trials"], key=lambda t: t["number"])]
    fault = {"function": TRAINING_STEP, "call": steps[0] + 8, "signal": name}  # in the second trial
    code, text = zygote.run(broken, arguments, fault)
    assert code == {"SIGKILL": -9, "SIGTERM": 143}[name], text
    assert read_summary(broken / "run") is None and find_trials(broken / "run") == ["trial-0001", "trial-0002"]
    first = (broken / "run/trial-0001/run.json").read_text()
    # the steps that the second command takes are those after the last checkpoint, and no others
    most = sum(steps[1:]) - 5
    code, text = zygote.run(broken, arguments, {"function": TRAINING_STEP, "call": most + 1, "signal": "SIGKILL"})
    assert (code, text.count("resuming")) == (0, 1), text
    assert (broken / "run/trial-0001/run.json").read_text() == first
    for number in (1, 2, 3):
        check_equal(*(folder / "run" / f"trial-{number:04}" for folder in (broken, whole)))
    tables = [read_summary(folder / "run") for folder in (broken, whole)]
    for table in tables:
        for trial in table["trials"]:
            trial["seconds"] = 0
        del table["finished"], table["sha256"]  # the checksum is of the times too
    assert tables[0] == tables[1]


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_two_processes_take_different_trials(tmp_path, toy_data, tiny_model, jobs):
    space = ["--space", "training.batch_size=16,24,32,48", "--jobs", str(jobs)]
    command = [sys.executable, "-m", "bertkit", *map(str, arguments_of(tiny_model, toy_data, space))]
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": str(Path(__file__).parents[2])}
    start = partial(subprocess.Popen, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=environment)
    first = start(command)
    while first.poll() is None and not (tmp_path / "run/trial-0001.json").exists():
        pass
    second = start([*command, "--worker"])
    texts = [process.communicate()[1] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), texts
    taken = [re.findall(r"(trial-\d+) of 4: ", text) for text in texts]
    assert sorted(taken[0] + taken[1]) == [f"trial-000{number}" for number in (1, 2, 3, 4)], texts
    assert [trial["status"] for trial in read_summary(tmp_path / "run")["trials"]] == ["finished"] * 4
    machines = {
        json.dumps(runs.read_record(tmp_path / "run" / name_trial(n))["machine"]["threads"]) for n in (1, 2, 3, 4)
    }
    assert machines == {str(2 // jobs)}


@pytest.mark.slow
def test_trials_at_the_same_time_are_those_in_turn(tmp_path, toy_data, tiny_model):
    space = ["--space", "training.batch_size=16,24,32"]
    for name, threads, jobs in (("in turn", "1", "1"), ("at once", "2", "2")):
        (tmp_path / name).mkdir()
        command = [*map(str, arguments_of(tiny_model, toy_data, space)), "--jobs", jobs]
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "PYTHONPATH": str(Path(__file__).parents[2])}
        subprocess.run([sys.executable, "-m", "bertkit", *command], cwd=tmp_path / name, env=environment, check=True)
    for number in (1, 2, 3):
        check_equal(*(tmp_path / name / "run" / f"trial-{number:04}" for name in ("in turn", "at once")))


def test_settings_on_disk_are_those_that_are_trained(diverging, tmp_path):
    search = parse_sweep_space("random", ["training.epochs=int:1..9"], 1)
    job = begin(search, tmp_path / "sweep")
    write_settings(tmp_path / "sweep", "trial-0001", {"training.epochs": 9})  # by a process that was killed then
    with pytest.raises(DivergedError):
        sweep("classify", search, DEMO, output=job.folder)
    assert diverging == [9]
