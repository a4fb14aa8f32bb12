"""Serve trained models over HTTP."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from bertkit.errors import UnavailableError, pip_install
from bertkit.progress import Silent, log
from bertkit.storage.files import to_json

if TYPE_CHECKING:
    from bertkit.server.batching import Limits
    from bertkit.server.models import Service


_PACKAGES = ("fastapi", "uvicorn", "prometheus_client")


@dataclass(frozen=True)
class Address:
    """Where a server answers, and whom."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    cors_origins: Sequence[str] = field(default=())
    root_path: str = ""
    """Prefix below which a proxy shows the server."""


def serve(runs: Sequence[str], address: Address, limits: Limits, *, recipe: str | None = None) -> None:
    """Serve runs until a signal arrives, and answer all requests before the end.

    Raises:
        UnavailableError: If packages of the extra ``serve`` are missing.
        ResourceError: If the port is in use.
        BertkitError: If a run cannot be served.
    """
    check_packages()
    from bertkit.server.models import find_models

    models = find_models(runs, recipe)
    from bertkit.server.run import DrainingServer, bind

    with bind(address.host, address.port) as socket:
        from bertkit.server.app import build_app
        from bertkit.server.models import load_service

        uvicorn_log = logging.getLogger("uvicorn")
        uvicorn_log.handlers, uvicorn_log.propagate = log.handlers, False
        uvicorn_log.setLevel(logging.ERROR)
        service = load_service(models, limits, api_key=address.api_key)
        app = build_app(service, address.cors_origins, address.root_path)
        url = f"http://{address.host}:{socket.getsockname()[1]}"
        DrainingServer(app, partial(_announce_models, url, service)).run([socket])
    log.info("stopped")


def _announce_models(url: str, service: Service) -> None:
    count = len(service.models)
    log.info(f"serving {count} model{'s' if count > 1 else ''} at {url}")
    for model in service.models.values():
        log.info(f"  {model.name}: {'  '.join(model.routes)}")
    docs = "" if service.api_key else f" and see {url}/docs for all addresses"
    log.info(f"try them at {url}/{docs}; Ctrl-C stops")


def check_packages() -> None:
    """Check that the packages of a server are installed.

    Raises:
        UnavailableError: If a package is missing.
    """
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise UnavailableError(f"serving needs {', '.join(missing)}", f"`{pip_install('serve')}`")


class JsonFormatter(logging.Formatter):
    """Formatter that writes a log record as a JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        content = {"time": datetime.fromtimestamp(record.created, UTC).isoformat(), "level": record.levelname.lower()}
        content |= getattr(record, "fields", None) or {"message": record.getMessage()}
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return to_json(content)


class LoggedProgress(Silent):
    """Progress that logs the start of each stage."""

    def start(self, what: str, total: int, done: int = 0) -> None:  # dialect: ok, as in the base class
        """Log the name of the stage."""
        log.info(f"{what} ...")


def log_json_lines() -> None:
    """Write the log as JSON lines, with one line per request."""
    log.setLevel(logging.DEBUG)
    for handler in log.handlers:
        handler.setFormatter(JsonFormatter())
