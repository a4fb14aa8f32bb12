"""`bertkit embed`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bertkit.cli import stdio
from bertkit.cli.options import JsonOption
from bertkit.cli.output import print_json, print_line, to_json
from bertkit.cli.progress import TerminalProgress

if TYPE_CHECKING:
    from bertkit.recipe import Data

NAME = "embed"
ORDER = 6
EXAMPLE = "bertkit embed reviews.csv --model demo --output reviews.parquet"

Unit = Literal["text", "word", "token", "target"]
Dtype = Literal["float32", "float16", "int8", "binary"]
Precision = Literal["auto", "fp32", "bf16"]
FROM_MODEL = "the model's"

FileArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="FILE",
        help="Rows to embed: csv, tsv, jsonl, json, parquet, txt (one text per line), ..., or `-` for stdin.",
        show_default=False,
    ),
]
EncoderOption = Annotated[
    str,
    typer.Option(
        "--model",
        help="Encoder: hub name, directory (of sentence-transformers, too), run folder or `demo`.",
        metavar="MODEL",
        show_default=False,
    ),
]
VectorFileOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="File to write: .parquet, .npy, .safetensors or .jsonl.",
        metavar="FILE",
        show_default="JSON lines on stdout",
    ),
]
UnitOption = Annotated[
    Unit,
    typer.Option(
        help="What a vector stands for: text, word, token, or target, the word that the column `target` points to.",
        metavar="UNIT",
    ),
]
PromptOption = Annotated[
    str | None,
    typer.Option(
        help="Name of a prompt of the model, such as query, to put before each text.",
        metavar="NAME",
        show_default=FROM_MODEL,
    ),
]
PromptTextOption = Annotated[
    str | None,
    typer.Option(help="Put this before each text instead, e.g. 'query: '.", metavar="TEXT", show_default=False),
]
PoolingOption = Annotated[
    str | None,
    typer.Option(
        help="How the tokens of a text become one vector: mean, cls, max, lasttoken, ...",
        metavar="MODE",
        show_default=f"{FROM_MODEL}, else mean",
    ),
]
LayersOption = Annotated[
    str, typer.Option(help="Layers to read: last, mean_last_K, sum_last_K, concat_last_K, ...", metavar="LAYERS")
]
NormalizeOption = Annotated[
    bool | None,
    typer.Option("--normalize/--no-normalize", help="Scale vectors to length 1.", show_default=FROM_MODEL),
]
DimensionOption = Annotated[
    int | None,
    typer.Option(
        help="Keep the first N components only, of a model trained for that (Matryoshka).",
        metavar="N",
        min=1,
        show_default=f"{FROM_MODEL}, else all",
    ),
]
TextLengthOption = Annotated[
    int | None, typer.Option(help="Maximum tokens per text.", metavar="N", min=4, show_default=FROM_MODEL)
]
DtypeOption = Annotated[
    Dtype, typer.Option(help="How vectors are stored: float32, float16, int8 or binary.", metavar="DTYPE")
]
PrecisionOption = Annotated[
    Precision, typer.Option(help="How they are computed: fp32, bf16, or auto, by trial.", metavar="PRECISION")
]
ReadingOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Say how FILE is read, e.g. data.delimiter=';'; repeatable.", metavar="KEY=VALUE"),
]


def command(
    file: FileArgument = None,
    model: EncoderOption = ...,  # type: ignore[assignment]
    text: Annotated[str | None, typer.Option(help="Embed one text.", metavar="TEXT", show_default=False)] = None,
    output: VectorFileOption = None,
    column: Annotated[str, typer.Option(help="Column with the texts.", metavar="COLUMN")] = "text",
    unit: UnitOption = "text",
    prompt: PromptOption = None,
    prompt_text: PromptTextOption = None,
    pooling: PoolingOption = None,
    layers: LayersOption = "last",
    normalize: NormalizeOption = None,
    dimension: DimensionOption = None,
    max_length: TextLengthOption = None,
    dtype: DtypeOption = "float32",
    precision: PrecisionOption = "auto",
    changes: ReadingOption = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over; the parts of an interrupted command are deleted.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Turn texts into vectors with an encoder.

    With --output, the same command goes on after an interruption, and the file appears when it is complete.
    """
    from bertkit.errors import UsageError

    if text is not None and file is not None:
        raise UsageError("a FILE and --text", "give one or the other")
    if output is None and dtype != "float32":
        raise UsageError(f"--dtype {dtype} without --output", "name a file with --output")
    from bertkit.vectors.embedder import Embedder
    from bertkit.vectors.embedding.sources import TextSource
    from bertkit.workflows.embed import embed, embed_to_file

    source = TextSource(file, text, read_data_options(column, changes))
    embedder = Embedder(
        model,
        pooling=pooling,
        normalize=normalize,
        dimension=dimension,
        max_length=max_length,
        prompt=prompt,
        prefix=prompt_text,
        layers=layers,
        precision=precision,
    )
    progress = TerminalProgress()
    if output is None:
        print_vectors(embed(embedder, source, unit=unit, progress=progress), as_json=json)
        return
    about = embed_to_file(embedder, source, output, unit=unit, dtype=dtype, fresh=fresh, progress=progress)
    if json:
        print_json({"file": str(output), **about})
    elif about:
        print_line(f"{output}: {about['vectors']:,} vectors of {about['width']:,} dimensions, {dtype}")


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


def print_vectors(records: Iterable[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print vectors as JSON lines, or all of them in one JSON object."""
    if as_json:
        print_json({"vectors": list(records)})
        return
    for record in records:
        print_line(to_json(record))
        if not stdio.is_read():  # as in `bertkit embed ... | head`
            return
