"""`bertkit embed`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from bertkit.cli.options import (
    FROM_MODEL,
    ColumnOption,
    DimensionOption,
    EncoderOption,
    PoolingOption,
    PrecisionOption,
    PromptOption,
    PromptTextOption,
    RowsFileArgument,
    ShardOption,
    TextLengthOption,
    TextSettingsOption,
    flag,
    option,
    output_option,
    read_data_options,
)
from bertkit.cli.output import print_line, print_records, print_result
from bertkit.errors import UsageError

ORDER = 40
EXAMPLE = "bertkit embed reviews.csv --column review --model demo --output reviews.parquet"

Unit = Literal["text", "word", "token", "target"]
Dtype = Literal["float32", "float16"]

VectorFileOption = Annotated[
    Path | None, output_option("File to write: .npy or .parquet.", "FILE", "JSON lines on stdout")
]
UnitOption = Annotated[
    Unit,
    option(
        "What a vector stands for: text, word, token, or target, the word that the column `target` points to.", "UNIT"
    ),
]
LayersOption = Annotated[str, option("Layers to read: last, mean_last_K, sum_last_K, concat_last_K, ...", "LAYERS")]


def command(
    file: RowsFileArgument = None,
    model: EncoderOption = ...,  # type: ignore[assignment]
    text: Annotated[str | None, option("Embed one text.", "TEXT")] = None,
    output: VectorFileOption = None,
    column: ColumnOption = "text",
    unit: UnitOption = "text",
    prompt: PromptOption = None,
    prompt_text: PromptTextOption = None,
    pooling: PoolingOption = None,
    layers: LayersOption = "last",
    normalize: Annotated[
        bool | None, option("Scale vectors to length 1.", default=FROM_MODEL, names=("--normalize/--no-normalize",))
    ] = None,
    dimension: DimensionOption = None,
    max_length: TextLengthOption = None,
    dtype: Annotated[Dtype, option("Type of the stored numbers: float32 or float16.", "DTYPE")] = "float32",
    precision: PrecisionOption = "auto",
    shard: ShardOption = None,
    changes: TextSettingsOption = None,
    fresh: Annotated[bool, flag("--fresh", "Start over; the parts of an interrupted command are deleted.")] = False,
) -> None:
    """Turn texts into vectors with an encoder.

    With --output, the same command goes on after an interruption, and the file appears when it is complete.
    """
    if text is not None and file is not None:
        raise UsageError("a FILE and --text", "give one or the other")
    # JSON has numbers only, so there is no dtype without a file.
    if output is None and dtype != "float32":
        raise UsageError(f"--dtype {dtype} without --output", "name a file with --output")
    from bertkit.vectors.embedder import Embedder
    from bertkit.vectors.text_files import TextSource
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
    if output is None:
        print_records("vectors", embed(embedder, source, unit=unit))
        return
    about = embed_to_file(embedder, source, output, unit=unit, dtype=dtype, fresh=fresh)

    def show(_: object) -> None:
        if about:
            print_line(f"{output}: {about['vectors']:,} vectors of {about['width']:,} dimensions, {dtype}")

    print_result({"file": output, **about}, show)
