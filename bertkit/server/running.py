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

from bertkit.errors import ResourceError, UsageError
from bertkit.server.service import Service

_LAST_SECONDS = 1.0  # for a request on its way when the server stops listening


def bind(host: str, port: int) -> socket.socket:
    """Take an address, so that it is known to be free before models are loaded; nobody is answered there yet.

    Raises:
        ResourceError: it is taken, or may not be used.
        UsageError: there is no such host.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError):
        raise UsageError(
            f"no such host: {host}", "--host 127.0.0.1 for this machine, 0.0.0.0 for all networks"
        ) from None
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
    """Serve an app until a signal, and then answer every request that has come; call `started` once it listens."""
    service: Service = app.state.service
    limits = service.limits
    config = uvicorn.Config(
        app,
        http=_patient_protocol(limits.read_seconds),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=limits.connections,
        timeout_graceful_shutdown=None,
    )
    _GracefulServer(config, service, started).run(sockets=[server])


class _GracefulServer(uvicorn.Server):
    """Goes on for a moment after SIGTERM, in which it says that it is not ready and closes connections by answers."""

    def __init__(self, config: uvicorn.Config, service: Service, started: Callable[[], None]) -> None:
        super().__init__(config)
        self.service = service
        self.tell_started = started
        self.ends_at: float | None = None

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
        for accepted in waiting:
            await asyncio.get_running_loop().connect_accepted_socket(self._make_protocol, accepted)
        until = time.monotonic() + _LAST_SECONDS
        while self.server_state.connections and not self.force_exit and time.monotonic() < until:
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)

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


def _patient_protocol(seconds: float) -> type[asyncio.Protocol]:
    """Build the protocol that closes a connection on which no request begins for so many seconds."""

    class PatientProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.loop.call_later(seconds, self._close_if_silent)

        def _close_if_silent(self) -> None:
            if self.cycle is None and not self.transport.is_closing():
                with suppress(Exception):
                    self.transport.close()

    return PatientProtocol
