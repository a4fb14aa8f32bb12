"""`bertkit similar`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.cli import stdio
from bertkit.cli.options import JsonOption
from bertkit.cli.output import print_file, print_json, print_line, to_json
from bertkit.cli.progress import TerminalProgress

NAME = "similar"
ORDER = 6
EXAMPLE = 'bertkit similar "How old are you?" "What is your age?" --model sentence-transformers/all-MiniLM-L6-v2'

TextsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="TEXT TEXT | FILE",
        help="Two texts; or a file with a pair per row, in any format that `predict` reads, or `-` for stdin.",
        show_default=False,
    ),
]
ModelOption = Annotated[
    str,
    typer.Option(
        help="Encoder: hub name, directory (of sentence-transformers, too), run folder or `demo`.",
        metavar="MODEL",
        show_default=False,
    ),
]
ColumnOption = Annotated[str, typer.Option(help="Column with the first texts.", metavar="NAME")]
PairColumnOption = Annotated[str, typer.Option("--pair-column", help="Column with the second texts.", metavar="NAME")]
PoolingOption = Annotated[
    str | None,
    typer.Option(help="mean, cls, max, ...", metavar="MODE", show_default="the model's, or mean"),
]
PromptOption = Annotated[
    str | None,
    typer.Option(
        help="Name of a prompt of the model to put before each text.", metavar="NAME", show_default="the model's"
    ),
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="File to write: .jsonl, .csv, .tsv or .parquet.",
        metavar="FILE",
        show_default="JSON lines on stdout",
    ),
]


def command(
    texts: TextsArgument,
    model: ModelOption,
    column: ColumnOption = "text",
    pair_column: PairColumnOption = "text_pair",
    pooling: PoolingOption = None,
    prompt: PromptOption = None,
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """Say how similar two texts are: the cosine of their vectors.

    For a file, the output is one record per row, in the order of the rows, with the column `cosine`.
    """
    from bertkit.errors import UsageError
    from bertkit.vectors.embedder import Embedder
    from bertkit.workflows.similar import read_pairs, similar, similar_to_file

    if len(texts) > 2:
        raise UsageError(f"{len(texts)} texts", "give two, or a file with a pair per row")
    if len(texts) == 2 and output is not None:
        raise UsageError("--output with two texts", "it is for the pairs of a file")
    if not all(text.strip() for text in texts):
        raise UsageError("an empty text", "give two texts, or a file")
    embedder, progress = Embedder(model, pooling=pooling, prompt=prompt), TerminalProgress()
    if len(texts) == 2:
        first, second = texts
        (result,) = similar(embedder, [({"text": first, "text_pair": second}, first, second)], progress=progress)
        if json:
            print_json(result)
        else:
            print_line(f"{result['cosine']:.4f}")
        return
    pairs = read_pairs(texts[0], (column, pair_column))
    if output is not None:
        rows = similar_to_file(embedder, pairs, output, source=texts[0], progress=progress)
        print_file(output, rows, as_json=json)
        return
    print_compared(similar(embedder, pairs, progress=progress), as_json=json)


def print_compared(records: Iterable[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print rows as JSON lines, or all of them in one JSON object."""
    if as_json:
        print_json({"pairs": list(records)})
        return
    for record in records:
        print_line(to_json(record))
        if not stdio.is_read():
            return
