"""`bertkit search build`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from bertkit.cli.options import (
    ColumnOption,
    DataSettingsOption,
    DimensionOption,
    EncoderOption,
    PoolingOption,
    PrecisionOption,
    TextLengthOption,
    argument,
    flag,
    option,
    output_option,
    read_data_options,
    refuse_options,
)
from bertkit.cli.output import format_count, print_result, print_text

if TYPE_CHECKING:
    from bertkit.vectors.search.passages import Coverage
    from bertkit.workflows.search import IndexReport

ORDER = 1
EXAMPLE = "bertkit search build texts.csv --model sentence-transformers/all-MiniLM-L6-v2 --output index"

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


def command(
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
