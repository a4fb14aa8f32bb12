"""Batches in which no text occurs twice."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from bertkit.errors import RecipeError
from bertkit.recipe import TrainingConfig
from bertkit.training.batching import InMemoryBatches, plan_batches_without_duplicates


def make_texts(rows: int, repeats: int, seed: int = 0) -> list[list[int]]:
    """Rows of an anchor, which comes in about so many rows, and a positive of its own."""
    rng = random.Random(seed)
    anchors = range(rows) if repeats == 1 else rng.choices(range(rows // repeats), k=rows)
    return [[anchor, 10**6 + row] for row, anchor in enumerate(anchors)]


@pytest.mark.parametrize(("rows", "repeats", "batch_size"), [(100, 1, 16), (1000, 3, 32), (500, 20, 32), (7, 1, 32)])
def test_no_text_comes_twice_in_a_batch_and_few_rows_are_left_out(rows, repeats, batch_size):
    texts = make_texts(rows, repeats)
    plan = plan_batches_without_duplicates(texts, batch_size, 1, 0)
    assert len(plan) == -(-rows // batch_size)
    for batch in plan:
        found = [text for row in batch for text in texts[row]]
        assert 0 < len(batch) <= batch_size and len(set(found)) == len(found)
    planned = Counter(row for batch in plan for row in batch.tolist())
    assert set(planned.values()) == {1}
    assert len(planned) >= (0.95 if repeats < 20 else 0.4) * rows


def test_without_repeats_every_row_comes_once():
    plan = plan_batches_without_duplicates(make_texts(101, 1), 10, 1, 0)
    assert sorted(row for batch in plan for row in batch.tolist()) == list(range(101))


def test_the_order_follows_from_seed_and_epoch():
    texts = make_texts(200, 3)
    first = [batch.tolist() for batch in plan_batches_without_duplicates(texts, 16, 1, 0)]
    assert first == [batch.tolist() for batch in plan_batches_without_duplicates(texts, 16, 1, 0)]
    assert first != [batch.tolist() for batch in plan_batches_without_duplicates(texts, 16, 1, 1)]
    assert first != [batch.tolist() for batch in plan_batches_without_duplicates(texts, 16, 2, 0)]


def test_a_text_of_every_row_leaves_one_row_per_batch_or_as_many_as_processes_need():
    texts = [[5, 10 + row] for row in range(12)]
    assert [len(batch) for batch in plan_batches_without_duplicates(texts, 4, 0, 0)] == [1, 1, 1]
    assert [len(batch) for batch in plan_batches_without_duplicates(texts, 4, 0, 0, min_rows=2)] == [2, 2, 2]


def test_batches_of_features_with_numbered_texts_are_distinct():
    texts = make_texts(60, 4)
    features = [{"row": row, "input_ids": [[2, 3]] * 2, "texts": own} for row, own in enumerate(texts)]
    batches = InMemoryBatches(features, TrainingConfig(batch_size=8, seed=3))
    batches.loader(lambda rows: rows, processes=1, process=0)
    assert [list(rows) for rows in batches.sampler] == [
        plan.tolist() for plan in plan_batches_without_duplicates(texts, 8, 3, 0)
    ]
    assert batches.batching == "random"


def test_sorted_batches_are_refused():
    features = [{"row": 0, "input_ids": [[2, 3]] * 2, "texts": [0, 1]}]
    with pytest.raises(RecipeError, match=r"training.batching=sorted does not work with a loss"):
        InMemoryBatches(features, TrainingConfig(batching="sorted"))
