"""`bertkit attention heads`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from bertkit.cli.commands.attention import WARNING
from bertkit.cli.options import (
    FILE_HELP,
    ColumnOption,
    EncoderOption,
    PageOption,
    argument,
    option,
    read_data_options,
    set_option,
)
from bertkit.cli.output import format_interval, format_rows, print_file, print_result, print_table, print_text

if TYPE_CHECKING:
    from bertkit.insight.attention_heads import MeasuredHeads

ORDER = 2
EXAMPLE = "bertkit attention heads UD_English-EWT/en_ewt-ud-dev.conllu --model demo"


def command(
    source: Annotated[
        str,
        argument(
            "Rows of texts or of words: a file in any format that `predict` reads, `-` for stdin, a folder of "
            "splits, or the hub name of a data set.",
            "FILE",
        ),
    ],
    model: EncoderOption = ...,  # type: ignore[assignment]
    column: ColumnOption = "text",
    split: Annotated[str | None, option("Split of a folder or a data set of the hub.", "SPLIT", "validation")] = None,
    limit: Annotated[int, option("Use only the first N rows.", "N", min=1)] = 1000,
    max_length: Annotated[int, option("Leave out rows of more tokens.", "N", min=4)] = 512,
    output: PageOption = None,
    changes: Annotated[list[str] | None, set_option("data.*", help=FILE_HELP)] = None,
) -> None:
    """Measure what every head of an encoder attends to over the rows of a file.

    Prints shares of attention to tokens before, after and elsewhere, to special tokens and punctuation, and entropy. If
    words have syntactic heads (columns tokens, head and deprel, as in CoNLL-U), it also prints the best head for each
    relation, compared with the best fixed offset. Layers and heads count from 0.
    """
    from bertkit.workflows.attention import measure

    data = read_data_options(column, changes).model_copy(update={"limit": limit})
    measured = measure(source, model, data=data, split=split, max_tokens=max_length, output=output)
    if output is not None:
        print_file(output, measured.rows)
    else:
        print_result(measured, _print_heads)


def _print_heads(result: MeasuredHeads) -> None:
    left_out = (
        f", {result.left_out:,} left out (empty, or over {result.max_tokens:,} tokens)" if result.left_out else ""
    )
    print_text(
        f"{result.model}: {result.layers} layers of {result.heads} heads, over {format_rows(result.rows)} of "
        f"{result.file} ({result.tokens:,} tokens{left_out})"
    )
    rows = [
        {
            "head": f"{head.layer}.{head.head}",
            "described as": head.described_as,
            **{name: f"{share:.2f}" for name, share in head.shares.items()},
            "entropy": f"{head.entropy:.2f}",
        }
        for head in result.measured
    ]
    # The last row is what a head that attends evenly would have: shares mean nothing without it.
    uniform = {"head": "uniform", **{name: f"{share:.2f}" for name, share in result.uniform.items()}}
    print_table("shares of attention (layer.head)", [*rows, uniform], max_rows=len(rows) + 1)
    if result.relations:
        relations = [
            {
                "relation": relation.relation,
                "words": relation.words,
                "head": f"{relation.layer}.{relation.head}",
                "direction": relation.direction,
                "accuracy": f"{relation.accuracy:.3f} ({format_interval(relation.interval)})",
                "offset": f"{relation.offset:+d}",
                "its accuracy": f"{relation.offset_accuracy:.3f}",
                "difference": relation.difference_interval,
            }
            for relation in result.relations
        ]
        title = "best head per relation, chosen on half of the rows and scored on the other (95% CI)"
        print_table(title, relations, max_rows=len(relations))
    print_text(WARNING)
