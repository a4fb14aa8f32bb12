"""The Open Inference Protocol, version 2 over REST, as KServe and Triton speak it: a column of rows is a tensor.

The request {"inputs": [{"name": "text", "shape": [2], "datatype": "BYTES", "data": ["a good film", "a dull one"]}]} has
two rows, and its answer the outputs ``prediction``, BYTES of shape (2,), and ``probabilities``, FP64 of (2, labels).
A text is an element of BYTES. What is neither text nor number, such as words or spans, is an element of BYTES as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from pydantic import BaseModel, Field, StrictInt, ValidationError
from starlette.responses import JSONResponse, Response

from bertkit import __version__
from bertkit.server.refusals import RefusedError
from bertkit.server.routes import REFUSALS, compute, json_response, predict
from bertkit.server.schemas import Text, column_types, describe_faults, row_schema
from bertkit.server.service import ServedModel, Service
from bertkit.storage.files import to_json

_BYTES, _NUMBER, _EMBEDDING = "BYTES", "FP64", "embedding"


class InputTensor(BaseModel):
    """A column of the rows."""

    name: Text
    shape: list[StrictInt] = Field(description="Number of rows, and maybe a 1.")
    datatype: Text
    data: list[Any]


class WantedOutput(BaseModel):
    """An output that is asked for."""

    name: Text


class InferRequest(BaseModel):
    """Rows to predict, or texts to embed, in the shape of the Open Inference Protocol."""

    id: Text | None = None
    inputs: list[InputTensor] = Field(min_length=1)
    outputs: list[WantedOutput] | None = None


def add_inference_protocol(app: FastAPI, service: Service) -> None:
    """Add the addresses of the protocol for all models."""

    async def server() -> Response:
        return JSONResponse({"name": "bertkit", "version": __version__, "extensions": []})

    async def live() -> Response:
        is_alive = service.computer.is_alive
        return JSONResponse({"live": is_alive}, 200 if is_alive else 503)

    async def ready() -> Response:
        return JSONResponse({"ready": service.is_ready}, 200 if service.is_ready else 503)

    async def one_model(name: str) -> Response:
        return JSONResponse(_describe_tensors(service.get(name)))

    async def model_ready(name: str) -> Response:
        body = {"name": service.get(name).name, "ready": service.is_ready}
        return JSONResponse(body, 200 if service.is_ready else 503)

    async def infer(name: str, request: Request, body: InferRequest) -> Response:
        model = service.get(name)
        outputs = await _infer(service, request, model, body)
        wanted = [output.name for output in body.outputs] if body.outputs else list(outputs)
        if unknown := [name for name in wanted if name not in outputs]:
            raise RefusedError(422, f"outputs: there is no {unknown[0]!r}; there are {', '.join(outputs)}")
        content: dict[str, Any] = {"model_name": model.name, "model_version": _version(model)}
        content |= {"id": body.id} if body.id else {}
        content["outputs"] = [{"name": name, **outputs[name]} for name in wanted]
        return json_response(to_json(content))

    # annotations are names of this module and of this function, which FastAPI looks up in the module alone
    infer.__annotations__ = {"name": str, "request": Request, "body": InferRequest, "return": Response}
    get: dict[str, Any] = {"methods": ["GET"]}
    app.add_api_route("/v2", server, summary="The server", **get)
    app.add_api_route("/v2/health/live", live, summary="Whether the server works", **get)
    app.add_api_route("/v2/health/ready", ready, summary="Whether the server takes requests", **get)
    app.add_api_route("/v2/models/{name}", one_model, summary="Inputs and outputs of a model", **get)
    app.add_api_route("/v2/models/{name}/ready", model_ready, summary="Whether a model takes requests", **get)
    about = InferRequest.__doc__
    app.add_api_route("/v2/models/{name}/infer", infer, methods=["POST"], responses=REFUSALS, summary=about)


def _version(model: ServedModel) -> str:
    return model.identity.sha256[:12]


def _describe_tensors(model: ServedModel) -> dict[str, Any]:
    """Return the metadata of a model; the number of rows is -1, which any number is."""
    content: dict[str, Any] = {"name": model.name, "versions": [_version(model)], "platform": "bertkit"}
    if model.checkpoint is None:
        vectors = {"name": _EMBEDDING, "datatype": _NUMBER, "shape": [-1, -1]}
        return {**content, "inputs": [_tensor("text")], "outputs": [vectors]}
    setup, task = model.checkpoint.setup, model.checkpoint.task
    outputs = [_tensor("prediction") | ({"datatype": _NUMBER} if task.TYPES.get("prediction") is float else {})]
    if "probabilities" in task.COLUMNS.predicted:
        shape, parameters = [-1, len(setup.labels)], {"labels": list(setup.labels)}
        outputs.append({"name": "probabilities", "datatype": _NUMBER, "shape": shape, "parameters": parameters})
    inputs = [_tensor(name) for name in column_types(task, setup.recipe)]
    return {**content, "inputs": inputs, "outputs": outputs}


def _tensor(name: str) -> dict[str, Any]:
    return {"name": name, "datatype": _BYTES, "shape": [-1]}


async def _infer(service: Service, request: Request, model: ServedModel, body: InferRequest) -> dict[str, Any]:
    """Compute the outputs of a request: name -> datatype, shape and data."""
    columns = {tensor.name: _read_column(tensor) for tensor in body.inputs}
    if len(set(map(len, columns.values()))) > 1:
        raise RefusedError(422, "inputs: tensors have different numbers of rows")
    if model.checkpoint is None:
        if list(columns) != ["text"] or model.texts is None:
            raise RefusedError(422, f"inputs: give text; there are {', '.join(columns)}")
        texts = [(text, None) for text in columns["text"]]
        answers = await compute(service, request, model, model.texts, texts, lambda answer: answer[0].tolist())
        return {_EMBEDDING: _numbers(answers)}
    setup, task = model.checkpoint.setup, model.checkpoint.task
    types = column_types(task, setup.recipe)
    for name in columns:
        if name in types and types[name][0] is not Text:
            columns[name] = [_read_json(name, element) for element in columns[name]]
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    try:
        checked = row_schema(model.name, task, setup.recipe).model_validate({"instances": rows})
    except ValidationError as error:
        faults = [{**fault, "loc": ("row", *fault["loc"][1:])} for fault in error.errors()]
        raise RefusedError(422, describe_faults(faults)) from None
    rows = [row.model_dump(exclude_none=True) for row in checked.instances]  # type: ignore[attr-defined]
    predictions = await predict(service, request, model, rows, dict)
    return {name: _to_tensor([record.get(name) for record in predictions], setup.labels) for name in predictions[0]}


def _read_column(tensor: InputTensor) -> list[Any]:
    """Return the values of a column, which clients send flat or as rows of one value each."""
    values = [value[0] if isinstance(value, list) and len(value) == 1 else value for value in tensor.data]
    if tensor.datatype != _BYTES or not all(isinstance(value, str) for value in values):
        raise RefusedError(422, f"inputs: {tensor.name} must be {_BYTES}, and its data strings")
    if tensor.shape not in ([len(values)], [len(values), 1]):
        raise RefusedError(422, f"inputs: {tensor.name} has the shape {tensor.shape}, and {len(values)} values")
    return values


def _read_json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise RefusedError(422, f"inputs: each element of {name} must be JSON, such as a list of words") from None


def _numbers(values: Sequence[Any]) -> dict[str, Any]:
    """Build a tensor of numbers, or of lists of them, which are as long as each other; its data are flat."""
    if values and isinstance(values[0], list):
        flat = [number for row in values for number in row]
        return {"datatype": _NUMBER, "shape": [len(values), len(values[0])], "data": flat}
    return {"datatype": _NUMBER, "shape": [len(values)], "data": list(values)}


def _to_tensor(values: Sequence[Any], labels: Sequence[str]) -> dict[str, Any]:
    """Build the tensor of a field of predictions: numbers, a number per label, texts, or JSON."""
    if all(isinstance(value, float) for value in values):
        return _numbers(values)
    if all(isinstance(value, Mapping) and [*value] == [*labels] for value in values):
        return _numbers([list(value.values()) for value in values])
    texts = [value if isinstance(value, str) else to_json(value) for value in values]
    return {"datatype": _BYTES, "shape": [len(texts)], "data": texts}
