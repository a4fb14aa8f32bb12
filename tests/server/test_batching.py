"""Batches of many requests: who gets which answer, what waits, and what one bad input disturbs."""

from __future__ import annotations

import asyncio
import random
import threading

import pytest
from starlette.exceptions import HTTPException

from bertkit.errors import DataError
from bertkit.server.batching import RequestQueue, WorkerThread
from bertkit.server.engines import EncodedInput


class Doubling:
    """Doubles numbers and texts, whose tokens are their characters; some it refuses, and on some it breaks."""

    def __init__(self) -> None:
        self.batches = []
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()

    def group(self, value):
        return type(value).__name__

    def encode(self, values):
        if "wrong" in values:
            raise DataError("wrong", "right it")
        return [EncodedInput(value, len(str(value))) for value in values]

    def answer(self, encoded):
        values = [content for content, _ in encoded]
        self.waiting.set()
        self.gate.wait(5)
        self.batches.append(values)
        if "broken" in values:
            raise ZeroDivisionError
        return [value * 2 for value in values]


@pytest.fixture
def computing():
    workers = []

    def start(**limits):
        queue = RequestQueue(Doubling(), **{"max_rows": 1024, "max_tokens": 4096, **limits})
        workers.append(WorkerThread([queue]))
        workers[-1].start()
        return workers[-1], queue

    yield start
    for worker in workers:
        worker.queues[0].engine.gate.set()
        if worker.is_alive():
            worker.stop()


async def ask(worker, queue, values):
    ticket = worker.submit(queue, values, lambda answer: answer)
    await ticket.future
    return ticket.error or ticket.answers


def test_every_request_gets_its_own_answers_in_order(computing):
    worker, queue = computing(max_tokens=40)
    draw = random.Random(0)
    requests = [
        [draw.choice([draw.randrange(999), "ab" * draw.randrange(1, 9)]) for _ in range(draw.randrange(1, 6))]
        for _ in range(200)
    ]

    async def all_of_them():
        return await asyncio.gather(*(ask(worker, queue, values) for values in requests))

    assert asyncio.run(all_of_them()) == [[2 * value for value in values] for values in requests]
    assert sum(map(len, queue.engine.batches)) == sum(map(len, requests))
    assert all(len({type(value) for value in batch}) == 1 for batch in queue.engine.batches)
    assert all(len(batch) == 1 or sum(len(str(value)) for value in batch) <= 40 for batch in queue.engine.batches)
    assert queue.num_rows == 0


def test_a_batch_is_what_came_while_the_last_was_computed(computing):
    worker, queue = computing()
    queue.engine.gate.clear()

    async def first_then_others():
        first = asyncio.create_task(ask(worker, queue, ["first"]))
        await asyncio.to_thread(queue.engine.waiting.wait, 5)
        others = [asyncio.create_task(ask(worker, queue, [f"other {n}"])) for n in range(5)]
        await asyncio.sleep(0)
        queue.engine.gate.set()
        await asyncio.gather(first, *others)

    asyncio.run(first_then_others())
    assert [len(batch) for batch in queue.engine.batches] == [1, 5]


@pytest.mark.parametrize("bad, error", [("wrong", DataError), ("broken", ZeroDivisionError)])
def test_a_bad_input_fails_its_own_request_alone(bad, error, computing):
    worker, queue = computing()
    queue.engine.gate.clear()

    async def together():
        tasks = [asyncio.create_task(ask(worker, queue, values)) for values in (["a"], ["b", bad], ["c"])]
        await asyncio.sleep(0.01)
        queue.engine.gate.set()
        return await asyncio.gather(*tasks)

    first, second, third = asyncio.run(together())
    assert (first, third) == (["aa"], ["cc"])
    assert isinstance(second, error)
    assert queue.num_rows == 0


def test_a_full_queue_refuses_and_says_when_to_come_again(computing):
    worker, queue = computing(max_rows=3)
    queue.engine.gate.clear()
    queue.seconds_per_row = 2.5

    async def too_many():
        task = asyncio.create_task(ask(worker, queue, ["a", "b"]))
        await asyncio.sleep(0)
        with pytest.raises(HTTPException) as busy:
            worker.submit(queue, ["c", "d"], str)
        queue.engine.gate.set()
        return busy.value.status_code, busy.value.headers["Retry-After"], await task

    assert asyncio.run(too_many()) == (429, "5", ["aa", "bb"])
    assert asyncio.run(ask(worker, queue, ["c", "d", "e"])) == ["cc", "dd", "ee"]


def test_what_nobody_waits_for_is_not_computed(computing):
    worker, queue = computing()
    queue.engine.gate.clear()

    async def leave():
        first = asyncio.create_task(ask(worker, queue, ["first"]))
        await asyncio.to_thread(queue.engine.waiting.wait, 5)
        left = worker.submit(queue, ["left"], str)
        left.is_abandoned = True
        last = asyncio.create_task(ask(worker, queue, ["last"]))
        await asyncio.sleep(0)
        queue.engine.gate.set()
        await asyncio.gather(first, last)

    asyncio.run(leave())
    assert queue.engine.batches == [["first"], ["last"]]
    assert queue.num_rows == 0


def test_a_batch_takes_one_input_of_each_request_in_turn(computing):
    worker, queue = computing(max_tokens=40)
    queue.engine.gate.clear()
    rows = [f"long {number:05}" for number in range(7)]  # with 10 tokens each

    async def ask_next_to_a_long_request():
        long = asyncio.create_task(ask(worker, queue, rows))
        await asyncio.to_thread(queue.engine.waiting.wait, 5)
        shorter = [asyncio.create_task(ask(worker, queue, values)) for values in (["b" * 10], ["c" * 10, "d" * 10])]
        await asyncio.sleep(0)
        queue.engine.gate.set()
        return await asyncio.gather(long, *shorter)

    answers = asyncio.run(ask_next_to_a_long_request())
    assert answers == [[2 * row for row in rows], ["b" * 20], ["c" * 20, "d" * 20]]
    assert (
        queue.engine.batches
        == [
            rows[:4],
            ["b" * 10, "c" * 10, rows[4], "d" * 10],  # requests that had a turn come last
            rows[5:],
        ]
    )
    assert queue.num_rows == 0 and not queue.requests


def test_requests_that_do_not_fit_into_a_batch_are_first_in_the_next(computing):
    worker, queue = computing(max_tokens=20)
    queue.engine.gate.clear()

    async def ask_all():
        first = asyncio.create_task(ask(worker, queue, ["first"]))
        await asyncio.to_thread(queue.engine.waiting.wait, 5)
        tasks = [asyncio.create_task(ask(worker, queue, [letter * 10] * 2)) for letter in "abc"]
        await asyncio.sleep(0)
        queue.engine.gate.set()
        await asyncio.gather(first, *tasks)

    asyncio.run(ask_all())
    order = "".join(value[0] for batch in queue.engine.batches[1:] for value in batch)
    assert order == "abcabc"


def test_a_stop_computes_what_is_waiting(computing):
    worker, queue = computing()
    queue.engine.gate.clear()

    async def stop():
        tasks = [asyncio.create_task(ask(worker, queue, [letter])) for letter in "abc"]
        await asyncio.sleep(0)
        queue.engine.gate.set()
        await asyncio.get_running_loop().run_in_executor(None, worker.stop)
        return await asyncio.gather(*tasks)

    assert asyncio.run(stop()) == [["aa"], ["bb"], ["cc"]]
    assert not worker.is_alive()


def test_queues_take_turns_however_much_one_has_to_compute():
    queues = [RequestQueue(Doubling(), max_rows=1024, max_tokens=4) for _ in range(2)]
    order = []
    for queue, letter in zip(queues, "ab", strict=True):
        queue.observe = lambda rows, tokens, seconds, letter=letter: order.append(letter)
    worker = WorkerThread(queues)

    async def ask_both():
        values = zip(queues, (["a"] * 5, ["b"]), strict=True)
        tasks = [asyncio.create_task(ask(worker, queue, of_queue)) for queue, of_queue in values]
        await asyncio.sleep(0)
        worker.start()
        return await asyncio.gather(*tasks)

    assert asyncio.run(ask_both()) == [["aa"] * 5, ["bb"]]
    assert "".join(order) == "aba"
    worker.stop()
