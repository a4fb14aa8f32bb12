"""Training for a given time: the learning rate follows the clock."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from bertkit.recipe.pretraining import Pretraining
from bertkit.storage.checkpoints import MANIFEST
from bertkit.training.budget import make_budget
from tests.kills import losses_of
from tests.workflows.test_pretrain import arguments


@pytest.fixture
def quick_clock(monkeypatch):
    """A clock that is a twentieth of a second on at each reading, so that a machine's load decides nothing."""
    times = itertools.count(0, 0.05)
    clock = SimpleNamespace(perf_counter=lambda: next(times))
    monkeypatch.setattr("bertkit.training.budget.time", clock)


@pytest.mark.usefixtures("quick_clock")
def test_a_budget_of_time_ends_the_run_and_the_rate_falls_to_nothing(run):
    ended = run(*arguments("--budget", "2s", "--set", "training.log_every=1"))
    assert ended.code == 0, ended.err
    record = json.loads(Path("run/run.json").read_text())
    assert record["status"] == "finished"
    rates = [entry["learning_rate"] for entry in losses_of(Path("run")) if "learning_rate" in entry]
    assert len(rates) > 5
    assert rates[-1] < 0.3 * max(rates)
    assert record["result"]["tokens"] > 0


@pytest.mark.usefixtures("quick_clock")
def test_short_blocks_have_their_share_of_a_budget_of_time(run):
    settings = ["training.short_length=16", "training.short_share=0.5", "options.last_mask_rate=0.3"]
    more = [word for setting in settings for word in ("--set", setting)]
    ended = run(*arguments("--budget", "3s", "--workers", 1, *more))
    assert ended.code == 0, ended.err
    last = max(Path("run").glob("checkpoint-*"), key=lambda folder: int(folder.name.split("-")[1]))
    short = json.loads((last / MANIFEST).read_text())["state"]["short_steps"]
    assert 0 < short < int(last.name.split("-")[1])


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("linear", [0.5, 1.0, 0.5, 0.0]),
        ("cosine", [0.5, 1.0, 0.5, 0.0]),
        ("constant", [1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_the_learning_rate_rises_over_the_warmup_and_falls_to_zero_by_the_clock(schedule, factors):
    budget = make_budget(Pretraining(budget="1h", schedule=schedule, warmup_ratio=0.2))
    rates = []
    for budget.share in (0.1, 0.2, 0.6, 1.0):
        rates.append(budget.rate())
    assert rates == pytest.approx(factors)
    assert budget.is_over


def test_a_run_that_goes_on_has_used_some_of_its_time():
    budget = make_budget(Pretraining(budget="100s"))
    budget.start(used=60)
    assert 0.6 <= budget.share < 0.61
    budget.start(used=101)
    assert budget.share == 1
    assert make_budget(Pretraining(steps=5)) is None
