"""Inputs of many requests computed in common batches: a batch is formed while the last one is computed.

The event loop adds requests to the queue of their model, and one thread computes the queues of all models. It never
waits for a batch to become full: the next batch comes from the requests that have arrived. A batch takes one input
of each request in turn, so that a short request does not wait for all rows of a long one. With a budget of 40 tokens
and inputs of 10:

request              inputs    batch 1    batch 2    batch 3
a                    7         a a a a    a a        a
b, after batch 1     1                    b
c, after batch 1     2                    c          c
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Any

from starlette.exceptions import HTTPException

from bertkit.errors import BertkitError
from bertkit.hardware.process import CpuContentionMonitor
from bertkit.progress import log
from bertkit.server.engines import Encoded, Engine

# A short request waits for the batch before its own and for the long inputs in its own. On a CPU, larger batches are
# not faster per token. An accelerator would be idle with smaller batches.
CPU_TOKENS, GPU_TOKENS = 1024, 4096
_ENCODED_TOGETHER = 64  # inputs per call of a tokenizer


@dataclass(frozen=True)
class Limits:
    """Limits of a server; each has a status for requests that exceed it."""

    queue_rows: int = 1024
    """Maximum rows of one model that wait or are computed; a request that does not fit gets 429."""
    request_rows: int = 256
    """Maximum rows, or texts, of one request; more get 413."""
    body_bytes: int = 1 << 20
    """Maximum bytes of a request's body; more get 413."""
    answer_seconds: float = 30.0
    """Maximum time from a request's last byte to its answer; later answers get 504."""
    batch_tokens: int | None = None
    """Maximum tokens of a batch, by default `CPU_TOKENS` or `GPU_TOKENS`; a longer input is a batch on its own."""
    connections: int = 1024
    """Maximum number of open connections; requests on further connections get 503."""
    drain_seconds: float = 1.0
    """Time after SIGTERM in which requests are still accepted, so that a load balancer can read ``/ready``."""


@dataclass(slots=True, eq=False)
class PendingRequest:
    """Request in a queue: its inputs without an answer, its answers, and a future that is done when all are there."""

    done: asyncio.Future[None]
    render: Callable[[Any], Any]
    """Function that turns an answer into the form that the request needs; the computing thread calls it."""
    arrived: float
    inputs: list[Input] = field(default_factory=list)
    """Inputs without an answer, in their order."""
    answers: list[Any] = field(default_factory=list)
    started: float = 0.0
    """Time when its first batch started, or 0 if none has."""
    tokens: int = 0
    error: Exception | None = None
    is_abandoned: bool = False
    """Whether the client no longer waits; the remaining inputs are dropped."""

    @property
    def is_finished(self) -> bool:
        """Whether none of its inputs should be computed anymore."""
        return self.is_abandoned or self.error is not None or not self.inputs


@dataclass(slots=True, eq=False)
class Input:
    """Input of a request, at `index` of its answers; a batch has inputs of one group."""

    value: Any
    request: PendingRequest
    index: int
    group: Hashable
    encoded: Encoded | None = None
    tokens: int = 0


@dataclass(eq=False)
class RequestQueue:
    """Requests for one engine, and their batches."""

    engine: Engine
    max_rows: int
    """Maximum number of rows that wait or are computed."""
    max_tokens: int
    """Maximum tokens of a batch."""
    observe: Callable[[int, int, float], None] = lambda rows, tokens, seconds: None
    """Function that is called with the rows, tokens and seconds of each batch."""
    requests: dict[PendingRequest, None] = field(default_factory=dict)
    """Unfinished requests, the next one first."""
    seconds_per_row: float = 0.0
    """Moving average over batches, which estimates how long the queue takes."""

    @property
    def rows(self) -> int:
        """Number of inputs that wait or are computed."""
        return sum(len(request.inputs) for request in list(self.requests))

    def add(self, values: Sequence[Any], render: Callable[[Any], Any]) -> PendingRequest:
        """Add a request; the event loop calls this, and then awaits `PendingRequest.done`.

        Raises:
            HTTPException: If the queue is full.
        """
        # Answering too late would only make all other requests wait longer as well.
        if (waiting := self.rows) + len(values) > self.max_rows:
            seconds = max(1, math.ceil(waiting * self.seconds_per_row))
            message = f"the queue of the model is full: try again in {seconds} s"
            raise HTTPException(429, message, {"Retry-After": str(seconds)})
        request = PendingRequest(asyncio.get_running_loop().create_future(), render, time.perf_counter())
        # The group decides which inputs can be in one batch, such as the columns of a row or the name of a prompt.
        request.inputs = [Input(value, request, n, self.engine.group(value)) for n, value in enumerate(values)]
        request.answers = [None] * len(values)
        self.requests[request] = None
        return request

    def compute_batch(self, requests: Sequence[PendingRequest]) -> list[PendingRequest]:
        """Compute the next batch of some requests, and return the requests that had a turn in it."""
        start = time.perf_counter()
        batch = self._next_batch([request for request in requests if not request.is_finished])
        served = list(dict.fromkeys(entry.request for entry in batch))
        if not batch:
            return served
        for request in served:
            request.started = request.started or time.perf_counter()
        self._do_safely(batch, self._answer)
        seconds = time.perf_counter() - start
        # An exponential moving average; half of its weight is on the last three batches.
        self.seconds_per_row += 0.2 * (seconds / len(batch) - self.seconds_per_row)
        self.observe(len(batch), sum(entry.tokens for entry in batch), seconds)
        return served

    def _next_batch(self, requests: Sequence[PendingRequest]) -> list[Input]:
        """Take one input of each request in turn, of the group of the first, until the token budget is full."""
        # For requests with inputs [a1, a2] and [b1], the order is a1, b1, a2; None fills the shorter lists.
        in_turn = chain.from_iterable(zip_longest(*(request.inputs for request in requests)))
        group = requests[0].inputs[0].group if requests else None
        inputs = [entry for entry in in_turn if entry is not None and entry.group == group]
        batch, budget = list[Input](), self.max_tokens
        for start in range(0, len(inputs), _ENCODED_TOGETHER):
            part = inputs[start : start + _ENCODED_TOGETHER]
            # Inputs that did not fit into an earlier batch are encoded already.
            if new := [entry for entry in part if entry.encoded is None]:
                self._do_safely(new, self._encode)
            for entry in part:
                if entry.encoded is not None:
                    # An input that exceeds the budget is a batch on its own.
                    if batch and entry.tokens > budget:
                        return batch
                    batch.append(entry)
                    budget -= entry.tokens
        return batch

    def _encode(self, inputs: Sequence[Input]) -> None:
        encoded = self.engine.encode([entry.value for entry in inputs])
        for entry, content in zip(inputs, encoded, strict=True):
            entry.encoded, entry.tokens = content, content.tokens
            entry.request.tokens += content.tokens

    def _answer(self, batch: Sequence[Input]) -> None:
        answers = self.engine.answer([entry.encoded for entry in batch if entry.encoded is not None])
        # Render all answers before any is stored: if one fails, all inputs are computed again one by one.
        rendered = [entry.request.render(answer) for entry, answer in zip(batch, answers, strict=True)]
        for entry, answer in zip(batch, rendered, strict=True):
            entry.request.answers[entry.index] = answer
            entry.request.inputs.remove(entry)

    def _do_safely(self, inputs: Sequence[Input], do: Callable[[Sequence[Input]], None]) -> None:
        """Call a function with all inputs, or with each one if that fails, so that a bad input fails only its request.

        The error does not name the input that caused it.
        """
        try:
            do(inputs)
        except Exception as error:  # A bug fails one request, which gets a 500, and not the thread of all models.
            if len(inputs) > 1:
                for entry in inputs:
                    self._do_safely([entry], do)
                return
            if not isinstance(error, BertkitError):
                log.exception("a request failed")
            inputs[0].request.error = error


class WorkerThread(threading.Thread):
    """Thread that computes the queues of all models."""

    def __init__(self, queues: Sequence[RequestQueue]) -> None:
        super().__init__(name="bertkit-compute", daemon=True)
        self.queues = list(queues)
        self._changed = threading.Condition()
        self._is_stopping = False

    def stop(self) -> None:
        """Compute all waiting requests, and end."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        self.join()

    def submit(self, queue: RequestQueue, values: Sequence[Any], render: Callable[[Any], Any]) -> PendingRequest:
        """Add a request to a queue; raises as `RequestQueue.add` does."""
        with self._changed:
            request = queue.add(values, render)
            self._changed.notify()
        return request

    def run(self) -> None:
        """Compute batches until `stop` is called and no request waits."""
        cores = CpuContentionMonitor()
        while True:
            with self._changed:
                while not (queue := next((queue for queue in self.queues if queue.requests), None)):
                    if self._is_stopping:
                        return
                    self._changed.wait()
                # Models take turns, so that a busy model does not starve the others.
                self.queues.remove(queue)
                self.queues.append(queue)
                requests = list(queue.requests)
            # The lock is free while a batch is computed, so requests can arrive. They form the next batch.
            served = queue.compute_batch(requests)
            with self._changed:
                # Requests that had a turn go to the end of the queue, and finished requests leave it.
                for request in served:
                    del queue.requests[request]
                    queue.requests[request] = None
                finished = [request for request in requests if request.is_finished]
                for request in finished:
                    del queue.requests[request]
            # One call per event loop: each call can hand the interpreter lock to the loop's thread for 5 ms.
            for loop in {request.done.get_loop() for request in finished}:
                futures = [request.done for request in finished if request.done.get_loop() is loop]
                with contextlib.suppress(RuntimeError):  # The loop is closed, so nothing waits.
                    loop.call_soon_threadsafe(_finish_futures, futures)
            cores.check()


def _finish_futures(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
