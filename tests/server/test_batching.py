"""Batches of many requests: who gets which answer, what waits, and what one bad input disturbs."""

from __future__ import annotations

import asyncio
import random
import threading

import pytest

from bertkit.errors import DataError
from bertkit.server.batching import BusyError, Computer, Lane, Limits
from bertkit.server.engines import Encoded


class Doubling:
    """Doubles numbers and texts, whose tokens are their characters; some it refuses, and on some it breaks."""

    def __init__(self) -> None:
        self.batches = []
        self.gate = threading.Event()
        self.gate.set()

    def group(self, value):
        return type(value).__name__

    def encode(self, values):
        if "wrong" in values:
            raise DataError("wrong", "right it")
        return [Encoded(value, len(str(value))) for value in values]

    def answer(self, values, encoded):
        self.gate.wait(5)
        self.batches.append(list(values))
        if "broken" in values:
            raise ZeroDivisionError
        return [one.content * 2 for one in encoded]


@pytest.fixture
def computing():
    computers = []

    def start(**limits):
        lane = Lane(Doubling(), Limits(**limits))
        computers.append(Computer([lane]))
        computers[-1].start()
        return computers[-1], lane

    yield start
    for computer in computers:
        computer.lanes[0].engine.gate.set()
        if computer.is_alive:
            computer.stop()


async def ask(computer, lane, values):
    ticket = computer.submit(lane, values, lambda answer: answer)
    await ticket.done
    return ticket.error or ticket.answers


def test_every_request_gets_its_own_answers_in_order(computing):
    computer, lane = computing(batch_tokens=40)
    draw = random.Random(0)
    requests = [
        [draw.choice([draw.randrange(999), "ab" * draw.randrange(1, 9)]) for _ in range(draw.randrange(1, 6))]
        for _ in range(200)
    ]

    async def all_of_them():
        return await asyncio.gather(*(ask(computer, lane, values) for values in requests))

    assert asyncio.run(all_of_them()) == [[2 * value for value in values] for values in requests]
    assert sum(map(len, lane.engine.batches)) == sum(map(len, requests))
    assert all(len({type(value) for value in batch}) == 1 for batch in lane.engine.batches)
    assert all(len(batch) == 1 or sum(len(str(value)) for value in batch) <= 40 for batch in lane.engine.batches)
    assert lane.rows == 0


def test_a_batch_is_what_came_while_the_last_was_computed(computing):
    computer, lane = computing()
    lane.engine.gate.clear()

    async def first_then_others():
        first = asyncio.create_task(ask(computer, lane, ["first"]))
        while not lane.computed:
            await asyncio.sleep(0.001)
        others = [asyncio.create_task(ask(computer, lane, [f"other {n}"])) for n in range(5)]
        await asyncio.sleep(0)
        lane.engine.gate.set()
        await asyncio.gather(first, *others)

    asyncio.run(first_then_others())
    assert [len(batch) for batch in lane.engine.batches] == [1, 5]


@pytest.mark.parametrize("bad, error", [("wrong", DataError), ("broken", ZeroDivisionError)])
def test_a_bad_input_fails_its_own_request_alone(bad, error, computing):
    computer, lane = computing()
    lane.engine.gate.clear()

    async def together():
        tasks = [asyncio.create_task(ask(computer, lane, values)) for values in (["a"], ["b", bad], ["c"])]
        await asyncio.sleep(0.01)
        lane.engine.gate.set()
        return await asyncio.gather(*tasks)

    first, second, third = asyncio.run(together())
    assert (first, third) == (["aa"], ["cc"])
    assert isinstance(second, error)
    assert lane.rows == 0


def test_a_full_lane_refuses_and_says_when_to_come_again(computing):
    computer, lane = computing(queue_rows=3)
    lane.engine.gate.clear()
    lane.seconds_per_row = 2.5

    async def too_many():
        task = asyncio.create_task(ask(computer, lane, ["a", "b"]))
        await asyncio.sleep(0)
        with pytest.raises(BusyError) as busy:
            computer.submit(lane, ["c", "d"], str)
        lane.engine.gate.set()
        return busy.value.seconds, await task

    assert asyncio.run(too_many()) == (5, ["aa", "bb"])
    assert asyncio.run(ask(computer, lane, ["c", "d", "e"])) == ["cc", "dd", "ee"]


def test_what_nobody_waits_for_is_not_computed(computing):
    computer, lane = computing()
    lane.engine.gate.clear()

    async def leave():
        first = asyncio.create_task(ask(computer, lane, ["first"]))
        while not lane.computed:
            await asyncio.sleep(0.001)
        left = computer.submit(lane, ["left"], str)
        left.is_abandoned = True
        last = asyncio.create_task(ask(computer, lane, ["last"]))
        await asyncio.sleep(0)
        lane.engine.gate.set()
        await asyncio.gather(first, last)

    asyncio.run(leave())
    assert lane.engine.batches == [["first"], ["last"]]
    assert lane.rows == 0


def test_a_short_request_does_not_wait_for_all_rows_of_a_long_one(computing):
    computer, lane = computing(batch_tokens=100)
    lane.engine.gate.clear()
    rows = [f"long {number:05}" for number in range(40)]  # of 10 tokens each, and a share is 25

    async def ask_beside_a_flood():
        flood = asyncio.create_task(ask(computer, lane, rows))
        while not lane.computed:
            await asyncio.sleep(0.001)
        short = [asyncio.create_task(ask(computer, lane, [f"short {number}"])) for number in range(2)]
        await asyncio.sleep(0)
        lane.engine.gate.set()
        return await asyncio.gather(flood, *short)

    assert asyncio.run(ask_beside_a_flood()) == [[2 * row for row in rows], ["short 0" * 2], ["short 1" * 2]]
    # the flood had its share of the batch that was computed, and has one beside the short requests
    assert [len(batch) for batch in lane.engine.batches[:3]] == [2, 4, 2]
    assert lane.engine.batches[1][:2] == ["short 0", "short 1"]
    assert lane.rows == 0 and not lane.tickets


def test_on_an_accelerator_a_request_gets_whole_batches(computing):
    computer, lane = computing(batch_tokens=100)
    lane.shares = 1
    rows = [f"long {number:05}" for number in range(20)]  # of 10 tokens each
    assert asyncio.run(ask(computer, lane, rows)) == [2 * row for row in rows]
    assert [len(batch) for batch in lane.engine.batches] == [10, 10]


def test_a_request_that_has_waited_goes_before_shorter_ones(computing, monkeypatch):
    computer, lane = computing(batch_tokens=100)
    lane.engine.gate.clear()
    monkeypatch.setattr("bertkit.server.batching._PATIENCE", 0.0)  # so all have waited

    async def ask_in_order():
        first = asyncio.create_task(ask(computer, lane, ["first"]))
        while not lane.computed:
            await asyncio.sleep(0.001)
        long = asyncio.create_task(ask(computer, lane, ["a" * 10, "b" * 10]))
        await asyncio.sleep(0)
        short = asyncio.create_task(ask(computer, lane, ["c" * 10]))
        await asyncio.sleep(0)
        lane.engine.gate.set()
        await asyncio.gather(first, long, short)

    asyncio.run(ask_in_order())
    assert lane.engine.batches[1] == ["a" * 10, "b" * 10, "c" * 10]


def test_a_stop_computes_what_is_waiting(computing):
    computer, lane = computing()
    lane.engine.gate.clear()

    async def stop():
        tasks = [asyncio.create_task(ask(computer, lane, [letter])) for letter in "abc"]
        await asyncio.sleep(0)
        lane.engine.gate.set()
        await asyncio.get_running_loop().run_in_executor(None, computer.stop)
        return await asyncio.gather(*tasks)

    assert asyncio.run(stop()) == [["aa"], ["bb"], ["cc"]]
    assert not computer.is_alive


def test_lanes_take_turns_however_much_one_has_to_compute():
    lanes = [Lane(Doubling(), Limits(batch_tokens=4)) for _ in range(2)]
    order = []
    for lane, letter in zip(lanes, "ab", strict=True):
        lane.observe = lambda rows, tokens, seconds, letter=letter: order.append(letter)
    computer = Computer(lanes)

    async def ask_both():
        values = zip(lanes, (["a"] * 5, ["b"]), strict=True)
        tasks = [asyncio.create_task(ask(computer, lane, of_lane)) for lane, of_lane in values]
        await asyncio.sleep(0)
        computer.start()
        return await asyncio.gather(*tasks)

    assert asyncio.run(ask_both()) == [["aa"] * 5, ["bb"]]
    assert "".join(order) == "abaaaa"
    computer.stop()
