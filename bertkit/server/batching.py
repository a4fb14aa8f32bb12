"""Compute the inputs of many requests in common batches.

The event loop adds requests to the queue of their model, and one thread computes the queues of all models. The thread
never waits for a batch to become full: it forms each batch from the requests that have arrived while it computed the
previous batch. A batch takes one input of each request in turn, so that a short request does not wait for all rows of
a long one. With a budget of 40 tokens per batch, and 10 tokens per input:

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
from bertkit.server.engines import EncodedInput, Engine

# Tokens per batch. A short request waits for the previous batch and for the long inputs in the same batch, so batches
# are small. Larger batches are not faster per token on a CPU; smaller batches would leave a GPU idle.
CPU_TOKENS, GPU_TOKENS = 1024, 4096
_TOKENIZER_BATCH = 64  # inputs per call of a tokenizer


@dataclass(frozen=True)
class Limits:
    """Limits of a server, with the HTTP status of requests that exceed them."""

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
    """Request in a queue."""

    future: asyncio.Future[None]
    """Future that is done when the request is finished."""
    render: Callable[[Any], Any]
    """Function that turns an answer into the form that the request needs; the worker thread calls it."""
    arrival_time: float
    inputs: list[Input] = field(default_factory=list)
    """Inputs without an answer, in their order."""
    answers: list[Any] = field(default_factory=list)
    """Answers to all inputs in their order, or None for inputs without an answer."""
    start_time: float = 0.0
    """Time when the first batch of the request started, or 0 before."""
    tokens: int = 0
    error: Exception | None = None
    is_abandoned: bool = False
    """Whether the client no longer waits; the remaining inputs are dropped."""

    @property
    def is_finished(self) -> bool:
        """Whether no more inputs should be computed."""
        return self.is_abandoned or self.error is not None or not self.inputs


@dataclass(slots=True, eq=False)
class Input:
    """Input of a request."""

    value: Any
    request: PendingRequest
    index: int
    """Index of its answer in the answers of the request."""
    group: Hashable
    """Property that all inputs of a batch share, such as the columns of a row or the name of a prompt."""
    encoded: EncodedInput | None = None
    tokens: int = 0


@dataclass(eq=False)
class RequestQueue:
    """Queue of the requests for one engine, from which batches are formed."""

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
    def num_rows(self) -> int:
        """Number of inputs that wait or are computed."""
        return sum(len(request.inputs) for request in list(self.requests))

    def add(self, values: Sequence[Any], render: Callable[[Any], Any]) -> PendingRequest:
        """Add a request; the event loop calls this method, and then awaits `PendingRequest.future`.

        Raises:
            HTTPException: If the queue is full.
        """
        # A request that is answered too late would only delay the other requests, so reject it now.
        if (num_rows := self.num_rows) + len(values) > self.max_rows:
            seconds = max(1, math.ceil(num_rows * self.seconds_per_row))
            message = f"the queue of the model is full: try again in {seconds} s"
            raise HTTPException(429, message, {"Retry-After": str(seconds)})
        request = PendingRequest(asyncio.get_running_loop().create_future(), render, time.perf_counter())
        request.inputs = [Input(value, request, n, self.engine.group(value)) for n, value in enumerate(values)]
        request.answers = [None] * len(values)
        self.requests[request] = None
        return request

    def compute_batch(self, requests: Sequence[PendingRequest]) -> list[PendingRequest]:
        """Compute the next batch of some requests, and return the requests that have inputs in the batch."""
        start = time.perf_counter()
        batch = self._next_batch([request for request in requests if not request.is_finished])
        batch_requests = list(dict.fromkeys(entry.request for entry in batch))
        if not batch:
            return batch_requests
        for request in batch_requests:
            request.start_time = request.start_time or time.perf_counter()
        self._call_safely(self._answer, batch)
        seconds = time.perf_counter() - start
        # An exponential moving average; half of its weight is on the last three batches.
        self.seconds_per_row += 0.2 * (seconds / len(batch) - self.seconds_per_row)
        self.observe(len(batch), sum(entry.tokens for entry in batch), seconds)
        return batch_requests

    def _next_batch(self, requests: Sequence[PendingRequest]) -> list[Input]:
        """Take one input of each request in turn, from the group of the first input, until the token budget is used."""
        # For requests with inputs [a1, a2] and [b1], the order is a1, b1, a2; None fills the shorter lists.
        all_inputs = chain.from_iterable(zip_longest(*(request.inputs for request in requests)))
        group = requests[0].inputs[0].group if requests else None
        inputs = [entry for entry in all_inputs if entry is not None and entry.group == group]
        batch, budget = list[Input](), self.max_tokens
        for start in range(0, len(inputs), _TOKENIZER_BATCH):
            chunk = inputs[start : start + _TOKENIZER_BATCH]
            # Inputs that did not fit into an earlier batch are encoded already.
            if new_inputs := [entry for entry in chunk if entry.encoded is None]:
                self._call_safely(self._encode, new_inputs)
            for entry in chunk:
                if entry.encoded is not None:
                    # An input that exceeds the budget is a batch on its own.
                    if batch and entry.tokens > budget:
                        return batch
                    batch.append(entry)
                    budget -= entry.tokens
        return batch

    def _encode(self, inputs: Sequence[Input]) -> None:
        encoded_inputs = self.engine.encode([entry.value for entry in inputs])
        for entry, encoded in zip(inputs, encoded_inputs, strict=True):
            entry.encoded, entry.tokens = encoded, encoded.tokens
            entry.request.tokens += encoded.tokens

    def _answer(self, batch: Sequence[Input]) -> None:
        answers = self.engine.answer([entry.encoded for entry in batch if entry.encoded is not None])
        # Render all answers before any is stored: if rendering fails, all inputs are computed again one by one.
        rendered_answers = [entry.request.render(answer) for entry, answer in zip(batch, answers, strict=True)]
        for entry, answer in zip(batch, rendered_answers, strict=True):
            entry.request.answers[entry.index] = answer
            entry.request.inputs.remove(entry)

    def _call_safely(self, function: Callable[[Sequence[Input]], None], inputs: Sequence[Input]) -> None:
        """Call a function with all inputs; if that fails, call it with each input, so that only bad inputs fail.

        The error of the first call does not name the input that caused it.
        """
        try:
            function(inputs)
        except Exception as error:
            # A bug fails one request with status 500, but not the thread of all models.
            if len(inputs) > 1:
                for entry in inputs:
                    self._call_safely(function, [entry])
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
        """Compute all waiting requests, then end the thread."""
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
            batch_requests = queue.compute_batch(requests)
            with self._changed:
                # Requests with inputs in the batch go to the end of the queue, and finished requests leave it.
                for request in batch_requests:
                    del queue.requests[request]
                    queue.requests[request] = None
                finished = [request for request in requests if request.is_finished]
                for request in finished:
                    del queue.requests[request]
            # One call per event loop, because each call can give the interpreter lock to the loop's thread for 5 ms.
            for loop in {request.future.get_loop() for request in finished}:
                futures = [request.future for request in finished if request.future.get_loop() is loop]
                # The loop may be closed; then no client waits.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(_finish_futures, futures)
            cores.check()


def _finish_futures(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
