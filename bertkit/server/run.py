"""Run a server: bind its socket, and answer every request before it exits."""

from __future__ import annotations

import math
import os
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from bertkit.errors import ResourceError, UsageError
from bertkit.server.models import Service


def bind(host: str, port: int) -> socket.socket:
    """Bind a socket, so that a port in use is an error before models are loaded.

    Raises:
        ResourceError: If the port is in use, or this user is not allowed to use it.
        UsageError: If the host is unknown.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError):
        message = f"no such host: {host}"
        raise UsageError(message, "use --host 127.0.0.1 for this machine, 0.0.0.0 for all networks") from None
    # asyncio sends small answers at once (TCP_NODELAY) only if the socket was created for TCP. Otherwise the body of an
    # answer waits 40 ms until the client acknowledges the headers.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    # Without this option, the port could not be used for a minute after a server has stopped. On Windows, the option
    # would allow two servers on one port.
    if os.name == "posix":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        message = f"{host}:{port} cannot be used: {error.strerror.lower() if error.strerror else error}"
        raise ResourceError(message, "choose another --port, or 0 for a free one") from None
    return listener


class DrainingServer(uvicorn.Server):
    """Server that still accepts requests for some seconds after SIGTERM, while ``/ready`` returns 503.

    Args:
        app: App of a `Service`, whose limits apply.
        on_start: Function to call when the server listens.
    """

    def __init__(self, app: FastAPI, on_start: Callable[[], None] = lambda: None) -> None:
        self.service: Service = app.state.service
        self.on_start = on_start
        self.stop_at = math.inf
        limits = self.service.limits
        config = uvicorn.Config(
            app,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            # uvicorn already rejects the connection that reaches the limit.
            limit_concurrency=limits.connections + 1,
            # A client that sends its request too slowly must not prevent the server from stopping.
            timeout_graceful_shutdown=math.ceil(limits.answer_seconds),
        )
        super().__init__(config)

    def handle_exit(self, sig: int, _: FrameType | None) -> None:
        """Stop after the drain time, or at once after Ctrl-C."""
        if self.service.is_draining:
            # A second signal ends the process at once, as if it had no handler.
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        self.service.is_draining = True
        self.stop_at = time.monotonic() + (self.service.limits.drain_seconds if sig == signal.SIGTERM else 0)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and call `on_start`."""
        await super().startup(sockets)
        self.on_start()

    async def on_tick(self, counter: int) -> bool:
        """Return whether it is time to stop."""
        return await super().on_tick(counter) or time.monotonic() >= self.stop_at
