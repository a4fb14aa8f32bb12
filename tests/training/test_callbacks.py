"""What happens between two steps: evaluations, patience, checkpoints."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import time
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest

from bertkit.hardware.device import Device
from bertkit.storage import runs
from bertkit.training.callbacks import TrainingCallback
from tests.conftest import finetune


@pytest.mark.slow
def test_patience_ends_training_early(run, tiny_model, toy_data):
    options = ("--epochs", 30, "--learning-rate", "1e-8", "--set", "training.patience=2")
    assert finetune(run, tiny_model, toy_data, *options).code == 0
    record = json.loads(Path("runs/classify/run.json").read_text())
    assert (record["best_step"], record["steps"]) == (6, 18)


@pytest.fixture
def free(monkeypatch):
    """Set the bytes that are free on the disk."""
    usage = namedtuple("usage", "total used free")
    return lambda size: monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 0, size))


@pytest.mark.parametrize("options", [(), ("--dry-run",)], ids=["run", "dry-run"])
def test_a_disk_that_is_too_small_is_refused_before_training(run, tiny_model, toy_data, free, options):
    weights = (tiny_model / "model.safetensors").stat().st_size
    free(5 * weights)
    ended = finetune(run, tiny_model, toy_data, "--epochs", 3, *options)
    assert ended.code == 6
    assert ended.last.startswith("error: the disk is too small: ") and "BERTKIT_SKIP_DISK_CHECK=1" in ended.last
    assert not list(Path().rglob("checkpoint-*"))
    free(10 * weights)
    assert finetune(run, tiny_model, toy_data, "--epochs", 3, *options).code == 0


@pytest.mark.slow
def test_the_check_of_the_disk_can_be_skipped(run, tiny_model, toy_data, free, monkeypatch):
    free(0)
    monkeypatch.setenv("BERTKIT_SKIP_DISK_CHECK", "1")
    assert finetune(run, tiny_model, toy_data, "--epochs", 1).code == 0


@pytest.mark.slow
def test_a_resumed_run_needs_no_room_for_what_it_has_written(run, tiny_model, toy_data, free):
    weights, folder = (tiny_model / "model.safetensors").stat().st_size, Path("runs/classify")
    free(8 * weights)
    settings = ("--epochs", 2, "--learning-rate", "1e-8", "--set", "training.keep_optimizer=true")
    assert finetune(run, tiny_model, toy_data, *settings).code == 0
    record = runs.read_record(folder)
    runs.write_record(folder, {**record, "status": "running"})
    (folder / f"checkpoint-{record['steps']}" / "bertkit-manifest.json").unlink()
    free(2 * weights)
    ended = finetune(run, tiny_model, toy_data, *settings)
    assert ended.code == 0, ended.err
    assert f"skipping checkpoint-{record['steps']}: it was not finished" in ended.err


@pytest.mark.slow
@pytest.mark.parametrize(("options", "kept"), [([], 1), (["--set", "training.keep_all_checkpoints=true"], 2)])
def test_usr1_saves_a_checkpoint_and_the_run_goes_on(run, tiny_model, toy_data, monkeypatch, options, kept):
    """In the end, the run has the checkpoints that it would have without the signal."""
    from bertkit.storage import checkpoints
    from bertkit.training.trainer import BertkitTrainer

    compute, commit, calls, saved = BertkitTrainer.compute_loss, checkpoints.commit, [], []

    def compute_loss(*arguments, **keywords):
        calls.append(1)
        if len(calls) == 8:
            os.kill(os.getpid(), signal.SIGUSR1)
        return compute(*arguments, **keywords)

    monkeypatch.setattr(BertkitTrainer, "compute_loss", compute_loss)
    monkeypatch.setattr(checkpoints, "commit", lambda folder, facts: (saved.append(folder.name), commit(folder, facts)))
    assert finetune(run, tiny_model, toy_data, "--epochs", 2, *options).code == 0
    assert saved == ["checkpoint-6", "checkpoint-8", "checkpoint-12"]
    there = {folder.name for folder in Path("runs/classify").glob("checkpoint-*")}
    assert "checkpoint-8" not in there and len(there) >= kept


@pytest.mark.parametrize("budget", [None, SimpleNamespace(fraction=0.4)])
def test_a_model_knows_how_far_training_is(budget):
    shares = []
    model = SimpleNamespace(set_progress=shares.append)
    batches = SimpleNamespace(budget=budget)
    job = SimpleNamespace(train_batches=batches, metric_for_best_model="accuracy", greater_is_better=True)
    callback = TrainingCallback(None, job, None)
    callback.trainer = SimpleNamespace(model=model, device=Device("cpu"))
    callback.on_step_begin(None, SimpleNamespace(global_step=3, max_steps=12), None)
    assert shares == [0.4 if budget else 0.25]


def test_rates_leave_evaluations_out(run, tiny_model, toy_data, monkeypatch):
    from bertkit.cli.terminal import TerminalProgress
    from bertkit.workflows.finetune import Evaluator

    shown, compute_metrics, clock = [], Evaluator.compute_metrics, {"evaluations": 0}

    def score_slowly(*given):
        clock["evaluations"] += 1000  # seconds, without waiting for them
        return compute_metrics(*given)

    seconds = SimpleNamespace(perf_counter=lambda: time.perf_counter() + clock["evaluations"])
    monkeypatch.setattr("bertkit.training.callbacks.time", seconds)
    monkeypatch.setattr(TerminalProgress, "update", lambda self, done, figures: shown.append(figures))
    monkeypatch.setattr(Evaluator, "compute_metrics", score_slowly)
    assert finetune(run, tiny_model, toy_data, "--epochs", 1, "--set", "training.evaluate_every=2").code == 0
    rates = [figures["rows/s"] for figures in shown if "rows/s" in figures]
    assert len(rates) == 6 and rates[-1] > 6 * 16 / 1000


def test_garbage_is_looked_for_more_often_in_training_than_during_imports(run, tiny_model, toy_data):
    assert run("encoders").code == 0
    during_imports = gc.get_threshold()[0]
    assert finetune(run, tiny_model, toy_data, "--epochs", 1).code == 0
    assert gc.get_threshold()[0] <= 200_000 < during_imports
