"""`bertkit search query`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.cli import stdio
from bertkit.cli.commands.search.add import IndexArgument, MovedModelOption
from bertkit.cli.commands.search.build import ColumnOption
from bertkit.cli.options import JsonOption
from bertkit.cli.output import print_file, print_json, print_line, to_json
from bertkit.cli.progress import TerminalProgress

NAME = "query"
ORDER = 4
EXAMPLE = 'bertkit search query index "how to open a file" -k 3'


def command(
    index: IndexArgument,
    queries: Annotated[
        list[str] | None, typer.Argument(metavar="QUERY...", help="What to search for.", show_default=False)
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            help="File with queries, one per row, in any format that `predict` reads; `-` for stdin.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", "--top", help="Results per query.", metavar="K", min=1)] = 10,
    column: ColumnOption = "text",
    model: MovedModelOption = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            help="Name of the prompt of the queries; another than the index was built for is refused.",
            metavar="NAME",
            show_default="the index's",
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare the checksums of all files of the index first.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="File to write: .jsonl, .csv, .tsv or .parquet.",
            metavar="FILE",
            show_default="JSON lines on stdout",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Find the rows of an index that are nearest to queries.

    The output is one record per result, the nearest first: the query, rank, score, and the columns of the row.
    """
    from bertkit.errors import UsageError

    if (file is None) == (not queries):
        raise UsageError(
            "no query" if file is None else "queries and a --file", 'give e.g. "how to open a file", or --file'
        )
    from bertkit.vectors.index.rows import read_queries
    from bertkit.workflows.search import query, query_to_file

    asked = read_queries(file, column) if file is not None else (({"query": text}, text) for text in queries or [])
    progress = TerminalProgress()
    records = query(index, asked, k=k, model=model, prompt=prompt, verify=verify, progress=progress)
    if output is None:
        print_results(records, as_json=json)
    else:
        print_file(output, query_to_file(records, output, index=index, source=file), as_json=json)


def print_results(records: Iterable[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print results as JSON lines, or all of them in one JSON object."""
    if as_json:
        print_json({"results": list(records)})
        return
    for record in records:
        print_line(to_json(record))
        if not stdio.is_read():
            return
