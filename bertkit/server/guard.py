"""What every request passes: its size and speed, its key, its number in the log, and its count."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

from bertkit.progress import log
from bertkit.server.refusals import CLIENT_GONE, RefusedError, refuse
from bertkit.server.service import Service

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

PROBES = ("/health", "/ready")
"""Addresses that are answered however many connections are open."""

OPEN_TO_ALL = ("/", *PROBES)
"""What GET needs no key for: probes, and the page, which has nothing of the models in it."""

_OF_BROWSERS = ("/docs", "/redoc", "/openapi.json")
"""Addresses of pages that cannot ask for a key themselves, so that the browser does."""

_DISCARDED = 1 << 26  # bytes of a body that is too large, read before it is refused

NOTES = "bertkit"
"""Key of a request's scope under which handlers leave what the log says of it."""


class Guard:
    """ASGI middleware around all routes.

    Args:
        app: what it guards.
        service: whose key and limits count.
        root_path: prefix under which a proxy shows the server, whether or not the proxy removes it.
    """

    def __init__(self, app: App, service: Service, root_path: str = "") -> None:
        self.app = app
        self.service = service
        self.root_path = root_path

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on, unless it is refused here."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope = self._as_routed(scope)
        began, status = time.perf_counter(), CLIENT_GONE
        headers = dict(scope["headers"])
        # A number from outside goes to the log, so it must be short and printable.
        number = headers.get(b"x-request-id", b"").decode("latin-1")
        if not (0 < len(number) <= 64 and number.isascii() and number.isprintable()):
            number = uuid.uuid4().hex
        scope[NOTES] = {}

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                added = [(b"x-request-id", number.encode())]
                # The rest of a refused body would be read as the next request of the connection.
                if self.service.is_draining or status in (408, 413, 503):
                    added.append((b"connection", b"close"))
                message["headers"] = [*message["headers"], *added]
            await send(message)

        try:
            self._check_request(scope, headers)
            await self.app(scope, self._within_limits(receive), send_noted)
        except RefusedError as refused:
            if refused.status_code == 413:
                await self._discard_body(receive)
            await refuse(scope["path"], refused)(scope, receive, send_noted)
        except Exception:
            log.exception(f"request {number} failed")
            if status == CLIENT_GONE:  # nothing has been sent
                what = "bertkit failed; the log of the server has the reason"
                await refuse(scope["path"], RefusedError(500, what))(scope, receive, send_noted)
        seconds = time.perf_counter() - began
        route = getattr(scope.get("route"), "path", "other")
        self.service.metrics.count(route, status, seconds)
        _log_request(scope, number, status, seconds)

    def _as_routed(self, scope: Message) -> Message:
        """Return the scope of a request with the prefix of the proxy, and with GET for HEAD.

        The program that runs this app knows what was asked, and leaves out the body.
        """
        root = self.root_path or scope.get("root_path", "")
        path = scope["path"] + ("/" if scope["path"] == root else "")
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        return {**scope, "root_path": root, "path": path, "method": method}

    def _check_request(self, scope: Message, headers: dict[bytes, bytes]) -> None:
        """Refuse what can be refused before the body is read."""
        # The address of a request without the prefix under which a proxy shows the server, if it has left it.
        path, root = str(scope["path"]), str(scope["root_path"])
        path = path.removeprefix(root) if path.startswith(f"{root}/") else path
        is_open = scope["method"] == "OPTIONS" or (scope["method"] == "GET" and path in OPEN_TO_ALL)
        if not is_open:
            authorization = headers.get(b"authorization", b"").decode("latin-1")
            if not self.service.admits(authorization):
                what = "no API key, or a wrong one: send Authorization: Bearer KEY"
                # A browser sends no bearer token, but asks for a password: so its pages can be opened (see decisions).
                scheme = 'Basic realm="bertkit: the password is the API key"' if path in _OF_BROWSERS else "Bearer"
                raise RefusedError(401, what, {"WWW-Authenticate": scheme})
        if path not in PROBES and self.service.is_full():
            raise RefusedError(503, "too many connections are open", {"Retry-After": "1"})
        # A client that tells the length is refused before it sends; one that lies or sends chunks is counted below.
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.service.limits.body_bytes:
            raise self._too_large()

    def _too_large(self) -> RefusedError:
        return RefusedError(413, f"the body has more than {self.service.limits.body_bytes:,} bytes")

    async def _discard_body(self, receive: Receive) -> None:
        """Read the rest of a body that is too large, within limits: many clients read no answer while they send."""
        size = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(self.service.limits.read_seconds):
                while size < _DISCARDED:
                    message = await receive()
                    size += len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return

    def _within_limits(self, receive: Receive) -> Receive:
        """Count the bytes of a body as they come, and limit the time until the last one is here."""
        limits, loop = self.service.limits, asyncio.get_running_loop()
        deadline, size, is_whole = loop.time() + limits.read_seconds, 0, False

        async def receive_limited() -> Message:
            nonlocal size, is_whole
            if is_whole:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise RefusedError(408, f"the body did not come within {limits.read_seconds:g} s") from None
            size += len(message.get("body", b""))
            if size > limits.body_bytes:
                if message.get("more_body", False):
                    await self._discard_body(receive)
                raise self._too_large()
            is_whole = not message.get("more_body", False)
            return message

        return receive_limited


def _log_request(scope: Message, number: str, status: int, seconds: float) -> None:
    if not log.isEnabledFor(logging.DEBUG):
        return
    fields = {
        "request": number,
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "ms": round(1000 * seconds, 2),
        "client": (scope.get("client") or ("",))[0],
        **scope[NOTES],
    }
    level = logging.INFO if status < 400 else logging.WARNING if status < 500 else logging.ERROR
    log.log(level, "request", extra={"fields": fields})
