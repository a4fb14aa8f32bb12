"""Several seeds in one folder: the runs are those of single commands, and nothing is trained twice."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bertkit.errors import DivergedError, UsageError
from bertkit.recipe import load_recipe
from bertkit.storage import files, runs
from bertkit.storage.run_sets import read_seeds
from bertkit.workflows import seeds as workflow
from bertkit.workflows.seeds import check_seeds, dry_run, finetune_seeds
from tests.conftest import finetune, toy_rows, write_csv
from tests.kills import TRAINING_STEP, check_equal


def test_each_seed_is_an_ordinary_run_and_only_missing_ones_are_trained(run, tiny_model, toy_data, monkeypatch):
    options = ["--epochs", 0.5, "--output"]
    ended = finetune(run, tiny_model, toy_data, *options, "both", "--seeds", 2, "--json")
    assert ended.code == 0, ended.err
    printed = json.loads(ended.out)
    assert printed["runs"] == read_seeds(Path("both"))["runs"]
    assert finetune(run, tiny_model, toy_data, *options, "alone", "--seed", 2).code == 0
    check_equal(Path("both/seed-2"), Path("alone"))
    monkeypatch.setattr(workflow, "finetune_rows", lambda inputs, **_: pytest.fail(str(inputs.plan.folder)))
    again = finetune(run, tiny_model, toy_data, *options, "both", "--seeds", "1")
    assert (again.code, "seed 1: finished on" in again.err) == (0, True)
    assert [entry["seed"] for entry in read_seeds(Path("both"))["runs"]] == [1, 2]
    other = finetune(run, tiny_model, toy_data, *options, "both", "--seeds", "2", "--max-length", 9)
    assert (other.code, "training.max_length: " in other.last) == (2, True)
    refused = finetune(run, tiny_model, toy_data, *options, "alone", "--seeds", "2")
    assert (refused.code, "the folder holds a single run" in refused.last) == (2, True)
    embedded = run("finetune", "classify", "--model", "both", "--data", toy_data)
    assert (embedded.code, "a folder of seeds, not one model (both) - name one of" in embedded.last) == (4, True)


@pytest.fixture
def demo():
    return load_recipe("classify", {"model": "demo", "data.source": "demo", "data.limit": 40})


def test_a_seed_that_diverges_loses_no_other(demo, tmp_path, monkeypatch):
    trained = []

    def finetune_rows(inputs, **_):
        seed = inputs.recipe.training.seed
        trained.append(seed)
        inputs.plan.folder.mkdir(exist_ok=True)
        record = runs.new_record(inputs.plan.identity, status="diverged", error="the loss is nan - lower it")
        runs.write_record(inputs.plan.folder, record)
        (inputs.plan.folder / "checkpoint-1").mkdir(exist_ok=True)
        raise DivergedError("the loss is nan", "lower it")

    monkeypatch.setattr(workflow, "finetune_rows", finetune_rows)
    summary, error = finetune_seeds(demo, (4, 5), output=tmp_path / "seeds")
    assert trained == [4, 5] and [entry.status for entry in summary.runs] == ["diverged"] * 2
    assert (str(error), error.exit_code) == ("seed 4 diverged: the loss is nan - lower it", 7)
    assert summary.splits == [] and read_seeds(tmp_path / "seeds")["best_seed"] is None
    finetune_seeds(demo, (4, 5), output=tmp_path / "seeds")
    assert trained == [4, 5, 4, 5]  # tried again, once in each command


def test_seeds_that_another_process_trains_are_left_to_it_and_so_is_the_summary(demo, tmp_path, monkeypatch):
    folder, trained = tmp_path / "seeds", []

    def finetune_rows(inputs, **_):
        trained.append(inputs.recipe.training.seed)
        inputs.plan.folder.mkdir(exist_ok=True)
        record = runs.new_record(inputs.plan.identity, status="diverged", error="the loss is nan - lower it")
        runs.write_record(inputs.plan.folder, record)
        (inputs.plan.folder / "checkpoint-1").mkdir(exist_ok=True)
        raise DivergedError("the loss is nan", "lower it")

    monkeypatch.setattr(workflow, "finetune_rows", finetune_rows)
    monkeypatch.setattr(workflow.SeedRuns, "find_machine", lambda *_: None)  # it would wait for the first run
    with pytest.raises(UsageError, match="there are no runs to join"):
        finetune_seeds(demo, (4, 5), output=folder, worker=True)
    with pytest.raises(UsageError, match="--restart and --worker are both given"):
        finetune_seeds(demo, (4, 5), output=folder, worker=True, restart=True)
    job = check_seeds(demo, (4, 5), folder)
    with job.lock(), files.hold_lock(job.run_lock("seed-4")):
        summary, error = finetune_seeds(demo, (4, 5), output=folder, worker=True)
    assert (
        trained == [5] and [run.name for run in summary.unfinished] == ["seed-4"] and not summary.unfinished[0].failure
    )
    assert str(error) == "seed 5 diverged: the loss is nan - lower it" and read_seeds(folder) is None
    summary, error = finetune_seeds(demo, (4, 5), output=folder, worker=True)
    assert trained == [5, 4] and str(error) == "seed 4 diverged: the loss is nan - lower it"
    assert [entry["status"] for entry in read_seeds(folder)["runs"]] == ["diverged"] * 2


@pytest.mark.parametrize(("draw", "value"), [("data.train_limit", 20), ("data.oversample", "label")])
def test_each_seed_draws_rows_of_its_own(tmp_path, monkeypatch, draw, value):
    drawn = {}

    def finetune_rows(inputs, **_):
        drawn[inputs.recipe.training.seed] = inputs.splits["train"].fingerprint()
        assert inputs.plan.identity["data"]["train"] == drawn[inputs.recipe.training.seed]
        raise DivergedError("the loss is nan", "lower it")

    monkeypatch.setattr(workflow, "finetune_rows", finetune_rows)
    changes = {"model": "demo", "data.source": "demo", "data.limit": 40, draw: value}
    finetune_seeds(load_recipe("classify", changes), (4, 5), output=tmp_path / "seeds")
    assert len(set(drawn.values())) == 2


def test_what_cannot_be_is_refused_before_anything_is_read(demo, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="--jobs 0"):
        finetune_seeds(demo, (1, 2), output=tmp_path / "seeds", jobs=0)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="under torchrun"):
        finetune_seeds(demo, (1, 2), output=tmp_path / "seeds")
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_refuses_what_the_command_refuses(demo, tmp_path):
    with pytest.raises(UsageError, match="--jobs 0"):
        check_seeds(demo, (1, 2), tmp_path / "seeds", jobs=0)
    folder = tmp_path / "seeds" / "seed-2"
    (folder / "checkpoint-1").mkdir(parents=True)
    runs.write_record(folder, runs.new_record({"recipe": {"task": "another"}}))
    with pytest.raises(UsageError):
        dry_run(check_seeds(demo, (1, 2), tmp_path / "seeds"))


def test_a_dry_run_counts_the_disk_of_all_runs(demo, tmp_path):
    one, three = (dry_run(check_seeds(demo, seeds, tmp_path / "seeds")) for seeds in [(1,), (1, 2, 3)])
    assert three.disk_bytes == 3 * one.disk_bytes and three.folder == str(tmp_path / "seeds")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", [{"function": TRAINING_STEP, "call": 25}, {"function": TRAINING_STEP, "call": 5}])
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_a_killed_command_goes_on_where_it_was(zygote, tmp_path, toy_data, tiny_model, fault, name):
    arguments = ["finetune", "classify", "--model", tiny_model, "--data", toy_data, "--batch-size", 16, "--epochs", 3]
    arguments += ["--set", "training.evaluate_every=5", "--set", "training.precision=fp32", "--output", "run"]
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    for folder in (broken, whole):
        folder.mkdir()
    code, text = zygote.run(whole, [*arguments, "--seeds", "1,2,3"])
    assert code == 0, text
    code, text = zygote.run(broken, [*arguments, "--seeds", "2"], {**fault, "signal": name})
    assert code == {"SIGKILL": -9, "SIGTERM": 143}[name], text
    assert not (broken / "run" / "seeds.json").exists()
    code, text = zygote.run(broken, [*arguments, "--seeds", "2"])
    assert code == 0, text
    code, text = zygote.run(broken, [*arguments, "--seeds", "3"])
    assert (code, text.count("finished on")) == (0, 2), text
    for name in ("seed-1", "seed-2", "seed-3"):
        check_equal(broken / "run" / name, whole / "run" / name)


ARGUMENTS = ["--batch-size", "16", "--epochs", "3", "--learning-rate", "1e-3", "--seeds", "3", "--output", "run"]
SETTINGS = ["training.evaluate_every=5", "training.log_every=2", "training.precision=fp32"]


def start(folder: Path, model: Path, *options: str, threads: int = 2) -> subprocess.Popen:
    command = ["finetune", "classify", "--model", str(model), "--data", str(folder.parent / "data"), *ARGUMENTS]
    command += [part for setting in SETTINGS for part in ("--set", setting)]
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen(
        [sys.executable, "-m", "bertkit", *command, *options],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_an_interrupted_command_goes_on_and_ends_as_one_run_at_a_time(tmp_path, tiny_model, name):
    (tmp_path / "data").mkdir()
    write_csv(tmp_path / "data" / "train.csv", toy_rows(960, seed=1))
    write_csv(tmp_path / "data" / "validation.csv", toy_rows(40, seed=2))
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    process = start(broken, tiny_model, "--jobs", "2")
    deadline = time.monotonic() + 300
    while not list(broken.glob("run/seed-*/checkpoint-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(getattr(signal, name))
    out, _ = process.communicate(timeout=300)
    assert process.returncode == {"SIGTERM": 143, "SIGKILL": -9}[name], out
    if name == "SIGTERM":
        assert "the same command resumes" in out.splitlines()[-1]
    # After a kill, the workers save and end on their own, and the command waits for them.
    process = start(broken, tiny_model, "--jobs", "2")
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0, out
    assert json.loads((broken / "run" / "seeds.json").read_text())["best_seed"] in (1, 2, 3)
    process = start(whole, tiny_model, threads=1)  # as many as each of two runs on two threads has
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0, out
    for seed in (1, 2, 3):
        check_equal(broken / "run" / f"seed-{seed}", whole / "run" / f"seed-{seed}")


@pytest.mark.slow
def test_a_second_command_joins_the_first(tmp_path, tiny_model, toy_data):
    shared, alone = tmp_path / "shared", tmp_path / "alone"
    first = start(shared, tiny_model, threads=1)
    while first.poll() is None and not (shared / "run/.seed-1.lock").exists():
        time.sleep(0.05)
    second = start(shared, tiny_model, "--worker", threads=1)
    texts = [process.communicate(timeout=600)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), texts
    taken = [re.findall(r"seed (\d) \(", text) for text in texts]
    assert sorted(taken[0] + taken[1]) == ["1", "2", "3"] and all(taken), texts
    # Only the command that started the runs is certain to print all of them.
    assert "best of 3: " in texts[0] and len(read_seeds(shared / "run")["runs"]) == 3
    process = start(alone, tiny_model, threads=1)
    assert process.communicate(timeout=600) and process.returncode == 0
    for seed in (1, 2, 3):
        check_equal(shared / "run" / f"seed-{seed}", alone / "run" / f"seed-{seed}")
