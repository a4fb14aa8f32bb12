"""`bertkit search`: build and change an index of texts, and query it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from bertkit.cli.options import (
    FROM_MODEL,
    ColumnOption,
    DataSettingsOption,
    DimensionOption,
    EncoderOption,
    PoolingOption,
    PrecisionOption,
    RecordsOption,
    TextLengthOption,
    argument,
    check_unused_options,
    flag,
    option,
    output_option,
    read_data_options,
)
from bertkit.cli.output import format_count, format_difference, print_records, print_result, print_table, print_text
from bertkit.errors import UsageError

if TYPE_CHECKING:
    from bertkit.workflows.search import IndexReport, SearchScores

ORDER = 42
HELP = (
    "Search texts by meaning.\n\n"
    "Start with: bertkit search build texts.txt --model MODEL --output index, then "
    'bertkit search query index "how to open a file"'
)


PassageTokensOption = Annotated[
    int | None,
    option("Maximum tokens per passage, with special tokens and prompt.", "N", "256, or the model's maximum"),
]
OverlapOption = Annotated[
    int | None,
    option("Maximum tokens to repeat from the end of the previous passage, in complete sentences.", "N", "0"),
]
SkipEmptyOption = Annotated[bool, flag("--skip-empty", "Skip rows without text; otherwise, they are an error.")]
TextsArgument = Annotated[
    str,
    argument("File with rows (csv, jsonl, parquet, conll, txt, ...) or folder of documents (txt, md, html).", "FILE"),
]
DocumentPromptOption = Annotated[
    str | None, option("Name of the model's prompt for the texts.", "NAME", "document or passage, if the model has it")
]


def build_index(
    file: TextsArgument,
    model: EncoderOption,
    output: Annotated[Path, output_option("New folder for the index.", "INDEX")],
    column: ColumnOption = "text",
    skip_empty: SkipEmptyOption = False,
    pooling: PoolingOption = None,
    dimension: DimensionOption = None,
    max_length: TextLengthOption = None,
    document_prompt: DocumentPromptOption = None,
    query_prompt: Annotated[
        str | None, option("Name of the model's prompt for queries.", "NAME", "query, if the model has it")
    ] = None,
    similarity: Annotated[str | None, option("Similarity of vectors: cosine or dot.", "NAME", FROM_MODEL)] = None,
    precision: PrecisionOption = "auto",
    passages: Annotated[
        bool, flag("--passages", "Split texts into passages that fit the model, and index the passages.")
    ] = False,
    passage_tokens: PassageTokensOption = None,
    overlap: OverlapOption = None,
    changes: DataSettingsOption = None,
) -> None:
    """Build an index of texts: their rows, vectors and words (BM25).

    After an interruption, the same command resumes the build.
    """
    if not passages:
        passage_options = {"--passage-tokens": passage_tokens, "--overlap": overlap}
        check_unused_options(passage_options, "without --passages", "add --passages")
    from bertkit.vectors.embedder import Embedder
    from bertkit.vectors.search.rows import TextRows
    from bertkit.workflows.search import build

    report = build(
        TextRows.open(file, column, skip_empty=skip_empty, data=read_data_options(column, changes)),
        Embedder(model, pooling=pooling, dimension=dimension, max_length=max_length, precision=precision),
        output,
        prompts={"document": document_prompt, "query": query_prompt},
        similarity=similarity,
        passages={"tokens": passage_tokens, "overlap": overlap or 0} if passages else None,
    )
    print_change(report, "added")


def print_change(report: IndexReport, verb: str) -> None:
    """Print the size of a changed index, and the fraction of the text that reaches the model."""

    def print_index(_: object) -> None:
        unit = "passage" if report.passages else "row"
        coverage = report.coverage
        changed, rows = format_count(report.changed, unit), format_count(report.rows, unit)
        print_text(
            f"{report.index}: {changed} {verb}; {rows}, vectors of {report.dimension} dimensions "
            f"({report.similarity}), {report.bytes / 1e6:,.1f} MB"
        )
        note = ""
        if report.passages:
            note = f", in passages of {format_count(coverage.texts, 'text')}"
        elif coverage.truncated:
            note = f": {coverage.truncated:,} of {coverage.texts:,} texts are truncated to {report.max_length} tokens; "
            note += "--passages splits them"
        if verb == "added":
            print_text(f"  {coverage} of the text reaches the model{note}")

    print_result({verb if name == "changed" else name: value for name, value in vars(report).items()}, print_index)


IndexArgument = Annotated[str, argument("Folder that `search build` wrote.", "INDEX")]
MovedModelOption = Annotated[str | None, option("New location of the index's model.", "MODEL", "as in the index")]


def add_texts(
    index: IndexArgument,
    file: TextsArgument,
    column: ColumnOption = "text",
    skip_empty: SkipEmptyOption = False,
    model: MovedModelOption = None,
    changes: DataSettingsOption = None,
) -> None:
    """Add texts to an index.

    Rows without ids are numbered. An id that the index already has is an error. A file is never added twice.
    """
    from bertkit.vectors.search.rows import TextRows
    from bertkit.workflows.search import add

    rows = TextRows.open(file, column, skip_empty=skip_empty, data=read_data_options(column, changes))
    print_change(add(index, rows, model=model), "added")


def delete_rows(
    index: IndexArgument,
    ids: Annotated[list[str], option("Id of a row, or of a document in passages; repeatable.", "ID", names=("--id",))],
) -> None:
    """Delete rows from an index.

    New rows can reuse their ids. The files do not become smaller; for that, build the index again.
    """
    from bertkit.workflows.search import delete

    print_change(delete(index, ids), "deleted")


RerankOption = Annotated[
    str | None,
    option("Reranker: run of the recipe `rerank` or `late-interaction`, directory or Hub name.", "MODEL"),
]
CandidatesOption = Annotated[int, option("Number of results that --rerank scores.", "N", min=1)]


def query_index(
    index: IndexArgument,
    queries: Annotated[list[str] | None, argument("Texts to search for.", "QUERY")] = None,
    file: Annotated[
        str | None, option("File with queries, one per row, in any format that `predict` reads; `-` for stdin.", "FILE")
    ] = None,
    k: Annotated[int, option("Number of results per query.", "K", names=("-k", "--top"), min=1)] = 10,
    rank_by: Annotated[
        Literal["vectors", "words", "hybrid"],
        option("Ranking: by vectors, words (BM25) or hybrid (reciprocal rank fusion of both).", "METHOD"),
    ] = "vectors",
    rerank: RerankOption = None,
    candidates: CandidatesOption = 100,
    column: ColumnOption = "text",
    model: MovedModelOption = None,
    prompt: Annotated[
        str | None,
        option("Name of the prompt for queries, which must be the one in the index.", "NAME", "from the index"),
    ] = None,
    verify: Annotated[bool, flag("--verify", "Verify the checksums of all index files first.")] = False,
    output: RecordsOption = None,
    changes: DataSettingsOption = None,
) -> None:
    """Find the rows of an index that match queries best.

    Writes one record per result, the best first: query, rank, score, and the columns of the row. The record also has
    the similarity of the vectors and the BM25 of the words, unless one of them is the score.
    """
    from bertkit.recipe.sections import expand_path

    if (file is None) == (not queries):
        message = "no query is given" if file is None else "QUERY and --file are both given"
        raise UsageError(message, 'give either a QUERY such as "how to open a file" or --file')
    from bertkit.vectors.reranker import Reranker
    from bertkit.vectors.search.index import Index
    from bertkit.vectors.search.ranking import SearchMethod
    from bertkit.vectors.search.rows import read_queries
    from bertkit.workflows.search import query

    # Queries are read one at a time, so that a large file needs no memory.
    requests = (
        read_queries(file, column, read_data_options(column, changes))
        if file is not None
        else (({"query": text}, text) for text in queries or [])
    )
    method = SearchMethod(rank_by, k, Reranker(rerank) if rerank else None, candidates)
    opened_index = Index.open(expand_path(index), verify=verify)
    records = query(opened_index, requests, method, model=model, prompt=prompt)
    inputs = [] if file is None else [("the file of queries", expand_path(file))]
    # The files of the index count as inputs, because an --output inside the index would damage it.
    inputs += [("a file of the index", path) for path in opened_index.folder.rglob("*") if path.is_file()]
    print_records("results", records, output, inputs)


_METRIC = "ndcg@10"
"""Metric whose gains are printed."""


def evaluate_index(
    index: IndexArgument,
    file: Annotated[
        str,
        argument(
            "Rows with the columns query, relevant (one or more ids) and optionally grade.",
            "FILE",
        ),
    ],
    rerank: RerankOption = None,
    candidates: CandidatesOption = 100,
    limit: Annotated[int | None, option("Use only the first N queries.", "N", "all", min=1)] = None,
    model: MovedModelOption = None,
) -> None:
    """Score the rankings of an index: by words, by vectors, by both, and reranked.

    Prints nDCG@10, MRR@10, MAP@100 and recall, with 95% intervals over queries. The column `relevant` has ids of rows
    or documents, and `grade` the degree of their relevance.
    """
    from bertkit.vectors.reranker import Reranker
    from bertkit.workflows.search import evaluate

    scores = evaluate(
        index, file, reranker=Reranker(rerank) if rerank else None, candidates=candidates, limit=limit, model=model
    )
    print_result(scores, print_scores)


def print_scores(result: SearchScores) -> None:
    """Print the scores of each ranking, and their intervals."""
    # Gold relevance is per document, so passages of one document must not count several times.
    rows = "passages; documents are ranked by their best" if result.by_document else "rows"
    print_text(f"{result.index}: {result.queries:,} queries, {result.rows:,} {rows}")
    rankings = result.rankings
    print_table("scores", [{"ranking": ranking.ranking, **ranking.scores} for ranking in rankings])
    intervals = [{"ranking": ranking.ranking, **ranking.intervals} for ranking in rankings]
    print_table("95% intervals over queries", intervals)
    gains = [
        {
            "ranking": ranking.ranking,
            "over": previous.ranking,
            _METRIC: format_difference(ranking.gains[_METRIC]),
            "95% interval": ranking.gain_intervals[_METRIC],
        }
        # Rankings are in the order words, vectors, hybrid, reranked; each is compared with the previous one.
        for previous, ranking in pairwise(rankings)
    ]
    print_table("gains, query by query", gains)


def list_passages(
    file: TextsArgument,
    model: Annotated[
        str, option("Encoder that counts the tokens: Hub name, directory, run folder or `demo`.", "MODEL")
    ],
    column: ColumnOption = "text",
    skip_empty: SkipEmptyOption = False,
    passage_tokens: PassageTokensOption = None,
    overlap: OverlapOption = None,
    document_prompt: DocumentPromptOption = None,
    output: RecordsOption = None,
    changes: DataSettingsOption = None,
) -> None:
    """Split texts into passages that fit a model.

    Sentences stay complete if they fit. Each passage has the id of its text, and its first and last character in it.
    `search build --passages` indexes the same passages.
    """
    from bertkit.recipe.sections import expand_path
    from bertkit.vectors.embedder import Embedder
    from bertkit.vectors.search.rows import TextRows
    from bertkit.workflows.search import split_passages

    settings = {"tokens": passage_tokens, "overlap": overlap or 0}
    rows = TextRows.open(
        file, column, skip_empty=skip_empty, data=read_data_options(column, changes), passages=settings
    )
    records = split_passages(rows, Embedder(model), prompt=document_prompt)
    print_records("results", records, output, [("the file of the documents", expand_path(file))])


_MODEL = "--model sentence-transformers/all-MiniLM-L6-v2"
COMMANDS = {
    "build": (build_index, f"bertkit search build texts.csv {_MODEL} --output index"),
    "add": (add_texts, "bertkit search add index more.csv"),
    "delete": (delete_rows, "bertkit search delete index --id 17 --id 23"),
    "query": (query_index, 'bertkit search query index "how to open a file" -k 3'),
    "eval": (evaluate_index, "bertkit search eval index questions.jsonl"),
    "passages": (list_passages, f"bertkit search passages articles.jsonl {_MODEL}"),
}
