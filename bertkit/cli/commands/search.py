"""`bertkit search`: build an index of texts, change it, and find what is nearest to a query."""

from __future__ import annotations

from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from bertkit.cli.options import (
    ColumnOption,
    DataSettingsOption,
    DimensionOption,
    EncoderOption,
    PoolingOption,
    PrecisionOption,
    RecordsOption,
    TextLengthOption,
    argument,
    flag,
    option,
    output_option,
    read_data_options,
    refuse_options,
)
from bertkit.cli.output import format_count, format_signed, print_records, print_result, print_table, print_text
from bertkit.errors import UsageError

if TYPE_CHECKING:
    from bertkit.vectors.search.passages import Coverage
    from bertkit.workflows.search import IndexReport, SearchScores

ORDER = 42
HELP = (
    "Search texts by meaning.\n\n"
    "Start with: bertkit search build texts.txt --model MODEL --output index, then "
    'bertkit search query index "how to open a file"'
)


PassageTokensOption = Annotated[
    int | None, option("Most tokens of a passage, with special tokens and prompt.", "N", "256, or what the model reads")
]
OverlapOption = Annotated[
    int | None, option("Tokens that a passage may repeat of the one before, in whole sentences.", "N", "0")
]
SkipEmptyOption = Annotated[bool, flag("--skip-empty", "Leave out rows without text, which are refused otherwise.")]
TextsArgument = Annotated[
    str,
    argument(
        "Rows with the texts: csv, tsv, jsonl, json, parquet, conll, conllu or txt (one text per line); or a folder of "
        "documents: txt, md, html.",
        "FILE",
    ),
]
DocumentPromptOption = Annotated[
    str | None, option("Name of the model's prompt for the texts.", "NAME", "document or passage, if the model has it")
]


def build_index(
    file: TextsArgument,
    model: EncoderOption,
    output: Annotated[Path, output_option("Folder of the index, to be created.", "INDEX")],
    column: ColumnOption = "text",
    skip_empty: SkipEmptyOption = False,
    pooling: PoolingOption = None,
    dimension: DimensionOption = None,
    max_length: TextLengthOption = None,
    document_prompt: DocumentPromptOption = None,
    query_prompt: Annotated[
        str | None, option("Name of the model's prompt for queries.", "NAME", "query, if the model has it")
    ] = None,
    similarity: Annotated[str | None, option("cosine or dot.", "NAME", "the model's")] = None,
    precision: PrecisionOption = "auto",
    passages: Annotated[
        bool, flag("--passages", "Split texts into passages that the model reads whole, and index those.")
    ] = False,
    passage_tokens: PassageTokensOption = None,
    overlap: OverlapOption = None,
    changes: DataSettingsOption = None,
) -> None:
    """Build an index of texts: their vectors, the words that they share (BM25), and the rows that they are in.

    A build that was killed goes on where it was when the command is repeated.
    """
    if not passages:
        given = {"--passage-tokens": passage_tokens, "--overlap": overlap}
        refuse_options(given, "without --passages", "add --passages")
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
    end_change(report, "added")


def end_change(report: IndexReport, done: str) -> None:
    """Print what a command did to an index, for people or programs."""
    values = {done if name == "changed" else name: value for name, value in vars(report).items()}
    print_result(values, lambda _: print_index(report, done))


def print_index(report: IndexReport, done: str) -> None:
    """Print what a command did to an index, and what it holds now."""
    unit = "passage" if report.passages else "row"
    changed, rows = format_count(report.changed, unit), format_count(report.rows, unit)
    print_text(
        f"{report.index}: {changed} {done}; {rows} with vectors of "
        f"{report.dimension} ({report.similarity}), {report.bytes / 1e6:,.1f} MB"
    )
    if done == "added":
        print_coverage(report.coverage, report.max_length, is_split=report.passages is not None)


def print_coverage(coverage: Coverage, max_length: int, *, is_split: bool) -> None:
    """Print how much of the text reaches the model, and what to do where that is not all."""
    line = f"  {coverage} of the text reaches the model"
    if is_split:
        print_text(f"{line}, in passages of {format_count(coverage.texts, 'text')}")
    elif coverage.truncated:
        print_text(
            f"{line}: {coverage.truncated:,} of {coverage.texts:,} texts are truncated to {max_length} tokens; "
            "--passages splits them"
        )
    else:
        print_text(line)


IndexArgument = Annotated[str, argument("Folder that `search build` wrote.", "INDEX")]
MovedModelOption = Annotated[str | None, option("Where the model of the index is now.", "MODEL", "where it was")]


def add_texts(
    index: IndexArgument,
    file: TextsArgument,
    column: ColumnOption = "text",
    skip_empty: SkipEmptyOption = False,
    model: MovedModelOption = None,
    changes: DataSettingsOption = None,
) -> None:
    """Add texts to an index.

    Rows whose ids the index has already are refused. Those without ids are numbered. A file that was added before is
    not added again.
    """
    from bertkit.vectors.search.rows import TextRows
    from bertkit.workflows.search import add

    rows = TextRows.open(file, column, skip_empty=skip_empty, data=read_data_options(column, changes))
    end_change(add(index, rows, model=model), "added")


def delete_rows(
    index: IndexArgument,
    ids: Annotated[list[str], option("Id of a row, or of a document in passages; repeatable.", "ID", names=("--id",))],
) -> None:
    """Delete rows from an index.

    They are no longer found, and their ids are free. The files get smaller only when the index is built again.
    """
    from bertkit.workflows.search import delete

    end_change(delete(index, ids), "deleted")


RerankOption = Annotated[
    str | None,
    option(
        "Rank anew by this model: run folder of the recipe `rerank` or `late-interaction`, directory or hub name.",
        "MODEL",
    ),
]
CandidatesOption = Annotated[int, option("The best results that --rerank scores.", "N", min=1)]


def query_index(
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
    from bertkit.recipe.sections import typed_path

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


_SCORE = "ndcg@10"
"""The metric whose gains are shown."""


def evaluate_index(
    index: IndexArgument,
    file: Annotated[
        str,
        argument(
            "Rows with the columns `query`, `relevant` (id of a row or document, or a list) and, if ids differ in "
            "relevance, `grade`.",
            "FILE",
        ),
    ],
    rerank: RerankOption = None,
    candidates: CandidatesOption = 100,
    limit: Annotated[int | None, option("Use only the first N queries.", "N", "all", min=1)] = None,
    model: MovedModelOption = None,
) -> None:
    """Score the rankings of an index: by words, by vectors, by both, and reranked.

    nDCG@10, MRR@10, MAP@100 and recall, with 95% intervals over queries.
    """
    from bertkit.vectors.reranker import Reranker
    from bertkit.workflows.search import evaluate

    scores = evaluate(
        index, file, reranker=Reranker(rerank) if rerank else None, candidates=candidates, limit=limit, model=model
    )
    print_result(scores, print_scores)


def print_scores(result: SearchScores) -> None:
    """Print the scores of each ranking, and their intervals."""
    rows = "passages; documents are ranked by their best" if result.by_document else "rows"
    print_text(f"{result.index}: {result.queries:,} queries, {result.rows:,} {rows}")
    print_table("scores", [{"ranking": of.ranking, **of.scores} for of in result.rankings])
    print_table("95% intervals over queries", [{"ranking": of.ranking, **of.intervals} for of in result.rankings])
    gains = [
        {
            "ranking": of.ranking,
            "over": before.ranking,
            _SCORE: format_signed(of.gains[_SCORE]),
            "95% interval": of.gain_intervals[_SCORE],
        }
        for before, of in pairwise(result.rankings)
    ]
    print_table("gains, query by query", gains)


def list_passages(
    file: TextsArgument,
    model: Annotated[str, option("Encoder whose tokens count: hub name, directory, run folder or `demo`.", "MODEL")],
    column: ColumnOption = "text",
    skip_empty: SkipEmptyOption = False,
    passage_tokens: PassageTokensOption = None,
    overlap: OverlapOption = None,
    document_prompt: DocumentPromptOption = None,
    output: RecordsOption = None,
    changes: DataSettingsOption = None,
) -> None:
    """Split texts into passages that a model reads whole.

    Sentences stay whole where they fit. Each passage has the id of its text, and the characters where it begins and
    ends in it. `search build --passages` indexes the same passages.
    """
    from bertkit.recipe.sections import typed_path
    from bertkit.vectors.embedder import Embedder
    from bertkit.vectors.search.rows import TextRows
    from bertkit.workflows.search import split_passages

    settings = {"tokens": passage_tokens, "overlap": overlap or 0}
    rows = TextRows.open(
        file, column, skip_empty=skip_empty, data=read_data_options(column, changes), passages=settings
    )
    records = split_passages(rows, Embedder(model), prompt=document_prompt)
    print_records("results", records, output, [("the file of the documents", typed_path(file))])


_MODEL = "--model sentence-transformers/all-MiniLM-L6-v2"
COMMANDS = {
    "build": (build_index, f"bertkit search build texts.csv {_MODEL} --output index"),
    "add": (add_texts, "bertkit search add index more.csv"),
    "delete": (delete_rows, "bertkit search delete index --id 17 --id 23"),
    "query": (query_index, 'bertkit search query index "how to open a file" -k 3'),
    "eval": (evaluate_index, "bertkit search eval index questions.jsonl"),
    "passages": (list_passages, f"bertkit search passages articles.jsonl {_MODEL}"),
}
