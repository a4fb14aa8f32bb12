"""Inputs of many requests computed together: batches are formed while the last one is computed.

The event loop puts requests into the lane of their model, and one thread computes the lanes in turn. Nothing waits for
a batch to become full: a batch is what has arrived since the last one began. Requests share it, so that a short one
does not wait for all rows of a long one. With 100 tokens, of which a request gets 25 at a time, in inputs of 10:

request   inputs left   batch 1   batch 2   batch 3
a                 7     a a       a a       a a
b, later          1     b
c, after 1        2               c c
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bertkit.errors import BertkitError
from bertkit.hardware.process import CoreWatch
from bertkit.progress import log
from bertkit.server.engines import Encoded, Engine

_ENCODED_AT_ONCE = 128  # inputs that are tokenized together; a request gets its share of them
SHARES = 4  # of a batch on a CPU: a request gets one at a time
_PATIENCE = 1.0  # seconds after which a request has its turn before shorter ones


@dataclass(frozen=True)
class Limits:
    """Limits of one server; each has its own status where a request exceeds it."""

    queue_rows: int = 1024
    """Rows of one model that wait or are computed; a request that does not fit gets 429."""
    request_rows: int = 256
    """Rows, or texts, of one request; more get 413."""
    body_bytes: int = 1 << 20
    """Bytes of a request's body; more get 413."""
    answer_seconds: float = 30.0
    """From a request's last byte to its answer; later ones get 504."""
    batch_tokens: int = 4096
    """Tokens that are computed at a time."""
    connections: int = 1024
    """Maximum number of open connections; requests on further ones get 503."""
    drain_seconds: float = 1.0
    """For which the server goes on accepting requests after SIGTERM, so that a load balancer sees it is not ready."""


class BusyError(Exception):
    """The lane is full; the same request may fit in so many seconds."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"full for about {seconds} s")
        self.seconds = seconds


@dataclass(slots=True, eq=False)
class Ticket:
    """One request in a lane: its answers, and the future that is done when all of them are there."""

    done: asyncio.Future[None]
    answers: list[Any]
    render: Callable[[Any], Any]
    """Makes of an answer what the request needs of it, in the computing thread."""
    arrived: float
    missing: int
    served: float
    """When a batch last had inputs of it; at first, when it came."""
    waiting: deque[_Input] = field(default_factory=deque)
    """Inputs in their order; only the computing thread takes them, also those that are encoded."""
    encoded: deque[_Input] = field(default_factory=deque)
    begun: float = 0.0
    tokens: int = 0
    error: Exception | None = None
    is_abandoned: bool = False
    """Whether nobody waits for the answers any more; inputs that are not computed yet are dropped."""

    @property
    def is_wanted(self) -> bool:
        """Whether its inputs are worth computing."""
        return not self.is_abandoned and self.error is None

    @property
    def left(self) -> int:
        """How many inputs are not computed yet."""
        return len(self.waiting) + len(self.encoded)


@dataclass(slots=True, eq=False)
class _Input:
    value: Any
    ticket: Ticket
    number: int
    group: Hashable
    encoded: Encoded | None = None


def _tokens(one: _Input) -> int:
    return one.encoded.tokens if one.encoded is not None else 0


@dataclass(eq=False)
class Lane:
    """The inputs of one model, and what computes them."""

    engine: Engine
    limits: Limits
    observe: Callable[[int, int, float], None] = lambda rows, tokens, seconds: None
    shares: int = SHARES
    """Into how many shares a batch is divided; a request gets one at a time."""
    tickets: dict[Ticket, None] = field(default_factory=dict)
    """Requests without all their answers, as they came."""
    computed: float = 0.0
    """When its last batch began."""
    rows: int = 0
    """Inputs that are waiting or computed."""
    seconds_per_row: float = 0.0

    def admit(self, count: int) -> None:
        """Reserve space for inputs.

        Raises:
            BusyError: there is not enough.
        """
        # Refused now rather than answered too late: a queue without an end only adds to the time of all requests.
        if self.rows + count > self.limits.queue_rows:
            raise BusyError(max(1, math.ceil(self.rows * self.seconds_per_row)))
        self.rows += count

    def compute(self, tickets: Sequence[Ticket]) -> tuple[list[Ticket], int]:
        """Encode and compute the next batch of requests, and drop those that nobody waits for.

        Returns:
            the tickets that are done, and how many inputs have left the lane.
        """
        began = self.computed = time.perf_counter()
        before = sum(ticket.left for ticket in tickets)
        wanted = [ticket for ticket in tickets if ticket.is_wanted]
        # shortest first, after those that have waited too long for that
        wanted.sort(key=lambda one: (1, one.left) if began - one.served < _PATIENCE else (0, one.served))
        self._encode_inputs(self._take(wanted))
        now = time.perf_counter()
        batch = self._choose([ticket for ticket in wanted if ticket.is_wanted])
        for one in batch:
            one.ticket.begun, one.ticket.served = one.ticket.begun or now, now
        if batch:
            self._do_safely(batch, self._answer_batch)
        seconds = time.perf_counter() - began
        if batch:
            # A moving average: recent batches tell best how long the queue will take.
            self.seconds_per_row += 0.2 * (seconds / len(batch) - self.seconds_per_row)
            self.observe(len(batch), sum(map(_tokens, batch)), seconds)
        for ticket in tickets:
            if not ticket.is_wanted:
                ticket.waiting.clear()
                ticket.encoded.clear()
        done = [ticket for ticket in tickets if not ticket.is_wanted or not ticket.missing]
        return done, before - sum(ticket.left for ticket in tickets)

    @property
    def _share(self) -> int:
        return max(1, self.limits.batch_tokens // self.shares)

    def _take(self, tickets: Sequence[Ticket]) -> list[_Input]:
        """Take inputs to encode, of requests that have no share of a batch encoded yet."""
        taken = list[_Input]()
        for ticket in tickets:
            if sum(map(_tokens, ticket.encoded)) < self._share:
                count = min(len(ticket.waiting), _ENCODED_AT_ONCE // self.shares)
                taken += [ticket.waiting.popleft() for _ in range(count)]
            if len(taken) >= _ENCODED_AT_ONCE:
                break
        return taken

    def _choose(self, tickets: Sequence[Ticket]) -> list[_Input]:
        """Take a batch of inputs of one group: requests that fit, and a share of one that does not."""
        batch, budget, is_shared = list[_Input](), self.limits.batch_tokens, False
        for ticket in tickets:
            share = min(self._share, budget)
            is_whole = not ticket.waiting and sum(map(_tokens, ticket.encoded)) <= share
            # Of requests with more than a share, one has its turn, so that however many there are, a batch is short.
            if is_shared and not is_whole:
                continue
            is_shared = is_shared or not is_whole
            while ticket.encoded:
                first = ticket.encoded[0]
                if batch and (first.group != batch[0].group or _tokens(first) > share):
                    break
                batch.append(ticket.encoded.popleft())
                share, budget = share - _tokens(first), budget - _tokens(first)
        return batch

    def _encode_inputs(self, inputs: Sequence[_Input]) -> None:
        """Encode inputs group by group; where one of a group is wrong, each alone."""
        groups: dict[Hashable, list[_Input]] = {}
        for one in inputs:
            groups.setdefault(one.group, []).append(one)
        for group in groups.values():
            self._do_safely(group, self._encode_group)

    def _encode_group(self, group: Sequence[_Input]) -> None:
        for one, encoded in zip(group, self.engine.encode([one.value for one in group]), strict=True):
            one.encoded = encoded
            one.ticket.encoded.append(one)
            one.ticket.tokens += encoded.tokens

    def _answer_batch(self, batch: Sequence[_Input]) -> None:
        encoded = [one.encoded for one in batch if one.encoded is not None]
        answers = self.engine.answer([one.value for one in batch], encoded)
        rendered = [one.ticket.render(answer) for one, answer in zip(batch, answers, strict=True)]
        for one, answer in zip(batch, rendered, strict=True):
            one.ticket.answers[one.number] = answer
            one.ticket.missing -= 1

    def _do_safely(self, inputs: Sequence[_Input], do: Callable[[Sequence[_Input]], None]) -> None:
        """Do something with inputs together; where that fails, with each alone, so that one disturbs no other."""
        try:
            do(inputs)
        except Exception as error:
            # The error does not tell whose input it is, so each is tried alone.
            if len(inputs) > 1:
                for one in inputs:
                    self._do_safely([one], do)
                return
            if not isinstance(error, BertkitError):
                log.exception("a request failed")
            inputs[0].ticket.error = error


class Computer:
    """The thread that computes the lanes of all models."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.lanes = lanes
        self._changed = threading.Condition()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._answer_batches, name="bertkit-compute", daemon=True)

    @property
    def is_alive(self) -> bool:
        """Whether it can compute."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to compute."""
        self._thread.start()

    def stop(self) -> None:
        """Compute what is waiting, and end."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        self._thread.join()

    def submit(self, lane: Lane, values: Sequence[Any], render: Callable[[Any], Any]) -> Ticket:
        """Put the inputs of a request into a lane; called by the event loop, which then awaits the ticket.

        Raises:
            BusyError: the lane is full.
        """
        done, now = asyncio.get_running_loop().create_future(), time.perf_counter()
        ticket = Ticket(done, [None] * len(values), render, now, len(values), now)
        ticket.waiting.extend(
            _Input(value, ticket, number, lane.engine.group(value)) for number, value in enumerate(values)
        )
        with self._changed:
            lane.admit(len(values))
            lane.tickets[ticket] = None
            self._changed.notify()
        return ticket

    def _answer_batches(self) -> None:
        cores = CoreWatch()
        while True:
            with self._changed:
                while not any(lane.tickets for lane in self.lanes):
                    if self._is_stopping:
                        return
                    self._changed.wait()
                # Models take turns, so that a busy one does not starve the others.
                lane = min((lane for lane in self.lanes if lane.tickets), key=lambda lane: lane.computed)
                tickets = list(lane.tickets)
            # Computed without the lock: requests are admitted meanwhile, and make up the next batch.
            finished, count = lane.compute(tickets)
            with self._changed:
                lane.rows -= count
                for ticket in finished:
                    del lane.tickets[ticket]
            # Tell each event loop which of its tickets are done.
            loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
            for ticket in finished:
                loops.setdefault(ticket.done.get_loop(), []).append(ticket.done)
            for loop, futures in loops.items():
                # the loop is closed, and nobody waits
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(_finish_futures, futures)
            cores.look()


def _finish_futures(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
