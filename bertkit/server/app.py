"""ASGI app: routes of the models, access control, health checks, metrics, and a page to try the models."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import date, datetime
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.security import HTTPBearer
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, Response

from bertkit import __version__
from bertkit.errors import BertkitError, DataError, UsageError
from bertkit.hardware import process
from bertkit.progress import log
from bertkit.reports.templates import hash_script
from bertkit.server.access import AccessMiddleware, error_response
from bertkit.server.batching import Limits
from bertkit.server.models import ServedModel, Service, choose_model, find_models, load_service
from bertkit.server.routes import add_routes
from bertkit.server.schemas import explain_errors, form_fields

_PAGE = Path(__file__).with_name("page.html")
# uvicorn and gunicorn restart a worker that ended, unless it ended with this exit code.
_STARTUP_FAILURE = 3
RUNS_ENV, KEY_ENV, WORKERS_ENV = "BERTKIT_RUNS", "BERTKIT_API_KEY", "WEB_CONCURRENCY"
"""Environment variables of `from_environment`: runs to serve, API key, and number of worker processes."""


def create_app(
    runs: Sequence[str], *, limits: Limits | None = None, api_key: str | None = None, root_path: str = ""
) -> FastAPI:
    """Load the models of runs, each given as ``RUN`` or ``NAME=RUN``, and build the app that serves them.

    Behind a proxy that shows the app below a prefix, `root_path` is the prefix.

    Raises:
        BertkitError: If a run is missing, damaged, or cannot be served.
    """
    return build_app(load_service(find_models(runs), limits or Limits(), api_key=api_key), root_path=root_path)


def from_environment() -> FastAPI:
    """Build the app of the runs in BERTKIT_RUNS, which are separated as in PATH, for ``uvicorn --factory``.

    If WEB_CONCURRENCY gives the number of worker processes, each worker uses an equal part of the threads.

    Raises:
        SystemExit: If BERTKIT_RUNS is empty, or one of its runs cannot be served.
    """
    workers = os.environ.get(WORKERS_ENV, "")
    if workers.isdecimal() and int(workers) > 1 and process.requested_threads() is None:
        process.prepare(max(1, process.available_threads().number // int(workers)))
    runs = [run.strip() for run in os.environ.get(RUNS_ENV, "").split(os.pathsep) if run.strip()]
    try:
        if not runs:
            example = f"{RUNS_ENV}=runs/a{os.pathsep}name=runs/b"
            raise UsageError(f"{RUNS_ENV} is empty", f"name runs, separated by {os.pathsep!r}: {example}")
        return create_app(runs, api_key=os.environ.get(KEY_ENV) or None)
    except BertkitError as error:
        log.error(f"error: {error}")
        raise SystemExit(_STARTUP_FAILURE) from None


def build_app(service: Service, cors_origins: Sequence[str] = (), root_path: str = "") -> FastAPI:
    """Build the app of loaded models; their worker thread runs from the start-up to the shutdown of the app."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.worker.start()
        yield
        service.worker.stop()

    options: dict[str, Any] = {}
    if service.api_key:
        # Browsers would request the docs without the key, so the docs are off. The dependency only adds the key to the
        # OpenAPI schema; the middleware checks it.
        options = {"docs_url": None, "redoc_url": None, "dependencies": [Depends(HTTPBearer(auto_error=False))]}
    # Without this entry, FastAPI would document errors in its own format.
    errors: dict[int | str, dict[str, Any]] = {"4XX": {"description": "`{error, error_type}`, or an error of OpenAI"}}
    app = FastAPI(title="bertkit", version=__version__, lifespan=lifespan, responses=errors, **options)
    app.state.service = service
    for error in (HTTPException, BertkitError, RequestValidationError):
        app.add_exception_handler(error, _answer_error)
    app.add_middleware(AccessMiddleware, service=service, root_path=root_path)
    # Outside of the access middleware, so that pages can read why a request was rejected.
    if cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(cors_origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["Retry-After", "WWW-Authenticate", "X-Request-ID"],
        )
    # The routes of models come first: FastAPI takes the first route that matches.
    add_routes(app, service.models)
    _add_server_routes(app, service)
    return app


def _add_server_routes(app: FastAPI, service: Service) -> None:
    """Add the routes of the server itself: health, metrics, models and the page."""

    # 1. Define the endpoints.
    async def health() -> Response:
        is_alive = service.worker.is_alive()
        return JSONResponse({"status": "ok" if is_alive else "failed"}, 200 if is_alive else 503)

    async def ready() -> Response:
        # A server that is stopping is alive but not ready, so that it gets no requests and is not restarted.
        is_ready = service.worker.is_alive() and not service.is_draining
        return JSONResponse({"status": "ready" if is_ready else "stopping"}, 200 if is_ready else 503)

    async def metrics() -> Response:
        content = generate_latest(service.metrics.registry)
        return Response(content, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def models() -> Response:
        # Clients of OpenAI read `data`, and clients of TypeSafe read `models`.
        data = list(map(describe_model, service.models.values()))
        for_typesafe = [
            {
                "name": model["id"],
                "description": model.get("about") or "",
                "release_date": date.fromtimestamp(model["created"]).isoformat(),
            }
            for model in data
        ]
        return JSONResponse({"object": "list", "data": data, "models": for_typesafe})

    async def one_model(name: str) -> Response:
        model = describe_model(choose_model(service.models, name))
        return JSONResponse(model | {"name": name, "ready": not service.is_draining})

    async def reject_rows(name: str) -> Response:
        # Only models that embed get here, because models that predict have a route with their own schema.
        routes = ", ".join(choose_model(service.models, name).routes)
        raise HTTPException(404, f"{name} makes no predictions; use {routes}")

    async def page() -> Response:
        text, headers = read_page()
        return HTMLResponse(text, headers=headers)

    # 2. Add their routes.
    app.add_api_route("/health", health, summary="Health check; 503 if the server cannot compute")
    app.add_api_route("/ready", ready, summary="Readiness check; 503 if the server cannot compute or is stopping")
    for path, endpoint in (("/health", health), ("/ready", ready)):
        app.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)
    app.add_api_route("/metrics", metrics, summary="Metrics for Prometheus")
    app.add_api_route("/v1/models", models, summary="List the models")
    app.add_api_route("/v1/models/{name}", one_model, summary="Describe a model")
    app.add_api_route("/v1/models/{name}:predict", reject_rows, methods=["POST"], include_in_schema=False)
    app.add_api_route("/", page, include_in_schema=False)


@cache
def read_page() -> tuple[str, dict[str, str]]:
    """Return the page, and headers that make a browser run only its script and style."""
    text = _PAGE.read_text(encoding="utf-8")
    script, style = (
        hash_script(re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)[0]) for tag in ("script", "style")
    )
    # Browsers run only the script with this hash, so texts on the page are never executed.
    policy = (
        f"default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"frame-ancestors 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'"
    )
    headers = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
    return text, {"Content-Security-Policy": policy, **headers}


def describe_model(model: ServedModel) -> dict[str, Any]:
    """Return the identity, routes and columns of a model, in OpenAI's format with additional fields."""
    finished = model.identity["finished"]
    created = int(datetime.fromisoformat(finished).timestamp()) if finished else 0
    content: dict[str, Any] = {"id": model.name, "object": "model", "created": created, "owned_by": "bertkit"}
    content |= {**model.identity, "routes": model.routes}
    if model.checkpoint is not None:
        context, task = model.checkpoint.context, model.checkpoint.task
        content |= {
            "about": context.recipe.about,
            "task": context.recipe.task,
            "labels": list(context.labels),
            "columns": form_fields(task, context.recipe),
        }
    return content


async def _answer_error(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        error = explain_errors(error.errors())
    elif isinstance(error, (DataError, UsageError)):
        # The request is wrong, and the message states what to change.
        column = f" (column {error.column!r})" if error.column else ""
        remedy = f" - {error.remedy}" if error.remedy else ""
        error = HTTPException(422, " ".join(f"{error.message}{column}{remedy}".split()))
    elif isinstance(error, BertkitError):
        # Clients only get the message, because the file and the remedy concern the server.
        error = HTTPException(500, error.message)
    assert isinstance(error, HTTPException)
    return error_response(request.url.path, error)
