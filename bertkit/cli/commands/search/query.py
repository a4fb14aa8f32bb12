"""`bertkit search query`."""

from __future__ import annotations

from itertools import chain
from typing import Annotated, Literal

from bertkit.cli.commands.search.add import IndexArgument, MovedModelOption
from bertkit.cli.options import (
    ColumnOption,
    DataSettingsOption,
    RecordsOption,
    argument,
    flag,
    option,
    read_data_options,
)
from bertkit.cli.output import print_records
from bertkit.errors import UsageError

ORDER = 4
EXAMPLE = 'bertkit search query index "how to open a file" -k 3'

RerankOption = Annotated[
    str | None,
    option(
        "Rank anew by this model: run folder of the recipe `rerank` or `late-interaction`, directory or hub name.",
        "MODEL",
    ),
]
CandidatesOption = Annotated[int, option("The best results that --rerank scores.", "N", min=1)]


def command(
    index: IndexArgument,
    queries: Annotated[list[str] | None, argument("What to search for.", "QUERY...")] = None,
    file: Annotated[
        str | None, option("File with queries, one per row, in any format that `predict` reads; `-` for stdin.", "FILE")
    ] = None,
    k: Annotated[int, option("Results per query.", "K", names=("-k", "--top"), min=1)] = 10,
    by: Annotated[
        Literal["vectors", "words", "hybrid"],
        option("Rank by vectors, by words (BM25), or by both (reciprocal rank fusion)."),
    ] = "vectors",
    rerank: RerankOption = None,
    candidates: CandidatesOption = 100,
    column: ColumnOption = "text",
    model: MovedModelOption = None,
    prompt: Annotated[
        str | None,
        option(
            "Name of the prompt of the queries; another than the index was built for is refused.", "NAME", "the index's"
        ),
    ] = None,
    verify: Annotated[bool, flag("--verify", "Compare the checksums of all files of the index first.")] = False,
    output: RecordsOption = None,
    changes: DataSettingsOption = None,
) -> None:
    """Find the rows of an index that fit queries best.

    The output is one record per result, the best first: the query, rank, score, and the columns of the row. Beside a
    score stand the similarity of the vectors and the BM25 of the words.
    """
    from bertkit.recipe import typed_path

    if (file is None) == (not queries):
        what = "no query" if file is None else "queries and a --file"
        raise UsageError(what, 'give e.g. "how to open a file", or --file')
    from bertkit.vectors.reranker import Reranker
    from bertkit.vectors.search.index import Index
    from bertkit.vectors.search.ranking import SearchMethod
    from bertkit.vectors.search.rows import read_queries
    from bertkit.workflows.search import query

    # Queries are read as they are answered, so that a file of millions needs no memory.
    asked = (
        read_queries(file, column, read_data_options(column, changes))
        if file is not None
        else (({"query": text}, text) for text in queries or [])
    )
    method = SearchMethod(by, k, Reranker(rerank) if rerank else None, candidates)
    opened = Index.open(typed_path(index), verify=verify)
    records = query(opened, asked, method, model=model, prompt=prompt)
    named = [] if file is None else [("the file of queries", typed_path(file))]
    of_index = (("a file of the index", path) for path in opened.folder.rglob("*") if path.is_file())
    print_records("results", records, output, chain(named, of_index))
