"""Every row once, batches of one length, the same order from the same key, whatever the number of processes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.recipe import TrainingConfig
from bertkit.tokens.feature_cache import count_labels
from bertkit.training.batching import SORT_WINDOW, BatchPartition, InMemoryBatches, SeededBatches, plan_epoch


@settings(deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=300), st.integers(1, 40), st.integers(0, 5))
def test_every_row_comes_once_and_sizes_differ_by_one(lengths, batch_size, epoch):
    batches = plan_epoch(lengths, batch_size, seed=7, epoch=epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    sizes = {len(batch) for batch in batches}
    assert max(sizes) <= batch_size
    assert max(sizes) - min(sizes) <= 1
    assert len(batches) == -(-len(lengths) // batch_size)


def test_order_depends_on_seed_and_epoch_alone():
    lengths = list(range(1, 200))

    def order(seed, epoch):
        return [batch.tolist() for batch in plan_epoch(lengths, 16, seed, epoch)]

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)


@pytest.mark.parametrize(("parts", "processes"), [(1, 2), (2, 1), (2, 2), (4, 2)])
def test_shares_make_up_the_batches_of_one_process(parts, processes):
    lengths = np.random.default_rng(0).integers(3, 50, 203).tolist()
    whole = plan_epoch(lengths, 16, seed=3, epoch=1)
    shares = []
    for process in range(processes):
        batches = SeededBatches(lengths, 16, 3, partition=BatchPartition(parts, processes, process))
        batches.set_epoch(1)
        shares.append(list(batches))
        assert len(shares[-1]) == len(batches) == len(whole) * parts
    for step, batch in enumerate(whole):
        mine = [row for share in shares for part in share[step * parts : (step + 1) * parts] for row in part]
        assert sorted(mine) == sorted(batch.tolist())
        assert all(part for share in shares for part in share[step * parts : (step + 1) * parts])


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_have_the_same_work_in_every_step(processes):
    """A step takes as long as its slowest process: what the others wait is below three in a hundred."""
    lengths = (np.random.default_rng(0).gamma(4, 5, 4000).astype(int) + 3).tolist()
    shares = [
        list(SeededBatches(lengths, 32, 3, partition=BatchPartition(1, processes, number)))
        for number in range(processes)
    ]
    work = np.array([[len(rows) * max(lengths[row] for row in rows) for rows in share] for share in shares])
    assert work.max(axis=0).sum() < 1.03 * work.mean(axis=0).sum()


def test_random_batches_ignore_lengths_and_hold_every_row():
    lengths = list(range(1, 641))
    batches = plan_epoch(lengths, 32, seed=1, epoch=0, bucket_size=1)
    assert sorted(np.concatenate(batches).tolist()) == list(range(640))
    assert min(max(batch) - min(batch) for batch in batches) > 300


def test_almost_no_padding_is_computed():
    lengths = np.random.default_rng(0).gamma(4, 5, 8000).astype(int) + 3
    batches = plan_epoch(lengths.tolist(), 32, seed=0, epoch=0)
    padded = sum(len(batch) * lengths[batch].max() for batch in batches)
    assert lengths.sum() / padded > 0.95


def test_sorted_batches_of_tagged_words_have_equally_many():
    lengths = np.random.default_rng(0).geometric(0.06, 3000)
    plan = plan_epoch(lengths, 32, seed=1, epoch=0, items=lengths)
    words = np.array([lengths[batch].sum() for batch in plan])
    assert sorted(np.concatenate(plan).tolist()) == list(range(3000))
    assert len(plan) == -(-3000 // 32)
    assert words.std() < 0.06 * words.mean()
    by_rows = np.array([lengths[batch].sum() for batch in plan_epoch(lengths, 32, seed=1, epoch=0)])
    assert by_rows.std() > 0.5 * by_rows.mean()


@pytest.mark.parametrize("least", [1, 3, 8])
def test_every_batch_of_tagged_words_can_be_shared_out(least):
    lengths = np.concatenate([np.full(40, 2), np.full(8, 500)])
    plan = plan_epoch(lengths, 8, seed=1, epoch=0, items=lengths, min_rows=least)
    assert min(map(len, plan)) >= least
    assert sorted(np.concatenate(plan).tolist()) == list(range(48))


def test_items_are_counted_where_labels_belong_to_tokens():
    tokens = {"input_ids": [1, 2, 3, 4], "labels": [-100, 5, 6, -100]}
    assert count_labels([tokens, {"input_ids": [1, 2], "labels": [-100, 7]}]).tolist() == [2, 1]
    assert count_labels([{"input_ids": [1, 2], "labels": 1}]) is None
    assert count_labels([{"input_ids": [1, 2], "labels": [0.0, 1.0]}]) is None
    assert count_labels([]) is None
    assert count_labels([{"input_ids": [1, 2, 3]}]) is None


LENGTHS = np.random.default_rng(0).integers(3, 40, 90).tolist()


def features_of(family: str) -> list[dict]:
    """Make rows with a label each, or with one per token as taggers have."""
    return [{"input_ids": [5] * length, "labels": [1] * length if family == "tags" else 1} for length in LENGTHS]


def plan_of(batches: InMemoryBatches, padding: str | None) -> list[list[int]]:
    return list(batches.loader(list, processes=1, process=0, padding_reason=padding).batch_sampler)


@pytest.mark.parametrize("padding", [None, "a GPU computes padding"])
@pytest.mark.parametrize("family", ["rows", "tags"])
@pytest.mark.parametrize("batching", ["auto", "sorted", "random"])
def test_batches_are_random_where_asked_or_where_tags_need_no_padding(batching, family, padding, caplog):
    caplog.set_level("INFO", logger="bertkit")
    features = features_of(family)
    plan = plan_of(InMemoryBatches(features, TrainingConfig(batching=batching, batch_size=4)), padding)
    is_random = batching == "random" or (batching == "auto" and family == "tags" and not padding)
    window = 1 if is_random else SORT_WINDOW
    expected = plan_epoch(LENGTHS, 4, 42, 0, window, items=count_labels(features))
    assert plan == [batch.tolist() for batch in expected]
    lines = {None: "batching: random, because padding is not computed"}
    line = lines.get(padding, f"batching: sorted by length, because {padding}")
    assert caplog.messages == ([line] if (batching, family) == ("auto", "tags") else [])


@pytest.mark.parametrize(("there", "here"), [(None, "a GPU computes padding"), ("a GPU computes padding", None)])
def test_a_run_goes_on_with_its_batches_on_another_machine(there, here, caplog):
    caplog.set_level("INFO", logger="bertkit")
    settings = TrainingConfig(batch_size=4)
    before, resumed = (InMemoryBatches(features_of("tags"), settings) for _ in range(2))
    planned = plan_of(before, there)
    resumed.load_state(before.state(7))
    caplog.clear()
    assert plan_of(resumed, here) == planned
    assert not caplog.messages


def test_a_checkpoint_that_does_not_tell_its_batches_has_those_of_the_recipe():
    batches = InMemoryBatches(features_of("tags"), TrainingConfig(batch_size=4, batching="random"))
    batches.load_state({})
    assert batches.batching == "random"


def test_the_longest_batch_has_the_longest_rows():
    lengths = [*range(3, 99), 5]
    features = [{"input_ids": [1] * length, "labels": 0} for length in lengths]
    batches = InMemoryBatches(features, TrainingConfig(batch_size=32, gradient_accumulation=2))
    batches.loader(lambda features: features, processes=1, process=0)
    longest = [len(feature["input_ids"]) for feature in batches.get_longest_rows()]
    assert longest == list(range(98, 98 - len(longest), -1))
    assert len(longest) in (12, 13)  # 97 rows in 4 batches of 2 shares
