"""`bertkit search passages`."""

from __future__ import annotations

from typing import Annotated

from bertkit.cli.commands.search.build import (
    DocumentPromptOption,
    OverlapOption,
    PassageTokensOption,
    SkipEmptyOption,
    TextsArgument,
)
from bertkit.cli.options import ColumnOption, DataSettingsOption, RecordsOption, option, read_data_options
from bertkit.cli.output import print_records

ORDER = 6
EXAMPLE = "bertkit search passages articles.jsonl --model sentence-transformers/all-MiniLM-L6-v2"


def command(
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
    from bertkit.recipe import typed_path
    from bertkit.vectors.embedder import Embedder
    from bertkit.vectors.search.rows import TextRows
    from bertkit.workflows.search import split_passages

    settings = {"tokens": passage_tokens, "overlap": overlap or 0}
    rows = TextRows.open(
        file, column, skip_empty=skip_empty, data=read_data_options(column, changes), passages=settings
    )
    records = split_passages(rows, Embedder(model), prompt=document_prompt)
    print_records("results", records, output, [("the file of the documents", typed_path(file))])
