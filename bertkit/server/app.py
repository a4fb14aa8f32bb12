"""The ASGI app: models, their addresses, what watches over them, and a page to try them."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import date, datetime
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, Response

from bertkit import __version__
from bertkit.errors import BertkitError, DataError, UsageError
from bertkit.hardware import process
from bertkit.progress import log
from bertkit.reports.templates import hash_script
from bertkit.server.access import AccessMiddleware, error_response
from bertkit.server.batching import Limits
from bertkit.server.routes import add_routes
from bertkit.server.runs import find_models
from bertkit.server.schemas import describe_faults, form_fields
from bertkit.server.service import ServedModel, Service, load_service

_FILE = Path(__file__).with_name("page.html")
# uvicorn and gunicorn restart a worker that ended, unless it ended with this exit code.
_STARTUP_FAILURE = 3


@cache
def read_page() -> tuple[str, dict[str, str]]:
    """Read the page, and build the headers by which a browser runs nothing but its own script and style."""
    text = _FILE.read_text(encoding="utf-8")
    script, style = (
        hash_script(re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)[0]) for tag in ("script", "style")
    )
    # Scripts are named by their hash, so that a text on the page can never become one.
    policy = (
        f"default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"frame-ancestors 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'"
    )
    return text, {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }


RUNS, KEY, WORKERS = "BERTKIT_RUNS", "BERTKIT_API_KEY", "WEB_CONCURRENCY"
"""Environment variables of `from_environment`: runs to serve, API key, and number of worker processes."""


def create_app(
    runs: Sequence[str], *, limits: Limits | None = None, api_key: str | None = None, root_path: str = ""
) -> FastAPI:
    """Build the app of some runs, each ``RUN`` or ``NAME=RUN``, with its models loaded.

    Behind a proxy that shows it below a prefix, `root_path` is the prefix.

    Raises:
        BertkitError: a run is missing, damaged, or cannot be served.
    """
    return app_of(load_service(find_models(runs), limits or Limits(), api_key=api_key), root_path=root_path)


def from_environment() -> FastAPI:
    """Build the app of the runs in BERTKIT_RUNS, which are separated as in PATH, for ``uvicorn --factory``.

    If WEB_CONCURRENCY is the number of worker processes, each worker uses its part of the cores.

    Raises:
        SystemExit: If BERTKIT_RUNS is empty, or one of its runs cannot be served.
    """
    workers = os.environ.get(WORKERS, "")
    if workers.isdecimal() and int(workers) > 1 and process.asked_threads() is None:
        process.prepare(max(1, process.fitting_threads().number // int(workers)))
    runs = [run.strip() for run in os.environ.get(RUNS, "").split(os.pathsep) if run.strip()]
    try:
        if not runs:
            example = f"{RUNS}=runs/a{os.pathsep}name=runs/b"
            raise UsageError(f"{RUNS} is empty", f"name runs, separated by {os.pathsep!r}: {example}")
        return create_app(runs, api_key=os.environ.get(KEY) or None)
    except BertkitError as error:
        log.error(f"error: {error}")
        raise SystemExit(_STARTUP_FAILURE) from None


def app_of(service: Service, cors_origins: Sequence[str] = (), root_path: str = "") -> FastAPI:
    """Build the app of loaded models; it computes from its start-up to its shutdown."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.computer.start()
        yield
        service.computer.stop()

    about = (
        "Models trained with bertkit. Errors are `{error, error_type}`; at `/v1/embeddings` they have OpenAI's shape."
    )
    options: dict[str, Any] = {}
    if service.api_key:
        # Browsers open a page without the key. The dependency adds the key to the schema; the middleware checks it.
        options = {"docs_url": None, "redoc_url": None, "dependencies": [Depends(HTTPBearer(auto_error=False))]}
    app = FastAPI(title="bertkit", version=__version__, description=about, lifespan=lifespan, **options)
    app.state.service = service
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(BertkitError, _answer_bertkit_error)
    app.add_exception_handler(RequestValidationError, _answer_faults)
    app.add_middleware(AccessMiddleware, service=service, root_path=root_path)
    if cors_origins:  # outside of the access middleware, so that pages can read why a request was refused
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(cors_origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["Retry-After", "WWW-Authenticate", "X-Request-ID"],
        )
    add_routes(app, service)
    _add_state(app, service)
    return app


def _add_state(app: FastAPI, service: Service) -> None:
    """Add the addresses that tell of the server itself."""

    async def health() -> Response:
        is_alive = service.computer.is_alive
        return JSONResponse({"status": "ok" if is_alive else "failed"}, 200 if is_alive else 503)

    async def ready() -> Response:
        is_ready = service.is_ready
        return JSONResponse({"status": "ready" if is_ready else "stopping"}, 200 if is_ready else 503)

    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def models() -> Response:
        data = list(map(describe_model, service.models.values()))
        return JSONResponse({"object": "list", "data": data, "models": list(map(_name_model, data))})

    async def one_model(name: str) -> Response:
        model = service.get(name)
        return JSONResponse(describe_model(model) | {"name": name, "ready": not service.is_draining})

    async def no_rows(name: str) -> Response:
        raise HTTPException(404, f"{name} predicts no rows; it answers at {', '.join(service.get(name).routes)}")

    async def page() -> Response:
        text, headers = read_page()
        return HTMLResponse(text, headers=headers)

    app.add_api_route("/health", health, summary="Whether the server works")
    app.add_api_route("/ready", ready, summary="Whether the server takes requests; 503 while it stops")
    for path, probe in (("/health", health), ("/ready", ready)):
        app.add_api_route(path, probe, methods=["HEAD"], include_in_schema=False)
    app.add_api_route("/metrics", metrics, summary="Metrics for Prometheus")
    app.add_api_route("/v1/models", models, summary="The models")
    app.add_api_route("/v1/models/{name}", one_model, summary="One model")
    app.add_api_route("/v1/models/{name}:predict", no_rows, methods=["POST"], include_in_schema=False)
    app.add_api_route("/", page, include_in_schema=False)


def describe_model(model: ServedModel) -> dict[str, Any]:
    """Return what is to be known of a model to ask it something, in OpenAI's shape with fields of its own."""
    finished = model.identity.finished
    created = int(datetime.fromisoformat(finished).timestamp()) if finished else 0
    content: dict[str, Any] = {"id": model.name, "object": "model", "created": created, "owned_by": "bertkit"}
    content |= asdict(model.identity)
    content["routes"] = model.routes
    if model.checkpoint is not None:
        setup, task = model.checkpoint.setup, model.checkpoint.task
        content |= {
            "about": setup.recipe.about,
            "task": setup.recipe.task,
            "labels": list(setup.labels),
            "columns": form_fields(task, setup.recipe),
        }
    return content


def _name_model(content: Mapping[str, Any]) -> dict[str, str]:
    """Return what `describe_model` says in the shape of TypeSafe's clients."""
    released = date.fromtimestamp(content["created"]).isoformat()
    return {"name": content["id"], "description": content.get("about") or "", "release_date": released}


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_response(request.url.path, error)


async def _answer_bertkit_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, BertkitError)
    status, message = 500, error.what
    # The request is wrong, and the message states what to change. Other errors can name files of the server.
    if isinstance(error, (DataError, UsageError)):
        column = f" (column {error.column!r})" if error.column else ""
        remedy = f" - {error.remedy}" if error.remedy else ""
        status, message = 422, " ".join(f"{error.what}{column}{remedy}".split())
    return error_response(request.url.path, HTTPException(status, message))


async def _answer_faults(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = [{**fault, "loc": tuple(fault["loc"])[1:]} for fault in error.errors()]
    first = faults[0]
    # Faults of the body in one line each, as those of rows are, and not as a list of pydantic.
    if first["type"] == "json_invalid":
        fault = f"{first['ctx']['error']} at character {error.errors()[0]['loc'][1]}"
        status, message = 400, f"the body is not JSON: {fault}"
    elif isinstance(first.get("input"), bytes) or (first["type"] == "missing" and not first["loc"]):
        status, message = 422, "send JSON, with the header Content-Type: application/json"
    else:
        status, message = 422, describe_faults(faults)
    return error_response(request.url.path, HTTPException(status, message))
