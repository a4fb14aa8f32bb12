"""Serve trained models over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from bertkit.errors import UnavailableError, pip_install
from bertkit.progress import log
from bertkit.server.logs import share_log

if TYPE_CHECKING:
    from bertkit.server.batching import Limits
    from bertkit.server.service import Service


_STOPPED = "stopped; every request was answered"
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
    """Serve runs until a signal asks to stop, and then answer what has come.

    Raises:
        UnavailableError: the packages of the extra ``serve`` are missing.
        ResourceError: the port is taken.
        StoppedError: a second signal came, and requests were given up.
        BertkitError: a run cannot be served.
    """
    check_packages()
    from bertkit.server.runs import find_models

    models = find_models(runs, recipe)
    from bertkit.server.running import bind, run_server

    with bind(address.host, address.port) as server:
        from bertkit.server.app import app_of
        from bertkit.server.service import load_service

        share_log()
        service = load_service(models, limits, api_key=address.api_key)
        app = app_of(service, address.cors_origins, address.root_path)
        url = f"http://{address.host}:{server.getsockname()[1]}"
        run_server(app, server, partial(_announce_models, url, service))
    log.info(_STOPPED)


def _announce_models(url: str, service: Service) -> None:
    count = len(service.models)
    log.info(f"serving {count} model{'s' if count > 1 else ''} at {url}")
    for model in service.models.values():
        log.info(f"  {model.name}: {'  '.join(model.routes)}")
    log.info(f"try them at {url}/ and see {url}/docs for all addresses; Ctrl-C stops")


def check_packages() -> None:
    """Check that the packages of a server are installed.

    Raises:
        UnavailableError: one is not.
    """
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise UnavailableError(f"serving needs {', '.join(missing)}", f"`{pip_install('serve')}`")
