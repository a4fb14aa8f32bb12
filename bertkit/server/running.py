"""A server that runs: its socket, its connections, and how it ends without losing a request."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from bertkit.errors import ResourceError, StoppedError, UsageError
from bertkit.server.batching import Limits
from bertkit.server.service import Service

_OTHER_FILES = 128  # that this process opens beside its connections
_LAST_SECONDS = 1.0  # for a request on its way when the server stops listening


def bind(host: str, port: int) -> socket.socket:
    """Bind a socket, so that a port in use is an error before models are loaded.

    Raises:
        ResourceError: If the port is in use, or this user is not allowed to use it.
        UsageError: If the host is unknown.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError):
        what = f"no such host: {host}"
        raise UsageError(what, "--host 127.0.0.1 for this machine, 0.0.0.0 for all networks") from None
    # asyncio sends small answers at once (TCP_NODELAY) only where a socket says that it is one of TCP. On others, the
    # body of an answer waits 40 ms for the client to acknowledge its headers.
    server = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind(address)
    except OSError as error:
        server.close()
        what = f"{host}:{port} cannot be used: {error.strerror.lower() if error.strerror else error}"
        raise ResourceError(what, "choose another --port, or 0 for a free one") from None
    return server


def run_server(app: FastAPI, server: socket.socket, started: Callable[[], None] = lambda: None) -> None:
    """Serve an app until a signal, and then answer every request that has come; call `started` once it listens.

    Raises:
        StoppedError: a second signal came, and requests were given up.
    """
    running = make_server(app, started)
    running.run(sockets=[server])
    if count := running.given_up:
        what = f"stopped by a second {running.signal.name}; {count} request{'s were' if count > 1 else ' was'} given up"
        raise StoppedError(what, signal=running.signal)


def make_server(app: FastAPI, started: Callable[[], None] = lambda: None) -> _GracefulServer:
    """Build what runs an app."""
    service: Service = app.state.service
    most = _count_connections(service.limits.connections)
    config = uvicorn.Config(
        app,
        http=type("PatientProtocol", (_PatientProtocol,), {"limits": service.limits, "most": most, "waiting": {}}),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=None,
    )
    running = _GracefulServer(config, service, started)
    service.is_full = lambda: len(running.server_state.connections) > most
    return running


class _GracefulServer(uvicorn.Server):
    """Goes on for a moment after SIGTERM, in which it says that it is not ready and closes connections by answers."""

    def __init__(self, config: uvicorn.Config, service: Service, started: Callable[[], None]) -> None:
        super().__init__(config)
        self.service = service
        self.tell_started = started
        self.ends_at: float | None = None
        self.given_up = 0
        self.signal = signal.SIGTERM

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, _: FrameType | None) -> None:
        if self.ends_at is not None:  # asked again: in-flight requests are given up
            self.force_exit = self.should_exit = True
        self.signal = signal.Signals(sig)
        self.service.is_draining = True
        wait = self.service.limits.drain_seconds if sig == signal.SIGTERM else 0.0
        self.ends_at = time.monotonic() + wait

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.tell_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # The system has accepted connections that uvicorn has not seen yet. It would reset them with the listening
        # socket, so they are taken first; and uvicorn would close those whose request is still on its way.
        waiting = [accepted for listener in sockets or [] for accepted in _accept_waiting(listener)]
        for server in self.servers:
            server.close()
        self.servers.clear()  # uvicorn would wait for their connections, from Python 3.12 on also after a second signal
        for accepted in waiting:
            await asyncio.get_running_loop().connect_accepted_socket(self._make_protocol, accepted)
        until = time.monotonic() + _LAST_SECONDS
        while self.server_state.connections and not self.force_exit and time.monotonic() < until:
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)
        self.given_up = len(self.server_state.tasks)
        # before their tasks are cancelled, which answers 500
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        until = time.monotonic() + _LAST_SECONDS
        while self.server_state.tasks and time.monotonic() < until:
            await asyncio.sleep(0.02)
        # uvicorn leaves this out, and a thread that computes at the end of a process aborts it
        if self.force_exit:
            await self.lifespan.shutdown()

    def _make_protocol(self) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol

    async def on_tick(self, counter: int) -> bool:
        await super().on_tick(counter)
        return self.should_exit or (self.ends_at is not None and time.monotonic() >= self.ends_at)


def _accept_waiting(listener: socket.socket) -> list[socket.socket]:
    """Accept the connections that wait at a listening socket."""
    accepted = []
    with suppress(OSError):  # there is none left
        while True:
            connection, _ = listener.accept()
            connection.setblocking(False)
            accepted.append(connection)
    return accepted


class _PatientProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """A connection that has its time for every request and every answer.

    Where there are too many, the one that has waited longest for a request makes place for a new one: maybe a probe.
    """

    limits: Limits
    most: int
    waiting: dict[Any, asyncio.TimerHandle | None]
    """All connections without a request, in the order in which they began to wait, and what ends one that is late."""
    unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)
        if len(self.connections) > self.most and self.waiting:
            next(iter(self.waiting)).transport.abort()
        self.waiting[self] = self.loop.call_later(self.limits.read_seconds, transport.close)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        # this is the beginning of a further request
        if self in self.waiting and self.waiting[self] is None:
            self.waiting[self] = self.loop.call_later(self.limits.read_seconds, self.transport.close)
        super().data_received(data)
        if self.cycle is not before:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:
            self.waiting[self] = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self.unread = self.loop.call_later(self.limits.answer_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.unread is not None:
            self.unread.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _stop_waiting(self) -> None:
        timer = self.waiting.pop(self, None)
        if timer is not None:
            timer.cancel()


def _count_connections(wanted: int) -> int:
    """Return how many connections may be open, after a try to let this process open as many files."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OTHER_FILES
    if soft < needed and resource.RLIM_INFINITY not in (soft, hard):
        soft = min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - _OTHER_FILES))
