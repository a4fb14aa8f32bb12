"""The time and memory that a dry run tells: those of timed steps on some of the rows, or why there are none."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from bertkit.recipe import load_recipe
from bertkit.training import timing
from bertkit.workflows import bench as measuring
from bertkit.workflows.trial_run import DryRun, dry_run
from tests.conftest import toy_rows

LOCAL = {"training.precision": "fp32", "training.batch_size": 8}


@pytest.fixture
def plan_run(tiny_model, toy_data, monkeypatch):
    """Make dry runs of the toy rows; return each with what was measured for it."""

    def run(**training) -> tuple[DryRun, measuring.Speed]:
        changes = {f"training.{name}": value for name, value in training.items()}
        plan = dry_run(
            load_recipe("classify", {"model": str(tiny_model), "data.source": str(toy_data), **LOCAL, **changes})
        )
        return plan, speeds.pop()

    speeds = []
    measure = measuring.measure_sample
    monkeypatch.setattr(measuring, "measure_sample", lambda *run: speeds.append(measure(*run)) or speeds[-1])
    return run


def test_some_rows_stand_for_all(plan_run, tiny_model, monkeypatch):
    monkeypatch.setattr(measuring, "_MAX_ROWS", 20)
    plan, speed = plan_run(epochs=3)
    # every fifth of 96 rows, and every second of 40
    texts = [row["text"] for row in toy_rows(96, seed=1)[::5]]
    tokens = sum(map(len, AutoTokenizer.from_pretrained(tiny_model)(texts)["input_ids"]))
    assert plan.rows == {"train": 96, "validation": 40}
    assert speed.epoch_seconds == pytest.approx(tokens * 96 / 20 / speed.tokens_per_second)
    evaluating = 3 * 40 / speed.evaluation_rows_per_second
    assert 0 < plan.seconds - (3 * speed.epoch_seconds + evaluating) < 60  # tokenizing
    assert (plan.steps, plan.timed_steps, plan.memory_bytes) == (36, 10, speed.peak_memory_bytes)


def test_a_run_of_so_many_steps_is_estimated_by_its_steps(plan_run):
    plan, speed = plan_run(steps=30, evaluate_every=20)
    evaluating = 2 * 40 / speed.evaluation_rows_per_second
    assert 0 < plan.seconds - (30 / 12 * speed.epoch_seconds + evaluating) < 60  # tokenizing


def test_long_steps_are_timed_once(plan_run, monkeypatch):
    monkeypatch.setattr(measuring, "_MAX_SECONDS", 0.0)
    assert plan_run()[0].timed_steps == 1


def test_what_is_frozen_is_not_trained(plan_run, monkeypatch):
    trained = []
    time_steps = timing.time_steps

    def note_weights(trainee, *arguments, **keywords):
        trained.extend(name for name, weights in trainee.model.named_parameters() if weights.requires_grad)
        return time_steps(trainee, *arguments, **keywords)

    monkeypatch.setattr(timing, "time_steps", note_weights)
    plan_run(freeze="encoder")
    assert trained and not any("embeddings" in name or ".layer." in name for name in trained)


def test_callbacks_of_a_user_are_told_of_no_trial(plan_run, monkeypatch):
    def refuse(name):
        raise AssertionError(name)

    monkeypatch.setattr("bertkit.training.fit.make_callback", refuse)
    assert plan_run(callbacks=["transformers.trainer_callback.ProgressCallback"])[0].timed_steps == 10


def test_why_there_is_no_estimate(run, tiny_model, toy_data, monkeypatch):
    monkeypatch.setattr("bertkit.workflows.trial_run.shares_work", lambda: True)
    ended = run("finetune", "classify", "--model", tiny_model, "--data", toy_data, "--dry-run")
    assert "  time and memory are only measured in a run with one process" in ended.out.splitlines()
