"""Timed steps: those of a real training after some that warm up, and nothing that a training would leave."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bertkit.workflows.bench import bench
from tests.workflows.test_bench import recipe_of, timed_batches, write_rows


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "rows")


def test_parts_of_a_batch_are_one_step(tiny_model, rows):
    recipe = recipe_of(tiny_model, rows, gradient_accumulation=2)
    (speed,) = bench([recipe], steps=4).speeds
    batches = timed_batches(recipe, 4)
    parts = [part for batch in batches for part in (batch[::2], batch[1::2])]
    assert speed.steps == 4
    padded = sum(len(part) * max(part) for part in parts)
    assert speed.padding_share == pytest.approx(1 - sum(map(sum, batches)) / padded)


def test_nothing_is_saved_or_evaluated_or_left(tiny_model, rows, temporary, tmp_path, monkeypatch):
    monkeypatch.chdir(temporary)
    monkeypatch.setattr("bertkit.storage.checkpoints.commit", lambda *_: pytest.fail("saved"))
    monkeypatch.setattr("bertkit.training.trainer.BertkitTrainer.evaluate", lambda *_: pytest.fail("evaluated"))
    before = {name: value for name, value in os.environ.items() if name.startswith("BERTKIT")}
    recipe = recipe_of(tiny_model, rows, epochs=0.5, evaluate_every=1, steps=2)
    assert bench([recipe], steps=8).speeds[0].steps == 8
    assert list(temporary.iterdir()) == []
    assert {name: value for name, value in os.environ.items() if name.startswith("BERTKIT")} == before


def test_what_is_tried_before_the_first_step_is_not_counted(tiny_model, rows, two_threads):
    recipe = recipe_of(tiny_model, rows)
    found = bench([recipe], steps=4)
    batches = timed_batches(recipe, 4)
    padded = sum(len(batch) * max(batch) for batch in batches)
    assert found.speeds[0].padding_share == pytest.approx(1 - sum(map(sum, batches)) / padded)
    assert found.threads == 2
