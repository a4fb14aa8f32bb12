"""`bertkit dedup`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from bertkit.cli.commands.cluster import EmbeddingModelOption, TextsArgument
from bertkit.cli.options import (
    ColumnOption,
    DataSettingsOption,
    PromptOption,
    PromptTextOption,
    flag,
    option,
    output_option,
    read_data_options,
)
from bertkit.cli.output import format_count, format_rows, print_line, print_notes, print_result, print_text
from bertkit.errors import shorten

if TYPE_CHECKING:
    from bertkit.workflows.dedup import DedupResult

ORDER = 43
EXAMPLE = "bertkit dedup reviews.csv --column review --output clean.csv"

_EXAMPLE_LENGTH = 80  # characters


CleanOption = Annotated[
    Path | None, output_option("File for the remaining rows: .jsonl, .csv, .tsv or .parquet.", "FILE", "only counted")
]
AgainstOption = Annotated[
    list[str] | None,
    option("File whose rows to remove too, e.g. training rows; repeatable.", "FILE"),
]


def command(
    file: TextsArgument,
    output: CleanOption = None,
    against: AgainstOption = None,
    column: ColumnOption = "text",
    near_threshold: Annotated[
        float, option("Minimum fraction of shared wording of near duplicates; 1 finds only exact ones.", "P")
    ] = 0.9,
    model: EmbeddingModelOption = None,
    vectors: Annotated[
        list[Path] | None,
        option("File with a vector per row, instead of --model; repeat it for each --against.", "FILE"),
    ] = None,
    prompt: PromptOption = None,
    prompt_text: PromptTextOption = None,
    threshold: Annotated[
        float | None, option("Minimum cosine of duplicates in meaning.", "COSINE", "none; only measured")
    ] = None,
    keep: Annotated[
        str, option("Row to keep: first, longest, or best:COLUMN (highest number in COLUMN).", "CHOICE")
    ] = "first",
    report: Annotated[Path | None, option("File for the groups of duplicates, with a line per row.", "FILE")] = None,
    dry_run: Annotated[bool, flag("--dry-run", "Count duplicates, but write no --output.")] = False,
    changes: DataSettingsOption = None,
) -> None:
    """Remove duplicate rows: exact duplicates, near duplicates, or duplicates in meaning.

    The remaining rows are written to another file, unchanged. With --against, rows that repeat a row of another file
    are removed, too.
    """
    from bertkit.recipe.sections import expand_path
    from bertkit.vectors.text_files import TextFile, VectorSource
    from bertkit.workflows.dedup import dedup

    data = read_data_options(column, changes)
    files = tuple(expand_path(path) for path in vectors or ())
    # Vectors are optional: exact and near duplicates are found in the wording.
    source = VectorSource(model, files, prompt, prompt_text) if model or files or prompt or prompt_text else None
    result = dedup(
        TextFile.open(file, column, data),
        against=[TextFile.open(path, column, data) for path in against or ()],
        source=source,
        near_threshold=near_threshold,
        threshold=threshold,
        keep=keep,
        output=None if output is None else expand_path(output),
        report=None if report is None else expand_path(report),
        dry_run=dry_run,
    )
    print_result(result, print_duplicates)


def print_duplicates(result: DedupResult) -> None:
    """Print the number of duplicates of each kind."""
    # Without a --threshold, the curve is the only result about meaning.
    for step in result.curve:
        print_text(f"  cosine {step['threshold']:.2f}: {step['share']:.1%} of the rows have such a neighbor")
        for name in ("text", "text_pair"):
            if name in step:
                print_text(f"      {shorten(' '.join(step[name].split()), _EXAMPLE_LENGTH)}")
    num_removed = sum(result.duplicates.values())
    print_text(f"{format_rows(result.rows)}: {format_count(num_removed, 'duplicate')}, {result.kept:,} remaining")
    names = {"exact": "exact", "near": "near", "meaning": "in meaning"}
    for reason, count in result.duplicates.items():
        if count:
            cosine = f" (cosine {result.threshold:g} or more)" if reason == "meaning" else ""
            print_text(f"  {names[reason]}: {count:,}{cosine}")
    if len(result.of_files) > 1:
        print_notes(f"duplicates of rows of {name}: {count:,}" for name, count in result.of_files.items())
    for name in result.written:
        print_line(f"{name}: written")
