"""Training for a given time: the learning rate follows the clock."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import get_wsd_schedule

from bertkit.recipe import load_pretrain_recipe
from bertkit.recipe.sections import PretrainingConfig
from bertkit.storage import runs
from bertkit.storage.checkpoints import MANIFEST
from bertkit.training.auto_settings import choose_batch, choose_pretraining_rate
from bertkit.training.stopping import make_budget
from bertkit.training.timing import TimedStep
from bertkit.workflows.pretrain_plan import fit_to_budget
from tests.kills import losses_of
from tests.workflows.test_pretrain import arguments


@pytest.fixture
def quick_clock(monkeypatch):
    """A clock that is a twentieth of a second on at each reading, so that a machine's load decides nothing."""
    times = itertools.count(0, 0.05)
    clock = SimpleNamespace(perf_counter=lambda: next(times))
    monkeypatch.setattr("bertkit.training.stopping.time", clock)


@pytest.mark.usefixtures("quick_clock")
def test_a_budget_of_time_ends_the_run_and_the_rate_falls_to_nothing(run):
    ended = run(*arguments("--budget", "2s", "--set", "training.log_every=auto"))
    assert ended.code == 0, ended.err
    record = json.loads(Path("run/run.json").read_text())
    assert record["status"] == "finished"
    rates = [entry["learning_rate"] for entry in losses_of(Path("run")) if "learning_rate" in entry]
    assert 5 < len(rates) <= 40  # a reading of the clock is a fortieth of the budget
    assert rates[-1] < 0.3 * max(rates)
    assert record["result"]["tokens"] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("quick_clock")
def test_short_blocks_have_their_share_of_a_budget_of_time(run):
    settings = ["training.short_length=16", "training.short_fraction=0.5", "options.last_mask_rate=0.3"]
    more = [word for setting in settings for word in ("--set", setting)]
    ended = run(*arguments("--budget", "3s", "--workers", 1, *more))
    assert ended.code == 0, ended.err
    last = max(Path("run").glob("checkpoint-*"), key=lambda folder: int(folder.name.split("-")[1]))
    short = json.loads((last / MANIFEST).read_text())["state"]["short_steps"]
    assert 0 < short < int(last.name.split("-")[1])


@pytest.mark.usefixtures("quick_clock")
def test_a_budget_chooses_batch_and_rate_once_and_a_resumed_run_keeps_them(run, monkeypatch):
    timed = []

    def time_steps(job, training, *_, **__):
        assert len(job.train_batches.__getitems__([job.train_batches.key(0)])) == training.batch_size
        timed.append(training.batch_size)
        return [TimedStep(training.batch_size / 10, training.batch_size, [1], 0)]

    monkeypatch.setattr("bertkit.training.timing.time_steps", time_steps)
    command = [word for word in arguments("--budget", "2s") if word not in ("--batch-size", "8")]
    ended = run(*command)
    assert ended.code == 0, ended.err
    assert "in 2s, this machine trains about 2 steps of 8 blocks, or 0 of the recipe's 256: using" in ended.err
    record = json.loads(Path("run/run.json").read_text())
    chosen = record["budget_settings"]
    assert (chosen["batch_size"], chosen["learning_rate"], timed) == (8, 2e-3, [16])
    assert record["identity"]["recipe"]["training"]["batch_size"] == 256
    assert "batch_size: 8" in Path("run/recipe.yaml").read_text()
    assert record["result"]["tokens"] <= record["result"]["steps"] * 8 * 32
    assert losses_of(Path("run"))[-1]["epoch"] > 0.1  # a step is not a share of a billion of them
    runs.write_record(Path("run"), {**record, "status": "stopped"})
    timed.clear()
    resumed = run(*command)
    assert resumed.code == 0, resumed.err
    assert (timed, "resuming" in resumed.err) == ([], True)
    assert json.loads(Path("run/run.json").read_text())["budget_settings"] == chosen


@pytest.mark.parametrize("given", [{"training.batch_size": 32}, {"training.learning_rate": 1e-3}, {}])
def test_a_batch_or_a_rate_that_the_user_gave_is_kept(given):
    recipe = load_pretrain_recipe("mlm", {**given, **({"training.budget": "2s"} if given else {})})
    inputs = SimpleNamespace(context=SimpleNamespace(recipe=recipe))  # there is nothing to time
    assert fit_to_budget(inputs, None) == {}


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("linear", [0.5, 1.0, 0.5, 0.0]),
        ("cosine", [0.5, 1.0, 0.5, 0.0]),
        ("constant", [1.0, 1.0, 1.0, 1.0]),
        ("constant_with_warmup", [0.5, 1.0, 1.0, 1.0]),
        ("warmup_stable_decay", [0.5, 1.0, 1.0, 0.0]),
    ],
)
def test_the_learning_rate_rises_over_the_warmup_and_falls_to_zero_by_the_clock(schedule, factors):
    budget = make_budget(PretrainingConfig(budget="1h", schedule=schedule, warmup_ratio=0.2))
    rates = []
    for budget.share in (0.1, 0.2, 0.6, 1.0):
        rates.append(budget.rate())
    assert rates == pytest.approx(factors)
    assert budget.is_over


def test_a_stable_rate_decays_by_the_clock_as_transformers_has_it_decay_by_steps():
    training = PretrainingConfig(budget="1h", schedule="warmup_stable_decay", warmup_ratio=0.1, decay_ratio=0.4)
    budget, optimizer = make_budget(training), torch.optim.SGD([torch.zeros(1, requires_grad=True)], 1.0)
    schedule = get_wsd_schedule(optimizer, num_warmup_steps=10, num_decay_steps=40, num_training_steps=100)
    for step in range(1, 101):
        optimizer.step()
        schedule.step()
        budget.share = step / 100
        assert budget.rate() == pytest.approx(schedule.get_last_lr()[0], abs=1e-9), step


@pytest.mark.parametrize(
    ("blocks_per_second", "seconds", "processes", "batch"),
    [
        (50, 300, 1, 8),  # 1,875 steps; of 16, there would be fewer than 64 per block
        (50, 3600, 1, 32),  # 5,625 steps
        (50, 100_000, 1, 256),
        (10_000, 300, 1, 192),  # not a power of two
        (1, 1, 3, 9),  # each process has as many
    ],
)
def test_the_batch_doubles_while_the_budget_makes_many_steps_of_it(blocks_per_second, seconds, processes, batch):
    tried = []

    def step_seconds(size):
        tried.append(size)
        return size / blocks_per_second

    most = 192 if batch == 192 else 256
    assert choose_batch(seconds, most, step_seconds, processes) == batch
    assert max(tried) <= 2 * batch
    steps = seconds * blocks_per_second / batch
    assert batch == most or steps < 4 * 64 * batch


def test_the_rate_is_lower_for_wide_and_for_deep_models():
    assert [choose_pretraining_rate(2, 128), choose_pretraining_rate(4, 512), choose_pretraining_rate(12, 768)] == [
        2e-3,
        1e-3,
        3.8e-4,
    ]
    assert choose_pretraining_rate(24, 1024) < choose_pretraining_rate(12, 1024) < choose_pretraining_rate(12, 768)


def test_a_run_that_goes_on_has_used_some_of_its_time():
    budget = make_budget(PretrainingConfig(budget="100s"))
    budget.start(used=60)
    assert 0.6 <= budget.share < 0.61
    budget.start(used=101)
    assert budget.share == 1
    assert make_budget(PretrainingConfig(steps=5)) is None
