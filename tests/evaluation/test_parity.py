"""Two models on the same texts and rows: the largest difference, the least cosine, the scores."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.evaluation import parity
from bertkit.evaluation.parity import compare_outputs, random_texts, time_both, time_in_turns
from bertkit.evaluation.scoring import score_split
from bertkit.progress import SILENT
from tests.pruning.measured import load_measured

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


def test_only_lengths_that_the_model_reads_are_timed(monkeypatch):
    monkeypatch.setattr(parity, "_ROUNDS", 1)
    seen = []
    table = time_both(lambda batch: seen.append(batch), lambda batch: None, INPUTS, 100, 64)
    assert [(row["texts"], row["tokens"]) for row in table] == [(1, 16), (32, 16)]
    assert all(batch["attention_mask"].all() for batch in seen) and len(seen) == 4


@pytest.mark.usefixtures("timed_once")
def test_each_model_has_a_time_and_a_rate(trained):
    checkpoint, split, features = load_measured(trained, rows=3)
    scored = score_split(checkpoint, split, SILENT, features=features)
    single, batched = time_in_turns([(checkpoint, scored), (checkpoint, scored)], SILENT)
    assert len(single) == len(batched) == 2 and all(value > 0 for value in (*single, *batched))
