"""Routes of the models: read requests, compute answers in batches, and write JSON."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

from bertkit.data.columns import PAIR
from bertkit.errors import BertkitError, shorten
from bertkit.server.access import CLIENT_GONE, LOG_FIELDS
from bertkit.server.batching import RequestQueue
from bertkit.server.decisions import DecisionsRequest, SystemOneRequest, answer_questions
from bertkit.server.models import ServedModel, Service, choose_model
from bertkit.server.schemas import (
    ClassifyRequest,
    EmbeddingsRequest,
    EmbedRequest,
    RerankRequest,
    column_types,
    pair_to_rank,
    row_schema,
)
from bertkit.storage.files import to_json
from bertkit.vectors.vector_files import to_unit_length, truncate

TIMEOUT = "X-Request-Timeout"
"""Header with the number of seconds after which the client no longer needs the answer."""
_Answer = Callable[[Request, ServedModel, Any], Awaitable[str]]


def add_routes(app: FastAPI, models: Mapping[str, ServedModel]) -> None:
    """Add a route for each model that predicts, with the schema of its rows, and routes as in TEI and other servers."""
    add_route = partial(app.add_api_route, methods=["POST"])
    for name, model in models.items():
        if model.checkpoint is not None:
            schema = row_schema(name, model.checkpoint.task, model.checkpoint.context.recipe)
            endpoint = _make_endpoint(schema, _predict, {name: model})
            add_route(f"/v1/models/{name}:predict", endpoint, summary=f"Predict rows with {name}")
    shared_routes: dict[str, tuple[type[BaseModel], _Answer]] = {
        "/embed": (EmbedRequest, _embed),
        "/predict": (ClassifyRequest, _classify),
        "/rerank": (RerankRequest, _rerank),
        "/v1/embeddings": (EmbeddingsRequest, _embed_openai),
        "/v1/decisions": (DecisionsRequest, _decide),
        "/v1/systemone": (SystemOneRequest, _decide),
    }
    for path, (schema, answer) in shared_routes.items():
        if path_models := {name: model for name, model in models.items() if path in model.routes}:
            add_route(path, _make_endpoint(schema, answer, path_models), summary=schema.__doc__)
    # TEI also answers at /. A request to / shows no type, so add this route only if all models have the same type.
    tei_paths = list(shared_routes)[:3]
    model_paths = {next((path for path in tei_paths if path in model.routes), "") for model in models.values()}
    if len(model_paths) == 1 and (path := model_paths.pop()):
        add_route("/", _make_endpoint(*shared_routes[path], models), include_in_schema=False)


def _make_endpoint(schema: type[BaseModel], answer: _Answer, models: Mapping[str, ServedModel]) -> Any:
    async def endpoint(request: Request, body: Any) -> Response:
        model = choose_model(models, getattr(body, "model", None))
        # Answers are JSON already: with a response model, FastAPI would validate and serialize them in the event loop.
        return Response(await answer(request, model, body), media_type="application/json")

    # FastAPI reads the schema of the body from the annotations, which are only known at run time.
    endpoint.__annotations__ = {"request": Request, "body": schema, "return": Response}
    return endpoint


async def _predict(request: Request, model: ServedModel, body: Any) -> str:
    rows = [row.model_dump(exclude_none=True) for row in body.instances]
    # The worker thread has rendered each answer as JSON, so the event loop only joins them.
    answers = await compute(request, model, model.row_queue, rows, to_json)
    return f'{{"predictions": [{", ".join(answers)}]}}'


async def _classify(request: Request, model: ServedModel, body: ClassifyRequest) -> str:
    inputs = body.inputs
    # TEI accepts a text, a pair, or a list of [text] or [text, text]; it answers a list with a list of lists.
    is_batch = not isinstance(inputs, str) and bool(inputs) and not isinstance(inputs[0], str)
    texts: Sequence[Any] = inputs if is_batch else [[inputs] if isinstance(inputs, str) else inputs]
    if not texts or not all(1 <= len(row) <= 2 for row in texts):
        raise HTTPException(422, "inputs: give a text, a pair [text, text], or a list of [text] or [text, text]")
    assert model.checkpoint is not None
    columns = column_types(model.checkpoint.task, model.checkpoint.context.recipe)
    if PAIR not in columns and any(len(row) == 2 for row in texts):
        raise HTTPException(422, "inputs: the model reads single texts, not pairs; write [[text], [text]]")
    if PAIR in columns and columns[PAIR][1] and any(len(row) == 1 for row in texts):
        raise HTTPException(422, "inputs: the model reads pairs [text, text], not single texts")
    top_k = body.parameters.top_k if body.parameters else None

    def render(prediction: Mapping[str, Any]) -> str:
        top_labels = sorted(prediction["probabilities"].items(), key=lambda item: -item[1])[:top_k]
        return to_json([{"label": label, "score": score} for label, score in top_labels])

    rows = [dict(zip(("text", PAIR), row, strict=False)) for row in texts]
    answers = await compute(request, model, model.row_queue, rows, render)
    return f"[{', '.join(answers)}]" if is_batch or body.parameters else answers[0]


async def _rerank(request: Request, model: ServedModel, body: RerankRequest) -> str:
    assert model.checkpoint is not None
    query, passage = pair_to_rank(model.checkpoint.task) or ("", "")
    rows = [{query: body.query, passage: text} for text in body.texts]
    scores = await compute(request, model, model.row_queue, rows, lambda prediction: prediction["prediction"])
    ranking = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
    texts = ({"text": body.texts[index]} if body.return_text else {} for index in ranking)
    return to_json([{"index": n, "score": scores[n], **text} for n, text in zip(ranking, texts, strict=True)])


async def _embed(request: Request, model: ServedModel, body: EmbedRequest) -> str:
    assert model.embedder is not None
    modules, prompt = model.embedder.modules, body.prompt_name
    if not body.normalize and modules.is_normalized:
        raise HTTPException(422, "normalize: the model itself makes vectors of length 1")
    if prompt is not None and prompt not in modules.prompts:
        names = ", ".join(modules.prompts) or "none"
        raise HTTPException(422, f"prompt_name: no prompt is called {prompt!r}; there are {names}")

    def render(answer: tuple[np.ndarray, int]) -> str:
        return json.dumps(_finish_vector(answer[0], body.dimensions, body.normalize).tolist())

    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    answers = await compute(request, model, model.text_queue, [(text, prompt) for text in texts], render)
    return f"[{', '.join(answers)}]"


async def _embed_openai(request: Request, model: ServedModel, body: EmbeddingsRequest) -> str:
    def render(answer: tuple[np.ndarray, int]) -> str:
        vector: Any = _finish_vector(answer[0], body.dimensions, True)
        is_packed = body.encoding_format == "base64"
        return json.dumps(base64.b64encode(vector.astype("<f4").tobytes()).decode() if is_packed else vector.tolist())

    texts = [body.input] if isinstance(body.input, str) else body.input
    vectors = await compute(request, model, model.text_queue, [(text, None) for text in texts], render)
    items = (f'{{"object": "embedding", "index": {n}, "embedding": {vector}}}' for n, vector in enumerate(vectors))
    tokens = request.scope[LOG_FIELDS]["tokens"]
    usage = json.dumps({"prompt_tokens": tokens, "total_tokens": tokens})
    return f'{{"object": "list", "data": [{", ".join(items)}], "model": {json.dumps(model.name)}, "usage": {usage}}}'


def _finish_vector(vector: np.ndarray, dimension: int | None, is_normalized: bool) -> np.ndarray:
    """Truncate a vector to `dimension`, and scale it to length 1 if `is_normalized`."""
    vectors = truncate(vector[None], dimension, is_normalized=is_normalized)
    finished: np.ndarray = (to_unit_length(vectors) if is_normalized else vectors)[0]
    return finished


async def _decide(request: Request, model: ServedModel, body: DecisionsRequest | SystemOneRequest) -> str:
    async def predict(row: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        [prediction] = await compute(request, model, model.row_queue, [row], dict)
        return prediction, request.scope[LOG_FIELDS]["tokens"]

    return to_json({"model": model.name, **await answer_questions(model, body, predict)})


async def compute(
    request: Request,
    model: ServedModel,
    queue: RequestQueue | None,
    values: Sequence[Any],
    render: Callable[[Any], Any],
) -> list[Any]:
    """Compute the answers to the inputs of a request, in batches with other requests.

    `render` turns an answer into the form that the request needs, such as JSON. The worker thread calls it, so that the
    event loop only writes bytes.

    Raises:
        HTTPException: If there are too many inputs, the queue is full, the answers take too long, or the client has
            disconnected.
        BertkitError: If an input is not valid.
    """
    assert queue is not None
    service: Service = request.app.state.service
    # 1. Check the request, and add it to the queue.
    limits, log_fields = service.limits, request.scope[LOG_FIELDS]
    timeout = _read_timeout(request, limits.answer_seconds)
    max_rows = min(limits.request_rows, limits.queue_rows)
    log_fields.update(model=model.name, rows=len(values))
    if not values:
        raise HTTPException(422, "inputs: give at least one text")
    if len(values) > max_rows:
        raise HTTPException(413, f"{len(values):,} inputs: send at most {max_rows:,}")
    pending = service.worker.submit(queue, values, render)
    # 2. Wait for the answers, but not longer than the client waits. The remaining inputs are then dropped.
    disconnection = asyncio.ensure_future(_wait_until_gone(request))
    try:
        await asyncio.wait((pending.future, disconnection), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        # Even if this coroutine is canceled, the worker must not compute answers that are not sent.
        disconnection.cancel()
        pending.is_abandoned = True
    # 3. Store the times for the log, and return the answers.
    now = time.perf_counter()
    waited_ms, total_ms = (round(1000 * (end - pending.arrival_time), 2) for end in (pending.start_time or now, now))
    log_fields.update(tokens=pending.tokens, waited_ms=waited_ms, total_ms=total_ms)
    if not pending.future.done():
        if disconnection.done() and not disconnection.cancelled():
            raise HTTPException(CLIENT_GONE, "the client has disconnected")
        raise HTTPException(504, f"no answer within {timeout:g} s")
    if isinstance(pending.error, BertkitError):
        raise pending.error
    if pending.error is not None:
        raise HTTPException(500, "the model failed on this input; the log of the server has the reason")
    return pending.answers


def _read_timeout(request: Request, max_seconds: float) -> float:
    """Return the number of seconds to wait for the answer: the value of the request's header, at most `max_seconds`.

    Raises:
        HTTPException: If the header is not a number of seconds.
    """
    text = request.headers.get(TIMEOUT)
    if text is None:
        return max_seconds
    seconds = float(text) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) else 0.0
    if seconds == 0:
        raise HTTPException(422, f"the header {TIMEOUT}: {shorten(repr(text))} is not a number of seconds, such as 0.5")
    return min(seconds, max_seconds)


async def _wait_until_gone(request: Request) -> None:
    """Return when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
