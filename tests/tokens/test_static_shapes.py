"""Batches of few shapes: their widths, and the rows that fill them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from bertkit.tokens.features import IGNORE_INDEX, ROW_MASK, count_items, pad_features
from bertkit.tokens.static_shapes import choose_widths, evaluation_rows, fill_rows, static_collator, training_rows


def collate(features):
    return {name: torch.from_numpy(values) for name, values in pad_features(features, {"input_ids": 0}, 100).items()}


def texts(*lengths):
    return [{"input_ids": list(range(1, length + 1))} for length in lengths]


def test_batches_of_any_lengths_have_few_widths():
    static = static_collator(collate, None, (16, 56, 104))
    widths = {static(texts(length, 1 + length // 2))["input_ids"].shape[1] for length in range(1, 101)}
    assert widths == {16, 56, 100}  # where positions of an encoder end
    assert len({collate(texts(length))["input_ids"].shape[1] for length in range(1, 101)}) > 20
    assert static_collator(collate, None, (16,))(texts(40))["input_ids"].shape[1] == 40  # read whole


def padded(lengths, widths):
    return sum(min(width for width in widths if width >= length) for length in lengths)


def test_the_widths_are_those_of_the_least_padding():
    random = np.random.default_rng(0)
    for _ in range(20):
        lengths = random.integers(1, random.integers(2, 90), 30)
        rounded = range(8, 8 * -(-int(lengths.max()) // 8) + 1, 8)
        for most in (1, 2, 3):
            chosen = choose_widths(lengths, most)
            ways = [way for size in range(1, most + 1) for way in itertools.combinations(rounded, size)]
            assert len(chosen) <= most
            assert padded(lengths, chosen) == min(padded(lengths, way) for way in ways if way[-1] == rounded[-1])
    assert choose_widths(random.integers(1, 8000, 500))[-1] >= 7900


def test_an_error_of_a_collator_leaves_other_batches_as_they_are():
    with pytest.raises(ZeroDivisionError):
        static_collator(lambda features: 1 / 0, None, (64,))([])
    assert collate(texts(5))["input_ids"].shape[1] == 5


def test_rows_that_fill_a_batch_repeat_its_first_and_have_no_label():
    batch = {
        "input_ids": torch.arange(6).view(2, 3),
        "attention_mask": torch.ones(2, 3, dtype=torch.long),
        "labels": torch.tensor([[1, 2, IGNORE_INDEX], [IGNORE_INDEX, 1, 1]]),
        "start_positions": torch.tensor([1, 2]),
        "prompt_tokens": torch.tensor(3),
    }
    filled = fill_rows(batch, [0, 1, -1, -1])
    assert filled[ROW_MASK].tolist() == [True, True, False, False]
    assert filled["input_ids"].tolist() == [[0, 1, 2], [3, 4, 5], [0, 1, 2], [0, 1, 2]]
    assert filled["labels"][2:].eq(IGNORE_INDEX).all()
    assert filled["start_positions"][2:].gt(1000).all()
    assert int(filled["prompt_tokens"]) == 3
    assert count_items(filled) == count_items(batch) == 4


def test_rows_without_labels_or_with_numbers_count_where_they_are_real():
    for labels in ({}, {"labels": torch.tensor([0.5, 1.0])}):
        filled = fill_rows({"input_ids": torch.ones(2, 3), **labels}, [0, 1, *[-1] * 6])
        assert count_items(filled) == 2
        assert all(len(values) == 8 for values in filled.values())
    assert filled["labels"].tolist() == [0.5, 1.0, *[0.0] * 6]


def test_a_full_batch_gets_no_row():
    full = {"input_ids": torch.ones(5, 3)}
    assert fill_rows(full, training_rows(5)(full))[ROW_MASK].tolist() == [True] * 5


def test_rows_are_filled_to_few_numbers():
    def counts(order, shapes):
        return {len(order({"input_ids": torch.zeros(shape)})) for shape in shapes}

    assert counts(training_rows(32), [(count, 16) for count in range(1, 97)]) == {32, 64, 96}
    assert counts(evaluation_rows(4096), [(count, 48) for count in range(1, 86)]) == {85}
    assert counts(evaluation_rows(4096), [(3, 4, 256)]) == {4}
    assert counts(evaluation_rows(4096), [(1, 5000)]) == {1}
