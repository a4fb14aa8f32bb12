"""Schemas of requests: rows of a task family, and the requests of text-embeddings-inference and OpenAI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, create_model
from starlette.exceptions import HTTPException

from bertkit.recipe.records import Recipe
from bertkit.tasks import Task, get_input_columns


def _check_text(text: str) -> str:
    """Reject text that `bertkit predict` rejects: with a NUL, or with half of a surrogate pair."""
    if "\0" in text:
        raise ValueError("a NUL character: remove it")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair is not text") from None
    return text


Text = Annotated[StrictStr, AfterValidator(_check_text)]
Model = Annotated[Text | None, Field(description="Name of the model, if several models answer at this address.")]
Truncate = Annotated[Literal[True] | None, Field(description="Texts are truncated as in training.")]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ClassifyParameters(_Request):
    """Parameters that clients of the Hugging Face Hub send next to texts."""

    top_k: StrictInt | None = Field(None, ge=1, description="Number of labels to return, the most probable first.")


class ClassifyRequest(_Request):
    """Texts to classify, as text-embeddings-inference takes them: one, a pair, or a list of lists of one or two."""

    inputs: Text | list[Text] | list[list[Text]]
    model: Model = None
    truncate: Truncate = None
    raw_scores: Literal[False] = False
    parameters: ClassifyParameters | None = Field(
        None, description="With it, the answer to a single text is a list of lists too, as in the API of the Hub."
    )


class RerankRequest(_Request):
    """A query and the texts to rank, as text-embeddings-inference takes them."""

    query: Text
    texts: list[Text] = Field(min_length=1)
    model: Model = None
    truncate: Truncate = None
    raw_scores: Literal[False] = False
    return_text: StrictBool = False


class EmbedRequest(_Request):
    """Texts to embed, as text-embeddings-inference takes them."""

    inputs: Text | list[Text]
    model: Model = None
    normalize: StrictBool = Field(True, description="Whether vectors have length 1.")
    truncate: Truncate = None
    prompt_name: Text | None = None
    dimensions: StrictInt | None = Field(None, ge=1)


class EmbeddingsRequest(BaseModel):
    """Texts to embed, as OpenAI's API takes them."""

    model_config = ConfigDict(strict=True)

    input: Text | list[Text]
    model: Text
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: StrictInt | None = Field(None, ge=1)
    user: Text | None = None


def column_types(task: Task, recipe: Recipe) -> dict[str, tuple[Any, bool]]:
    """Return the columns of a row to predict: name -> its type, and whether it is required.

    If two columns replace each other, such as words and plain text, both are optional.
    """
    columns, types = task.COLUMNS, dict[str, tuple[Any, bool]]()
    for name, required in get_input_columns(task, recipe).items():
        text = list[Text] if name in columns.lists else Text
        types[name] = task.TYPES.get(name, text), required and name not in columns.fallback_columns
    return types


def form_fields(task: Task, recipe: Recipe) -> list[dict[str, Any]]:
    """Describe the columns of a row for a form: ``name``, ``type`` (text, texts or json), and ``required``."""
    # The user of the form types a text, a list of texts with one per line, or anything else as JSON.
    types = column_types(task, recipe).items()
    return [
        {"name": name, "type": {Text: "text", list[Text]: "texts"}.get(column, "json"), "required": required}
        for name, (column, required) in types
    ]


def row_schema(name: str, task: Task, recipe: Recipe) -> type[BaseModel]:
    """Build the schema of a request with rows of a task family, in the format of KServe: ``instances``."""
    # pydantic reads `...` as "required".
    fields: dict[str, Any] = {
        column: (type_, ...) if required else (type_ | None, None)
        for column, (type_, required) in column_types(task, recipe).items()
    }
    row = create_model(f"{name}_row", __base__=_Request, **fields)
    return create_model(f"{name}_request", __base__=_Request, instances=(list[row], Field(min_length=1)))


def classifies_texts(task: Task) -> bool:
    """Return whether a task family reads one text and predicts the probabilities of labels."""
    return task.COLUMNS.inputs == ("text",) and "probabilities" in task.COLUMNS.predicted


def pair_to_rank(task: Task) -> tuple[str, str] | None:
    """Return both columns of a task family that predicts a number for two texts, or None for other families."""
    inputs = task.COLUMNS.inputs
    return (inputs[0], inputs[1]) if len(inputs) == 2 and task.TYPES.get("prediction") is float else None


def explain_errors(errors: Sequence[Mapping[str, Any]]) -> HTTPException:
    """Turn pydantic's errors about the body of a request into one error of one line.

    >>> explain_errors([{"loc": ("body", "instances", 0, "text"), "msg": "Field required", "type": "missing"}]).detail
    'instances[0].text: Field required'
    """
    # 1. Describe errors of the complete body: it is not JSON, or has another content type.
    error = errors[0]
    location: tuple[Any, ...] = error["loc"]
    if error["type"] == "json_invalid":
        return HTTPException(400, f"the body is not JSON: {error['ctx']['error']} at character {location[1]}")
    if isinstance(error.get("input"), bytes) or (error["type"] == "missing" and len(location) == 1):
        return HTTPException(422, "send JSON, with the header Content-Type: application/json")
    # 2. Choose an error. If a value can have several types, the error of the type that fits best is the deepest.
    error = max((error for error in errors if error["loc"][:2] == location[:2]), key=lambda error: len(error["loc"]))
    # 3. Write its path without the types that pydantic adds, such as `list[str]`.
    types = {"str", "int", "float", "bool"}
    parts = [part for part in error["loc"][1:] if isinstance(part, int) or (part.isidentifier() and part not in types)]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")
    message = str(error["msg"]).removeprefix("Value error, ")
    return HTTPException(422, f"{path}: {message}" if path else message)
