"""Operations, timings and memory."""

from __future__ import annotations

import time

import pytest
import torch

from bertkit.hardware.speed import (
    fastest_products,
    peak_memory,
    restart_peak_memory,
    time_by_turns,
    training_operations,
    waiting_seconds,
)


def test_operations_of_a_training_step():
    forward = 2 * (4 * 2**2 + 2 * 2 * 3) * 5 + 4 * 5**2 * 2  # products for five tokens, and attention between them
    assert training_operations((1, 2, 3), [5]) == 3 * forward
    assert training_operations((4, 2, 3), [5]) == 4 * 3 * forward
    assert training_operations((1, 2, 3), [5, 5]) == 2 * 3 * forward


def test_functions_are_timed_by_turns_and_the_fastest_time_counts():
    calls = []

    def slow(item):
        calls.append(item)
        time.sleep(0.2 if len(calls) == 1 else 0.002)

    seconds, others = time_by_turns([slow, lambda item: None], ["a", "b"])
    assert calls == ["a", "a", "b", "b"] * 2
    assert all(0.002 <= value < 0.2 for value in seconds)
    assert len(others) == 2


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_products_have_a_speed(precision):
    assert fastest_products("cpu", precision, 16, 32) > 0


def test_peak_memory_starts_anew():
    torch.ones(4_000_000).sum()
    if not restart_peak_memory("cpu") or peak_memory("cpu") is None:
        pytest.skip("this system does not measure a peak")
    before = peak_memory("cpu")
    kept = torch.ones(10_000_000)
    assert peak_memory("cpu") - before > 0.8 * kept.nbytes


def test_waiting_is_never_negative():
    assert waiting_seconds() >= 0
