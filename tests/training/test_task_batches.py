"""Batches of several tasks: one task each, in proportion, and the same whenever they are asked for."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
import torch
from torch import nn

from bertkit.errors import RecipeError
from bertkit.recipe import Training
from bertkit.training.batching import InMemoryBatches
from bertkit.training.losses import Terms
from bertkit.training.task_batches import TaskBatches, join_collators, join_terms, share_steps


def features(count, start):
    return [{"row": n, "input_ids": [start + n] * (2 + n % 5), "labels": 0} for n in range(count)]


def collate(rows):
    return {"input_ids": torch.tensor([row["input_ids"][0] for row in rows])}


def make(counts=(48, 17), sampling=1.0, **training):
    training = Training(**{"batch_size": 8, **training})
    tasks = {f"t{n}": InMemoryBatches(features(count, 1000 * n), training) for n, count in enumerate(counts)}
    return TaskBatches(tasks, training, sampling)


def epoch_of(batches, epoch, **share):
    loader = batches.loader(join_collators([collate] * len(batches.tasks)), **{"processes": 1, "process": 0, **share})
    loader.set_epoch(epoch)
    return [(int(batch["task"][0]), batch["input_ids"].tolist()) for batch in loader]


@pytest.mark.parametrize(("sampling", "steps"), [(1.0, [7, 2]), (0.0, [5, 4])])
def test_a_batch_has_rows_of_one_task_and_tasks_have_their_share(sampling, steps):
    batches = make(sampling=sampling)
    epoch = epoch_of(batches, 0)
    assert all({row // 1000 for row in rows} == {task} for task, rows in epoch)
    assert [Counter(task for task, _ in epoch)[task] for task in (0, 1)] == batches.steps == steps
    assert len(epoch) == batches.training.steps_per_epoch(65)


def test_a_task_sees_all_its_rows_before_it_sees_one_again():
    batches = make(sampling=0.5)
    rows = [row for epoch in range(6) for task, rows in epoch_of(batches, epoch) if task == 1 for row in rows]
    assert len(rows) > 3 * 17
    for start in range(0, len(rows) - 16, 17):
        assert sorted(rows[start : start + 17]) == list(range(1000, 1017))


def test_an_epoch_follows_from_seed_and_number_alone():
    assert epoch_of(make(), 3) == epoch_of(make(), 3) != epoch_of(make(), 2)
    assert epoch_of(make(), 3) != epoch_of(make(seed=1), 3)
    skipped = make()
    list(islice(epoch_of(skipped, 0), 4))
    assert epoch_of(skipped, 3) == epoch_of(make(), 3)


def test_micro_batches_and_processes_share_the_same_batches():
    whole = [(task, sorted(rows)) for task, rows in epoch_of(make(), 1)]
    halves = [epoch_of(make(gradient_accumulation=2), 1, processes=2, process=process) for process in (0, 1)]
    joined = [
        (halves[0][n][0], sorted(row for half in halves for _, rows in half[n : n + 2] for row in rows))
        for n in range(0, len(halves[0]), 2)
    ]
    assert joined == whole


def test_sizes_tokens_and_the_longest_rows_are_those_of_all_tasks():
    batches = make()
    epoch_of(batches, 0)
    rows, tokens = batches.step_size()
    assert rows == pytest.approx((7 * 48 / 6 + 2 * 17 / 3) / 9)
    assert tokens > 2 * rows
    assert set(batches.occurring_tokens()) == {*range(48), *range(1000, 1017)}
    assert {len(row["input_ids"]) for row in batches.longest()} == {6}
    assert make(occurring_embeddings=False).occurring_tokens() is None


def test_the_state_is_that_of_each_task():
    batches = make()
    batches.load_state({"t0": {"batching": "random"}})
    assert batches.state(3) == {"t0": {"batching": "random"}, "t1": {"batching": "auto"}}


def test_fewer_batches_than_tasks_are_refused():
    with pytest.raises(RecipeError, match="1 batch"):
        make(counts=(3, 4), batch_size=8)


def test_the_largest_remainders_get_what_rounding_leaves():
    assert share_steps([10, 10, 10], 10, 1.0) == [4, 3, 3]
    assert sum(share_steps([5, 9, 1000], 33, 0.3)) == 33


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.models = {"a": "model of a", "b": "model of b"}

    def forward(self, task, input_ids):
        self.ran = task
        return float(input_ids.sum())


def test_a_batch_counts_and_sums_for_its_own_task():
    def terms(factor):
        return Terms(
            {"gold": 1.0},
            lambda batch: {"gold": len(batch["input_ids"])},
            lambda model, batch: {"gold": factor * model(**batch) * (model.module == "model of b")},
        )

    joined, model = join_terms({"a": terms(1), "b": terms(10)}), Model()
    batch = join_collators([collate, collate])([{"input_ids": [4], "task": 1}, {"input_ids": [6], "task": 1}])
    assert joined.weights == {"a": 1.0, "b": 1.0}
    assert joined.count(batch) == {"b": 2}
    assert joined.sums(model, batch) == {"b": 100.0}
    assert model.ran == "b"
