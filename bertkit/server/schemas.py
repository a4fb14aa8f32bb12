"""What requests and answers look like: the rows of a task family, and the shapes that other servers have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, create_model

from bertkit.recipe.records import Recipe
from bertkit.tasks import Task, row_columns


def _check_text(text: str) -> str:
    """Refuse text that `bertkit predict` refuses: with a NUL, or one that JSON can write and UTF-8 cannot."""
    if "\0" in text:
        raise ValueError("a NUL character: remove it")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair is no text") from None
    return text


Text = Annotated[StrictStr, AfterValidator(_check_text)]


_TRIED = {"str", "int", "float", "bool"}


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Answer(BaseModel):
    model_config = ConfigDict(extra="allow")


class ClassifyParameters(_Request):
    """What clients of the Hugging Face hub ask for beside texts."""

    top_k: StrictInt | None = Field(None, ge=1, description="How many labels to tell, the highest first.")


class ClassifyRequest(_Request):
    """Texts to classify, as text-embeddings-inference takes them: one, a pair, or a list of lists of one or two."""

    inputs: Text | list[Text] | list[list[Text]]
    model: Text | None = Field(None, description="Name of the model, where several classify texts.")
    truncate: Literal[True] | None = Field(None, description="Texts are read as in training: that cannot be changed.")
    raw_scores: Literal[False] = False
    parameters: ClassifyParameters | None = Field(
        None, description="With it, a single text has a list of lists too, as in the hub's own API."
    )


class RerankRequest(_Request):
    """A query and the texts to rank, as text-embeddings-inference takes them."""

    query: Text
    texts: list[Text] = Field(min_length=1)
    model: Text | None = Field(None, description="Name of the model, where several rank texts.")
    truncate: Literal[True] | None = Field(None, description="Texts are read as in training: that cannot be changed.")
    raw_scores: Literal[False] = False
    return_text: StrictBool = False


class EmbedRequest(_Request):
    """Texts to embed, as text-embeddings-inference takes them."""

    inputs: Text | list[Text]
    model: Text | None = Field(None, description="Name of the model, where several embed texts.")
    normalize: StrictBool = Field(True, description="Whether vectors have length 1.")
    truncate: Literal[True] | None = Field(None, description="Texts are read as in training: that cannot be changed.")
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


class Refusal(_Answer):
    """Why there is no answer."""

    error: str
    error_type: str


def column_types(task: Task, recipe: Recipe) -> dict[str, tuple[Any, bool]]:
    """Return the columns of a row to predict: name -> its type, and whether it must be there.

    Of two columns that stand for each other, such as words and plain text, neither must.
    """
    columns, own = task.COLUMNS, task.TYPES
    return {
        name: (own.get(name, list[Text] if name in columns.lists else Text), must and name not in columns.text_instead)
        for name, must in row_columns(task, recipe).items()
    }


def form_fields(task: Task, recipe: Recipe) -> list[dict[str, Any]]:
    """Describe the columns of a row for a form: ``name``, ``type`` (text, texts or json), and ``required``."""
    plain = {Text: "text", list[Text]: "texts"}
    return [
        {
            "name": name,
            "type": next((word for one, word in plain.items() if one == of_column), "json"),
            "required": required,
        }
        for name, (of_column, required) in column_types(task, recipe).items()
    ]


def row_schema(name: str, task: Task, recipe: Recipe) -> type[BaseModel]:
    """Build the schema of a request with rows of a task family, in the shape of KServe: ``instances``."""
    fields: dict[str, Any] = {
        column: (of_column, ...) if required else (of_column | None, None)
        for column, (of_column, required) in column_types(task, recipe).items()
    }
    row = create_model(f"{name}_row", __base__=_Request, **fields)
    return create_model(f"{name}_request", __base__=_Request, instances=(list[row], Field(min_length=1)))


def answer_schema(name: str, task: Task) -> type[BaseModel]:
    """Build the schema of the answer to `row_schema`: ``predictions``, in the order of the rows."""
    own = {column: of_column for column, of_column in task.TYPES.items() if column not in task.COLUMNS.names}
    fields: dict[str, Any] = {
        column: (own.get(column, Any), ...) if column == "prediction" else (own.get(column, Any), None)
        for column in dict.fromkeys(("prediction", *task.COLUMNS.predicted, *own))
    }
    record = create_model(f"{name}_prediction", __base__=_Answer, **fields)
    return create_model(f"{name}_answer", __base__=_Answer, predictions=(list[record], ...))


def classifies_texts(task: Task) -> bool:
    """Tell whether a family reads a text and answers with the probabilities of labels."""
    return task.COLUMNS.given == ("text",) and "probabilities" in task.COLUMNS.predicted


def pair_to_rank(task: Task) -> tuple[str, str] | None:
    """Return the two columns of a family that answers with a number for two texts; None for others."""
    given = task.COLUMNS.given
    return (given[0], given[1]) if len(given) == 2 and task.TYPES.get("prediction") is float else None


def describe_faults(faults: Sequence[Mapping[str, Any]]) -> str:
    """Write what is wrong with a request in one line: the first fault that pydantic lists of the first value.

    Of the types that a value may have, the one that fits best has the fault that is furthest inside.

    >>> describe_faults([{"loc": ("instances", 0, "text"), "msg": "Field required"}])
    'instances[0].text: Field required'
    """
    of_value = [fault for fault in faults if fault["loc"][:1] == faults[0]["loc"][:1]]
    first = max(of_value, key=lambda fault: len(fault["loc"]))
    # pydantic adds which type of several it tried, such as `list[str]`
    parts = [part for part in first["loc"] if isinstance(part, int) or (part.isidentifier() and part not in _TRIED)]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")
    message = str(first["msg"]).removeprefix("Value error, ")
    return f"{where}: {message}" if where else message
