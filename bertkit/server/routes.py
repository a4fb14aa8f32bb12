"""What models answer at which address."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

from bertkit.data.columns import PAIR
from bertkit.errors import BertkitError, shorten
from bertkit.metrics import Numbers
from bertkit.recipe.sections import Row
from bertkit.server.access import CLIENT_GONE, NOTES
from bertkit.server.batching import BusyError, Lane
from bertkit.server.questions import (
    DecisionsRequest,
    SystemOneRequest,
    can_answer,
    decision_of,
    row_of,
)
from bertkit.server.schemas import (
    ClassifyRequest,
    EmbeddingsRequest,
    EmbedRequest,
    Refusal,
    RerankRequest,
    answer_schema,
    column_types,
    pair_to_rank,
    row_schema,
)
from bertkit.server.service import ServedModel, Service, choose_model
from bertkit.storage.files import to_json
from bertkit.vectors.vector_files import to_unit_length, truncate

REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Refusal} for status in (400, 401, 413, 422, 429, 500, 503, 504)
}
TIMEOUT = "X-Request-Timeout"
"""Header with the seconds after which nobody needs the answer any more."""
_Render = Callable[[Any], Any]
_Answer = Callable[..., Awaitable[Response]]


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the addresses of all models, each with the schema of its rows, and those that other servers have."""
    for model in service.models.values():
        if model.rows is not None:
            _add_rows(app, service, model)
    shared: list[tuple[str, type[BaseModel], _Answer]] = [
        ("/predict", ClassifyRequest, _classify),
        ("/rerank", RerankRequest, _rerank),
        ("/embed", EmbedRequest, _embed),
        ("/v1/embeddings", EmbeddingsRequest, _openai_embed),
        ("/v1/decisions", DecisionsRequest, _decide),
        ("/v1/systemone", SystemOneRequest, _decide),
    ]
    mains = {model.main_route for model in service.models.values()}
    for route, request_schema, answer in shared:
        if service.find(route):
            endpoint = _make_endpoint(service, route, request_schema, answer)
            about = request_schema.__doc__
            app.add_api_route(route, endpoint, methods=["POST"], responses=REFUSALS, summary=about)
            # TEI answers at / as well; with models of several kinds, nobody could tell which one is meant.
            if mains == {route}:
                app.add_api_route("/", endpoint, methods=["POST"], include_in_schema=False)


def _add_rows(app: FastAPI, service: Service, model: ServedModel) -> None:
    assert model.checkpoint is not None
    task, recipe = model.checkpoint.task, model.checkpoint.setup.recipe
    request_schema = row_schema(model.name, task, recipe)

    async def endpoint(request: Request, body: Any) -> Response:
        rows = [row.model_dump(exclude_none=True) for row in body.instances]
        # Answers are rendered in the computing thread, so that the event loop writes bytes and computes nothing.
        answers = await predict(service, request, model, rows, to_json)
        return json_response(f'{{"predictions": [{", ".join(answers)}]}}')

    endpoint.__annotations__ = {"request": Request, "body": request_schema, "return": Response}
    app.add_api_route(
        f"/v1/models/{model.name}:predict",
        endpoint,
        methods=["POST"],
        response_model=answer_schema(model.name, task),
        responses=REFUSALS,
        summary=f"Predict rows with {model.name}",
        description=recipe.about or recipe.task,
        operation_id=f"predict_{model.name}",
    )


def _make_endpoint(service: Service, route: str, request_schema: type[BaseModel], answer: _Answer) -> Any:
    models = {model.name: model for model in service.find(route)}

    async def endpoint(request: Request, body: Any) -> Response:
        return await answer(service, request, choose_model(models, body.model), body)

    endpoint.__annotations__ = {"request": Request, "body": request_schema, "return": Response}
    return endpoint


async def _classify(service: Service, request: Request, model: ServedModel, body: ClassifyRequest) -> Response:
    given = body.inputs
    # TEI takes a text, a pair or a batch of both, and answers a batch by a list of lists.
    is_batch = not isinstance(given, str) and bool(given) and not isinstance(given[0], str)
    texts: Sequence[Any] = given if is_batch else [[given] if isinstance(given, str) else given]
    if not texts or not all(1 <= len(of_row) <= 2 for of_row in texts):
        raise HTTPException(422, "inputs: give a text, a pair [text, text], or a list of [text] or [text, text]")
    assert model.checkpoint is not None
    takes = column_types(model.checkpoint.task, model.checkpoint.setup.recipe)
    if PAIR not in takes and any(len(of_row) == 2 for of_row in texts):
        raise HTTPException(422, "inputs: the model reads single texts, and this is a pair; write [[text], [text]]")
    if PAIR in takes and takes[PAIR][1] and any(len(of_row) == 1 for of_row in texts):
        raise HTTPException(422, "inputs: the model reads pairs [text, text], and this is a single text")
    rows = [dict(zip(("text", PAIR), of_row, strict=False)) for of_row in texts]
    count = None if body.parameters is None else body.parameters.top_k
    answers = await predict(service, request, model, rows, lambda one: _label_scores(one, count))
    return json_response(f"[{', '.join(answers)}]" if is_batch or body.parameters else answers[0])


def _label_scores(prediction: Mapping[str, Any], count: int | None) -> str:
    """Write the highest probabilities of a prediction in their order, all of them without a count."""
    ordered = sorted(prediction["probabilities"].items(), key=lambda item: -item[1])[:count]
    return to_json([{"label": label, "score": score} for label, score in ordered])


async def _rerank(service: Service, request: Request, model: ServedModel, body: RerankRequest) -> Response:
    assert model.task is not None
    query, passage = pair_to_rank(model.task) or ("", "")
    rows = [{query: body.query, passage: text} for text in body.texts]
    scores = await predict(service, request, model, rows, lambda prediction: prediction["prediction"])
    ranked = sorted(range(len(scores)), key=lambda number: (-scores[number], number))
    own = ({"text": body.texts[number]} if body.return_text else {} for number in ranked)
    return json_response(
        to_json([{"index": n, "score": scores[n], **text} for n, text in zip(ranked, own, strict=True)])
    )


async def _embed(service: Service, request: Request, model: ServedModel, body: EmbedRequest) -> Response:
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    finish = _finisher(model, is_normal=body.normalize, dimension=body.dimensions)
    if not body.normalize and model.vectorizer is not None and model.vectorizer.is_normal:
        raise HTTPException(422, "normalize: the model itself makes vectors of length 1")
    inputs = [(text, body.prompt_name) for text in texts]
    answers = await _vectors(service, request, model, inputs, lambda answer: json.dumps(finish(answer[0]).tolist()))
    return json_response(f"[{', '.join(answers)}]")


async def _openai_embed(service: Service, request: Request, model: ServedModel, body: EmbeddingsRequest) -> Response:
    texts = [body.input] if isinstance(body.input, str) else body.input
    finish = _finisher(model, is_normal=True, dimension=body.dimensions)

    def render(answer: tuple[Any, int]) -> tuple[str, int]:
        vector = finish(answer[0])
        if body.encoding_format == "base64":
            return json.dumps(base64.b64encode(vector.astype("<f4").tobytes()).decode()), answer[1]
        return json.dumps(vector.tolist()), answer[1]

    answers = await _vectors(service, request, model, [(text, None) for text in texts], render)
    data = ", ".join(
        f'{{"object": "embedding", "index": {number}, "embedding": {vector}}}'
        for number, (vector, _) in enumerate(answers)
    )
    tokens = sum(count for _, count in answers)
    usage = json.dumps({"prompt_tokens": tokens, "total_tokens": tokens})
    return json_response(f'{{"object": "list", "data": [{data}], "model": {json.dumps(model.name)}, "usage": {usage}}}')


async def _decide(
    service: Service, request: Request, model: ServedModel, body: DecisionsRequest | SystemOneRequest
) -> Response:
    state, questions = body.read()
    asked = [question for question in questions if can_answer(model, question)]
    decisions, tokens = dict[str, Any](), 0
    if asked:
        [prediction] = await predict(service, request, model, [row_of(model, state, asked)], dict)
        decisions = {question.name: decision_of(model, prediction, question) for question in asked}
        tokens = request.scope[NOTES]["tokens"]
    return json_response(to_json({"model": model.name, **body.show(decisions, tokens)}))


def _finisher(model: ServedModel, *, is_normal: bool, dimension: int | None) -> _Render:
    """Return what makes of a vector the one that a request asks for."""

    def finish(vector: Numbers) -> Any:
        vectors = truncate(vector[None], dimension, is_normal=is_normal)
        return (to_unit_length(vectors) if is_normal else vectors)[0]

    return finish


async def _vectors(
    service: Service, request: Request, model: ServedModel, inputs: Sequence[Any], render: _Render
) -> list[Any]:
    assert model.texts is not None and model.vectorizer is not None
    prompts = model.vectorizer.prompts
    if not inputs:
        raise HTTPException(422, "inputs: give at least one text")
    if (name := inputs[0][1]) is not None and name not in prompts:
        raise HTTPException(422, f"prompt_name: none is called {name!r}; there are {', '.join(prompts) or 'none'}")
    return await compute(service, request, model, model.texts, inputs, render)


async def predict(
    service: Service, request: Request, model: ServedModel, rows: Sequence[Row], render: _Render
) -> list[Any]:
    """Let rows be predicted; raises as `compute` does."""
    assert model.rows is not None
    return await compute(service, request, model, model.rows, rows, render)


async def compute(
    service: Service, request: Request, model: ServedModel, lane: Lane, values: Sequence[Any], render: _Render
) -> list[Any]:
    """Let the answers to inputs be computed among those of other requests, and wait for them.

    Raises:
        HTTPException: If there are too many inputs, the answers take too long, or the client has disconnected.
        BertkitError: If an input is wrong.
    """
    limits, notes, seconds = service.limits, request.scope[NOTES], _read_timeout(request, service.limits.answer_seconds)
    notes.update(model=model.name, rows=len(values))
    if len(values) > min(limits.request_rows, limits.queue_rows):
        raise HTTPException(
            413, f"{len(values):,} inputs: send at most {min(limits.request_rows, limits.queue_rows):,}"
        )
    try:
        ticket = service.computer.submit(lane, values, render)
    except BusyError as busy:
        what = f"{model.name} is busy: try again in {busy.seconds} s"
        raise HTTPException(429, what, {"Retry-After": str(busy.seconds)}) from None
    # Waiting ends with the answer, the client or the time, whichever is first; the rest of its inputs is then dropped.
    gone = asyncio.ensure_future(_wait_until_gone(request))
    try:
        await asyncio.wait((ticket.done, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        ticket.is_abandoned = True
    now = time.perf_counter()
    waited, total = (ticket.begun or now) - ticket.arrived, now - ticket.arrived
    notes.update(tokens=ticket.tokens, waited_ms=round(1000 * waited, 2), total_ms=round(1000 * total, 2))
    if not ticket.done.done():
        if gone.done() and not gone.cancelled():
            raise HTTPException(CLIENT_GONE, "the client has gone")
        raise HTTPException(504, f"no answer within {seconds:g} s")
    if isinstance(ticket.error, BertkitError):
        raise ticket.error
    if ticket.error is not None:
        raise HTTPException(500, "the model failed on this input; the log of the server has the reason")
    return ticket.answers


def _read_timeout(request: Request, most: float) -> float:
    """Return how many seconds a request waits for its answer: as its header says, and no longer than the server allows.

    Raises:
        HTTPException: If the header is not a number of seconds.
    """
    given = request.headers.get(TIMEOUT)
    if given is None:
        return most
    seconds = float(given) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", given) else 0.0
    if seconds == 0:
        raise HTTPException(
            422, f"the header {TIMEOUT}: {shorten(repr(given))} is not a number of seconds, such as 0.5"
        )
    return min(seconds, most)


async def _wait_until_gone(request: Request) -> None:
    """Return when the client has closed the connection."""
    with contextlib.suppress(Exception):
        while (await request.receive())["type"] != "http.disconnect":
            pass


def json_response(content: str) -> Response:
    """Build the answer of what is JSON already."""
    return Response(content.encode(), media_type="application/json")
