"""What a batch of pretraining is made of, by steps and by the clock."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from bertkit.pretraining.objectives import mlm
from bertkit.tokens.features import IGNORE_INDEX
from bertkit.training.pretrain_batches import PretrainBatches
from tests.pretraining.objectives.texts import make_corpus, make_setup

LONG, SHORT, SHARE = 32, 12, 0.75


def make_batches(clock=None, options=None, **training):
    context = make_setup(
        "mlm", options=options, short_length=SHORT, short_fraction=SHARE, batch_size=8, seed=1, **training
    )
    return PretrainBatches(make_corpus(), mlm, context, clock)


def longest(batches, number):
    return max(len(feature["input_ids"]) for feature in batches.__getitems__([batches.make_key(number)]))


def masked_share(batches, number):
    features = batches.__getitems__([batches.make_key(number)])
    return np.mean(np.concatenate([feature["labels"] != IGNORE_INDEX for feature in features]))


def test_three_quarters_of_the_steps_are_short():
    batches = make_batches(steps=8)
    assert [longest(batches, number) > SHORT for number in range(8)] == [False] * 6 + [True] * 2
    assert {length: tokens > 0 for length, tokens in batches.count_tokens_by_length(6).items()} == {
        LONG: False,
        SHORT: True,
    }
    assert batches.count_tokens(8) == sum(batches.count_tokens_by_length(8).values())


def test_epochs_are_counted_over_blocks_of_both_lengths():
    batches = make_batches(steps=40)
    seen = {LONG: 0, SHORT: 0}
    for number in range(35):
        seen[LONG if longest(batches, number) > SHORT else SHORT] += 8
    assert min(seen.values()) > 0
    assert batches.count_epochs(35) == sum(rows / len(batches.examples(length, 0)) for length, rows in seen.items())


def test_with_a_budget_the_clock_decides_when_long_blocks_begin_and_a_checkpoint_knows_it():
    clock = SimpleNamespace(local_fraction=0.0)
    batches = make_batches(clock, budget="1h")
    assert longest(batches, 0) == longest(batches, 1) == SHORT
    assert batches.get_step_size()[1] < 8 * SHORT
    clock.local_fraction = SHARE
    assert longest(batches, 2) == LONG
    assert batches.get_step_size()[1] > 8 * SHORT
    assert batches.state(4) == {"short_steps": 2}
    resumed = make_batches(clock, budget="1h")
    resumed.load_state({"short_steps": 2})
    assert [resumed.make_key(number).short_steps for number in range(4)] == [2] * 4  # skipped batches change nothing
    assert resumed.count_tokens_by_length(4).keys() == batches.count_tokens_by_length(4).keys()
    assert resumed.count_tokens(4) == batches.count_tokens(4) < 4 * batches.get_step_size()[1]


def test_a_turn_that_was_sent_off_is_made_as_it_was_then():
    clock = SimpleNamespace(local_fraction=0.0)
    batches = make_batches(clock, budget="1h")
    key = batches.make_key(2)
    clock.local_fraction = 1.0
    assert longest(batches, 3) == LONG
    assert max(len(feature["input_ids"]) for feature in batches.__getitems__([key])) == SHORT


def test_the_share_that_is_masked_follows_the_clock_too():
    clock = SimpleNamespace(local_fraction=0.0)
    batches = make_batches(clock, {"mask_rate": 0.1, "last_mask_rate": 0.6}, budget="1h")
    few = masked_share(batches, 0)
    clock.local_fraction = 1.0
    assert few < 0.25 < 0.45 < masked_share(batches, 1)


def test_one_length_alone_is_timed_without_the_clock():
    batches = make_batches(SimpleNamespace(local_fraction=1.0), budget="1h", workers=2)
    for length in (LONG, SHORT):
        timed = batches.select_length(length, 5)
        assert (longest(timed, 3) > SHORT) == (length == LONG)
        assert (len(timed), timed.training.workers) == (5, 0)


def test_the_longest_rows_are_of_the_longer_length_and_a_step_is_made_as_before():
    batches = make_batches(steps=8, gradient_accumulation=2)
    first = batches.__getitems__([batches.make_key(0)])
    lengths = [len(feature["input_ids"]) for feature in batches.get_longest_rows()]
    assert (len(lengths), max(lengths)) == (4, LONG)
    assert [feature["input_ids"].tolist() for feature in batches.__getitems__([batches.make_key(0)])] == [
        feature["input_ids"].tolist() for feature in first
    ]
