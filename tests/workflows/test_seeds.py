"""Several seeds in one folder: the runs are those of single commands, and nothing is trained twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bertkit.errors import DivergedError, UsageError
from bertkit.recipe import load_recipe
from bertkit.storage import runs
from bertkit.storage.runs import find_machine
from bertkit.storage.seeds import read_seeds, seed_folders
from bertkit.workflows import seeds as workflow
from bertkit.workflows.seeds import dry_run, finetune_seeds
from tests.conftest import finetune
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
        inputs.plan.folder.mkdir()
        record = {"status": "diverged", "error": "the loss is nan", "identity": inputs.plan.identity}
        runs.write_record(inputs.plan.folder, record)
        (inputs.plan.folder / "checkpoint-1").mkdir()
        raise DivergedError("the loss is nan", "lower it")

    monkeypatch.setattr(workflow, "finetune_rows", finetune_rows)
    summary, error = finetune_seeds(demo, (4, 5), output=tmp_path / "seeds")
    assert trained == [4, 5] and [entry.status for entry in summary.runs] == ["diverged"] * 2
    assert (str(error), error.exit_code) == ("seed 4 diverged: the loss is nan - lower it", 7)
    assert summary.splits == [] and read_seeds(tmp_path / "seeds")["best_seed"] is None


def test_each_seed_draws_rows_of_its_own(tmp_path, monkeypatch):
    drawn = {}

    def finetune_rows(inputs, **_):
        drawn[inputs.recipe.training.seed] = inputs.splits["train"].fingerprint()
        assert inputs.plan.identity["data"]["train"] == drawn[inputs.recipe.training.seed]
        raise DivergedError("the loss is nan", "lower it")

    monkeypatch.setattr(workflow, "finetune_rows", finetune_rows)
    changes = {"model": "demo", "data.source": "demo", "data.limit": 40, "data.train_limit": 20}
    finetune_seeds(load_recipe("classify", changes), (4, 5), output=tmp_path / "seeds")
    assert len(set(drawn.values())) == 2


def test_what_cannot_be_is_refused_before_anything_is_read(demo, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="--jobs 0"):
        finetune_seeds(demo, (1, 2), output=tmp_path / "seeds", jobs=0)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="under torchrun"):
        finetune_seeds(demo, (1, 2), output=tmp_path / "seeds")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("asked", "threads", "found"), [(1, 1, 1), (3, 2, 2), (2, 4, 2)])
def test_no_more_runs_at_a_time_than_threads(monkeypatch, asked, threads, found):
    import torch

    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert workflow._count_jobs(asked) == found


def test_a_dry_run_refuses_what_the_command_refuses(demo, tmp_path):
    with pytest.raises(UsageError, match="--jobs 0"):
        dry_run(demo, (1, 2), output=tmp_path / "seeds", jobs=0)
    folder = tmp_path / "seeds" / "seed-2"
    (folder / "checkpoint-1").mkdir(parents=True)
    runs.write_record(folder, {"status": "running", "identity": {"recipe": {"task": "another"}}})
    with pytest.raises(UsageError):
        dry_run(demo, (1, 2), output=tmp_path / "seeds")


def test_a_dry_run_counts_the_disk_of_all_runs(demo, tmp_path):
    one, three = (dry_run(demo, seeds, output=tmp_path / "seeds") for seeds in [(1,), (1, 2, 3)])
    assert three.disk_bytes == 3 * one.disk_bytes and three.folder == str(tmp_path / "seeds")
    assert list(tmp_path.iterdir()) == []


def test_all_runs_compute_as_the_first_one(tmp_path):
    assert find_machine(seed_folders(tmp_path)) is None
    machine = {"device": "cpu", "precision": "bf16", "threads": 3, "reason": "as asked"}
    for seed, facts in [(2, {}), (7, {"machine": machine})]:
        (tmp_path / f"seed-{seed}").mkdir()
        runs.write_record(tmp_path / f"seed-{seed}", {"status": "running", **facts})
    assert find_machine(seed_folders(tmp_path)) == machine


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
