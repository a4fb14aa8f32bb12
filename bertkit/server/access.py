"""Access to the server: API key, size of the body, request id, log and error responses."""

from __future__ import annotations

import hmac
import logging
import time
import uuid

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertkit.progress import log
from bertkit.server.models import Service

OPEN_PATHS = ("/", "/health", "/ready")
"""Paths that need no API key: health checks, and the page, which shows nothing about the models."""
ERROR_TYPES = {
    400: "json",
    401: "key",
    404: "not_found",
    405: "method",
    413: "too_large",
    422: "validation",
    429: "overloaded",
    503: "unavailable",
    504: "timeout",
}
CLIENT_GONE = 499
"""Status of a request whose client has disconnected, as in nginx. It appears only in the log and the metrics."""
LOG_FIELDS = "bertkit"
"""Key of a request's scope under which endpoints store fields of the log line."""
# Number of bytes to read and drop if a body is too large.
_MAX_DISCARDED = 1 << 26


def error_response(path: str, error: HTTPException) -> Response:
    """Build the response to a failed request, in the format of OpenAI or of text-embeddings-inference (TEI)."""
    status, name = error.status_code, ERROR_TYPES.get(error.status_code, "backend")
    content: dict[str, object] = {"error": error.detail, "error_type": name}
    if path.endswith(("/v1/embeddings", "/v1/decisions")):
        content = {"error": {"message": error.detail, "type": name, "code": status}}
    return JSONResponse(content, status, error.headers)


class AccessMiddleware:
    """ASGI middleware that checks the API key and the size of the body, and logs and counts requests.

    Args:
        app: App to protect.
        service: Service with the API key, the limits and the metrics.
        root_path: Prefix under which a proxy shows the server, whether or not the proxy removes it.
    """

    def __init__(self, app: ASGIApp, service: Service, root_path: str = "") -> None:
        self.app = app
        self.service = service
        self.root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the app, unless its API key is wrong."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        # 1. Read the request id and the path. The status stays 499 unless a response starts.
        start, status = time.perf_counter(), CLIENT_GONE
        headers = Headers(scope=scope)
        # The log shows the id from the client, so the id must be short and printable.
        request_id = headers.get("x-request-id", "")
        if not (0 < len(request_id) <= 64 and request_id.isascii() and request_id.isprintable()):
            request_id = uuid.uuid4().hex
        prefix = self.root_path or scope.get("root_path", "")
        # If a proxy shows the server below /bert, browsers can request its page as /bert, but its route is /bert/.
        path = scope["path"] + ("/" if scope["path"] == prefix else "")
        scope = {**scope, "root_path": prefix, "path": path, LOG_FIELDS: {}}

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
                # The unread part of a large body would be parsed as the next request of the connection.
                if self.service.is_draining or status == 413:
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        # 2. Check the key and the size of the body, and pass the request to the app.
        try:
            self._check_key(scope, headers)
            await self.app(scope, self._limit_body(receive), send_with_id)
        except HTTPException as error:
            await error_response(scope["path"], error)(scope, receive, send_with_id)
        except Exception:
            # A bug must not end the server: it is logged, and this request gets a 500.
            log.exception(f"request {request_id} failed")
            if status == CLIENT_GONE:  # nothing was sent
                failure = HTTPException(500, "bertkit failed; the log of the server has the reason")
                await error_response(scope["path"], failure)(scope, receive, send_with_id)
        # 3. Count and log the request. Count by the pattern of the route, because an attacker could send any number of
        #    different paths, and each counter needs memory.
        seconds = time.perf_counter() - start
        self.service.metrics.observe_request(getattr(scope.get("route"), "path", "other"), status, seconds)
        _log_request(scope, request_id, status, seconds)

    def _check_key(self, scope: Scope, headers: Headers) -> None:
        key, method, path, prefix = self.service.api_key, scope["method"], scope["path"], scope["root_path"]
        path = path.removeprefix(prefix) if path.startswith(f"{prefix}/") else path
        # Browsers send OPTIONS without the key, to find out whether a page may send it (CORS).
        if key is None or method == "OPTIONS" or (method in ("GET", "HEAD") and path in OPEN_PATHS):
            return
        # The time of `compare_digest` does not depend on the number of correct characters.
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.encode(), key.encode()):
            message = "no API key, or a wrong one: send Authorization: Bearer KEY"
            raise HTTPException(401, message, {"WWW-Authenticate": "Bearer"})

    def _limit_body(self, receive: Receive) -> Receive:
        """Wrap `receive` to raise an error with status 413 for a large body."""
        size, max_bytes = 0, self.service.limits.body_bytes

        async def receive_limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > max_bytes:
                # Many clients read the response only after they have sent the complete body, so read the rest first.
                while message.get("more_body", False) and size < _MAX_DISCARDED:
                    message = await receive()
                    size += len(message.get("body", b""))
                raise HTTPException(413, f"the body has more than {max_bytes:,} bytes")
            return message

        return receive_limited


def _log_request(scope: Scope, request_id: str, status: int, seconds: float) -> None:
    if not log.isEnabledFor(logging.DEBUG):
        return
    fields = {
        "request": request_id,
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "ms": round(1000 * seconds, 2),
        "client": (scope.get("client") or ("",))[0],
        **scope[LOG_FIELDS],
    }
    level = logging.INFO if status < 400 else logging.WARNING if status < 500 else logging.ERROR
    log.log(level, "request", extra={"fields": fields})
