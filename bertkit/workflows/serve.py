"""Serve trained models over HTTP."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING

from bertkit.errors import UnavailableError, install_command
from bertkit.progress import Silent, log
from bertkit.storage.files import to_json

if TYPE_CHECKING:
    from bertkit.server.batching import Limits


_PACKAGES = ("fastapi", "uvicorn", "prometheus_client")


def serve(
    runs: Sequence[str],
    limits: Limits,
    host: str,
    port: int,
    recipe: str | None = None,
    *,
    api_key: str | None = None,
    cors_origins: Sequence[str] = (),
    root_path: str = "",
) -> None:
    """Serve runs until a signal arrives, and answer all pending requests before returning.

    Args:
        runs: Runs, each as ``RUN`` or ``NAME=RUN``.
        limits: Limits of requests and batches.
        host: Address to listen at.
        port: Port, or 0 for a free one.
        recipe: Recipe of model folders that are not runs.
        api_key: Key that requests must carry, or None if they need no key.
        cors_origins: Web origins whose pages may send requests.
        root_path: Path prefix under which a proxy publishes the server.

    Raises:
        ResourceError: If the port is in use.
        BertkitError: If a run cannot be served.
    """
    from bertkit.server.models import find_models, load_service

    # 1. Find the models and bind the port. Both can fail, so do it before torch and the web framework are loaded.
    models = find_models(runs, recipe)
    from bertkit.server.run import DrainingServer, bind

    with bind(host, port) as socket:
        from bertkit.server.app import build_app

        # 2. Load the models. Send the errors of uvicorn to bertkit's log; the app logs requests.
        uvicorn_log = logging.getLogger("uvicorn")
        uvicorn_log.handlers, uvicorn_log.propagate = log.handlers, False
        uvicorn_log.setLevel(logging.ERROR)
        service = load_service(models, limits, api_key=api_key)
        app = build_app(service, cors_origins, root_path)

        # 3. Serve, and print the addresses as soon as requests are accepted.
        def announce_models() -> None:
            url = f"http://{host}:{socket.getsockname()[1]}"
            log.info(f"serving {len(models)} model{'s' if len(models) > 1 else ''} at {url}")
            for model in service.models.values():
                log.info(f"  {model.name}: {'  '.join(model.routes)}")
            docs = "" if api_key else f" and see {url}/docs for all addresses"
            log.info(f"try them at {url}/{docs}; Ctrl-C stops")

        DrainingServer(app, announce_models).run([socket])
    log.info("stopped")


def check_packages() -> None:
    """Check that the packages of a server are installed.

    Raises:
        UnavailableError: If a package is missing.
    """
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise UnavailableError(f"serving needs {', '.join(missing)}", f"`{install_command('serve')}`")


class JsonFormatter(logging.Formatter):
    """Formatter that writes a log record as a JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON line of a record."""
        content = {"time": datetime.fromtimestamp(record.created, UTC).isoformat(), "level": record.levelname.lower()}
        content |= getattr(record, "fields", None) or {"message": record.getMessage()}
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return to_json(content)


class LoggedProgress(Silent):
    """Progress that logs the start of each stage."""

    def start(self, name: str, total: int, done: int = 0) -> None:
        """Log the name of the stage."""
        log.info(f"{name} ...")


def log_json_lines() -> None:
    """Write the log as JSON lines, with one line per request."""
    log.setLevel(logging.DEBUG)
    for handler in log.handlers:
        handler.setFormatter(JsonFormatter())
