"""The options that commands share to read texts and to compute their vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from bertkit.cli.options import option

if TYPE_CHECKING:
    from bertkit.recipe import Data

FROM_MODEL = "the model's"

ColumnOption = Annotated[str, option("Column with the texts.", "NAME")]
EncoderOption = Annotated[
    str, option("Encoder: hub name, directory (of sentence-transformers, too), run folder or `demo`.", "MODEL")
]
PoolingOption = Annotated[
    str | None,
    option(
        "How the tokens of a text become one vector: mean, cls, max, lasttoken, ...", "MODE", f"{FROM_MODEL}, else mean"
    ),
]
DimensionOption = Annotated[
    int | None,
    option(
        "Keep the first N components only, of a model trained for that (Matryoshka).",
        "N",
        f"{FROM_MODEL}, else all",
        min=1,
    ),
]
TextLengthOption = Annotated[int | None, option("Maximum tokens per text.", "N", FROM_MODEL, min=4)]
PrecisionOption = Annotated[
    Literal["auto", "fp32", "bf16"], option("How vectors are computed: fp32, bf16, or auto, by trial.", "PRECISION")
]
PromptOption = Annotated[
    str | None, option("Name of a prompt of the model, such as query, to put before each text.", "NAME", FROM_MODEL)
]
PromptTextOption = Annotated[str | None, option("Put this before each text instead, e.g. 'query: '.", "TEXT")]
DataSettingsOption = Annotated[
    list[str] | None,
    option("Say how FILE is read, e.g. data.delimiter=';'; repeatable.", "KEY=VALUE", names=("--set",)),
]


def read_data_options(column: str, changes: list[str] | None) -> Data:
    """Return how a file is read, from a column of texts and `--set data.KEY=VALUE`.

    Raises:
        RecipeError: a key that is not of `data`, or an unknown one.
    """
    from bertkit.errors import RecipeError
    from bertkit.recipe import load_recipe, parse_changes

    settings = parse_changes(changes or [])
    other = next((key for key in settings if not key.startswith("data.")), None)
    if other is not None:
        raise RecipeError(f"--set {other}: there is no recipe here", "only the keys of data can be set")
    texts = {"data.columns.text": column} if column != "text" else {}
    return load_recipe("classify", {**texts, **settings}).data
