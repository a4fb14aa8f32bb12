"""Operations, timings and memory."""

from __future__ import annotations

import time

import pytest

from bertkit.hardware.speed import (
    Timing,
    compute_speedup,
    count_training_operations,
    measure_product_speed,
    time_interleaved,
)


def test_operations_of_a_training_step():
    forward = 2 * (4 * 2**2 + 2 * 2 * 3) * 5 + 4 * 5**2 * 2  # products for five tokens, and attention between them
    assert count_training_operations((1, 2, 3), [5]) == 3 * forward
    assert count_training_operations((4, 2, 3), [5]) == 4 * 3 * forward
    assert count_training_operations((1, 2, 3), [5, 5]) == 2 * 3 * forward


def test_functions_are_timed_by_turns_and_the_fastest_time_counts(monkeypatch):
    monkeypatch.setattr("bertkit.hardware.speed._MIN_SECONDS", 0.0)
    calls = []

    def slow(item):
        calls.append(item)
        time.sleep(0.2 if len(calls) == 1 else 0.002)

    timing, other = time_interleaved([slow, lambda item: None], ["a", "b"])
    assert calls == ["a", "a", "b", "b"] * 3
    assert all(0.002 <= value < 0.2 for value in timing.seconds)
    assert (len(other.rounds), len(other.seconds)) == (3, 2)


def test_short_work_is_repeated_in_a_round(monkeypatch):
    monkeypatch.setattr("bertkit.hardware.speed._time", lambda run, item: run(item) or 0.004)
    calls = []
    time_interleaved([calls.append], ["a"])
    assert calls == ["a"] * 3 * 3


def test_a_ratio_is_told_only_where_rounds_agree():
    graph = Timing([[1.0, 2.0], [1.1, 2.0]])
    assert compute_speedup(Timing([[4.0, 4.0], [4.2, 4.0]]), graph) == pytest.approx(8 / 3)
    busy = Timing([[24.4, 4.0], [4.0, 4.0]])  # another program ran in the first round
    assert compute_speedup(busy, graph) is None
    assert compute_speedup(busy, graph, slice(1, 2)) == 2.0
    assert (busy.spread(), busy.spread(slice(1, 2))) == (pytest.approx(28.4 / 8 - 1), 0.0)
    # both were slowed down alike, which the ratio does not show, but their times do
    assert compute_speedup(Timing([[8.0], [4.0]]), Timing([[2.0], [1.0]])) == 4.0


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_products_have_a_speed(precision):
    assert measure_product_speed("cpu", precision, 16, 32) > 0
