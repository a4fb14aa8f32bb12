"""Two models on the same texts and rows: the largest difference, the least cosine, the scores."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.evaluation import parity
from bertkit.evaluation.parity import compare_outputs, measure_latency, random_texts, tabulate_latency
from bertkit.evaluation.scoring import score_split
from bertkit.hardware.speed import Timing
from tests.compression.measured import load_measured

INPUTS = ("input_ids", "attention_mask")


def test_texts_have_unlike_lengths_and_one_is_the_longest():
    batch = random_texts((8, 20), (*INPUTS, "token_type_ids"), 100)
    lengths = batch["attention_mask"].sum(axis=1)
    assert lengths[0] == 20 and lengths.min() >= 2 and len(set(lengths.tolist())) > 1
    assert batch["input_ids"].min() >= 50
    assert random_texts((2, 3, 20), INPUTS, 100)["input_ids"].shape == (2, 3, 20)


def test_the_largest_difference_is_relative_and_leaves_padding_out():
    batch = random_texts((2, 4), INPUTS, 100)
    batch["attention_mask"][:] = [[1, 1, 1, 1], [1, 1, 0, 0]]
    one = {"logits": np.full((2, 4, 3), 10.0)}
    other = {"logits": one["logits"].copy()}
    other["logits"][1, 3] = 99.0  # padding
    assert compare_outputs(lambda _: one, lambda _: other, [batch]) == (0.0, None)
    other["logits"][0, 0, 0] = 10.5
    assert compare_outputs(lambda _: one, lambda _: other, [batch]) == (pytest.approx(0.05), None)


def test_vectors_have_the_least_cosine():
    batch = random_texts((2, 4), INPUTS, 100)
    one, other = (np.array(values, dtype=np.float32) for values in ([[1, 0], [0, 2]], [[1, 0], [1, 1]]))
    largest, cosine = compare_outputs(lambda _: {"vectors": one}, lambda _: {"vectors": other}, [batch])
    assert (largest, cosine) == (pytest.approx(0.5), pytest.approx(0.5**0.5))


@pytest.mark.usefixtures("timed_once")
def test_only_lengths_that_the_model_reads_are_timed():
    seen = []
    table = tabulate_latency(lambda batch: seen.append(batch), lambda batch: None, INPUTS, 100, 64)
    assert [(row["texts"], row["tokens"]) for row in table] == [(1, 16), (32, 16)]
    assert all(batch["attention_mask"].all() for batch in seen) and len(seen) == 2
    assert all(row["times_as_fast"] > 0 and row["spread"] == 0 for row in table)


def test_no_ratio_is_kept_of_times_that_do_not_repeat(monkeypatch):
    rounds = ([[24.4e-3], [4e-3], [4e-3]], [[1e-3]] * 3)
    monkeypatch.setattr(parity, "time_interleaved", lambda *_: [Timing(of_one) for of_one in rounds])
    monkeypatch.setattr(parity, "_TIMED_SHAPES", ((1, 16),))
    (row,) = tabulate_latency(None, None, INPUTS, 100, 16)
    assert row == {"texts": 1, "tokens": 16, "torch": 4.0, "exported": 1.0, "spread": 5.1, "times_as_fast": None}


@pytest.mark.usefixtures("timed_once")
def test_each_model_has_a_time_and_a_rate(trained):
    checkpoint, split, features = load_measured(trained, rows=3)
    scored = score_split(checkpoint, split, features=features)
    paces = measure_latency([(checkpoint, scored), (checkpoint, scored)])
    assert len(paces) == 2 and all(pace.row_seconds > 0 and pace.rows_per_second > 0 for pace in paces)
    assert [pace.spread for pace in paces] == [0, 0]  # of a single round
