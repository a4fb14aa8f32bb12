"""`bertkit embed` and `bertkit similar`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from bertkit.cli.options import (
    ColumnOption,
    OptionalRowsFileArgument,
    RecordsOption,
    ShardOption,
    TextSettingsOption,
    argument,
    embedder_options,
    flag,
    option,
    output_option,
    read_data_options,
)
from bertkit.cli.output import print_line, print_records, print_result
from bertkit.errors import UsageError

ORDER = 40


Unit = Literal["text", "word", "token", "target"]
Dtype = Literal["float32", "float16"]
VectorFileOption = Annotated[
    Path | None, output_option("File to write: .npy or .parquet.", "FILE", "JSON lines on stdout")
]
UnitOption = Annotated[
    Unit,
    option("Unit to embed: text, word, token, or target (the word that column `target` marks).", "UNIT"),
]


@embedder_options
def embed_texts(
    embedder: Any,
    file: OptionalRowsFileArgument = None,
    text: Annotated[str | None, option("Text to embed, instead of a FILE.", "TEXT")] = None,
    output: VectorFileOption = None,
    column: ColumnOption = "text",
    unit: UnitOption = "text",
    dtype: Annotated[Dtype, option("Data type in the file: float32 or float16.", "DTYPE")] = "float32",
    shard: ShardOption = None,
    changes: TextSettingsOption = None,
    restart: Annotated[bool, flag("--restart", "Start over; the parts of an interrupted command are deleted.")] = False,
) -> None:
    """Turn texts into vectors with an encoder.

    With --output, the same command resumes after an interruption, and the file appears when it is complete.
    """
    if text is not None and file is not None:
        raise UsageError("FILE and --text are both given", "leave one of them out")
    # JSON numbers have no data type.
    if output is None and dtype != "float32":
        raise UsageError(f"--dtype {dtype} without --output", "name a file with --output")
    from bertkit.vectors.text_files import TextSource
    from bertkit.workflows.embed import embed, embed_to_file

    source = TextSource(file, text, read_data_options(column, changes))
    if output is None:
        print_records("vectors", embed(embedder, source, unit=unit))
        return
    file_info = embed_to_file(embedder, source, output, unit=unit, dtype=dtype, restart=restart)

    # Only the last shard to finish has `file_info`, about the vectors of all shards.
    def show(_: object) -> None:
        if file_info:
            print_line(f"{output}: {file_info['vectors']:,} vectors of {file_info['width']:,} dimensions, {dtype}")

    print_result({"file": output, **file_info}, show)


@embedder_options
def compare_texts(
    texts: Annotated[
        list[str],
        argument(
            "Two texts, or a file with a pair per row in any format of `predict`; `-` for stdin.",
            "TEXT TEXT | FILE",
        ),
    ],
    embedder: Any,
    column: Annotated[str, option("Column with the first texts.", "NAME")] = "text",
    pair_column: Annotated[str, option("Column with the second texts.", "NAME")] = "text_pair",
    output: RecordsOption = None,
) -> None:
    """Compute the similarity of two texts, as the cosine of their vectors.

    For a file, the output is one record per row, in the order of the rows, with the column `cosine`.
    """
    from bertkit.recipe.sections import expand_path
    from bertkit.workflows.embed import compute_similarity, read_pairs

    if len(texts) > 2:
        raise UsageError(f"{len(texts)} texts instead of two", "name a file with a pair per row")
    if len(texts) == 2 and output is not None:
        raise UsageError("--output with two texts", "leave it out, or name a file of pairs")
    if not all(text.strip() for text in texts):
        raise UsageError("one of the texts is empty", "give two texts, or a file")
    if len(texts) == 2:
        first, second = texts
        (result,) = compute_similarity(embedder, [({"text": first, "text_pair": second}, first, second)])
        print_result(result, lambda _: print_line(f"{result['cosine']:.4f}"))
        return
    # A single argument is a file.
    pairs = read_pairs(texts[0], (column, pair_column))
    records = compute_similarity(embedder, pairs)
    print_records("pairs", records, output, [("the file of pairs", expand_path(texts[0]))])


_QUESTIONS = '"How old are you?" "What is your age?"'
COMMANDS = {
    "embed": (embed_texts, "bertkit embed reviews.csv --column review --model demo --output reviews.parquet"),
    "similar": (compare_texts, f"bertkit similar {_QUESTIONS} --model sentence-transformers/all-MiniLM-L6-v2"),
}
