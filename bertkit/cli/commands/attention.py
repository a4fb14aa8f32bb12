"""`bertkit attention`: what the heads of an encoder attend to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from bertkit.cli.options import (
    FILE_HELP,
    ColumnOption,
    EncoderOption,
    PageOption,
    PairOption,
    argument,
    check_unused_options,
    option,
    read_data_options,
    set_option,
)
from bertkit.cli.output import format_interval, format_rows, print_file, print_result, print_table, print_text

if TYPE_CHECKING:
    from bertkit.analysis.attention import AttendedText, MeasuredHeads

ORDER = 33
HELP = (
    "Show and measure what the heads of an encoder attend to.\n\n"
    'Start with: bertkit attention show "The cat sat on the mat." --model demo --output page.html'
)

# Whether attention explains predictions is disputed: Jain and Wallace 2019, Wiegreffe and Pinter 2019.
_WARNING = "Attention shows what heads read. It does not explain an answer: for that, see `bertkit explain`."
_DECIMALS = 6  # float32 has about seven
_MAX_TARGETS = 3  # strongest tokens that are listed per token


def show_attention(
    text: Annotated[str, argument("Text for the model.", "TEXT")],
    model: EncoderOption = ...,  # type: ignore[assignment]
    pair: PairOption = None,
    layer: Annotated[int | None, option("Layer to show, from 0.", "N", "the last; all with --json", min=0)] = None,
    head: Annotated[int | None, option("With --layer: head to show, from 0.", "N", "the mean of all", min=0)] = None,
    max_length: Annotated[int, option("Maximum number of tokens; a longer input is an error.", "N", min=3)] = 128,
    output: PageOption = None,
) -> None:
    """Show what the heads of an encoder attend to in a text, or in a pair of texts.

    The page has the weights of all layers and heads, and attention rollout. Without --output, a table shows what each
    token attends to most in one layer.
    """
    from bertkit.workflows.attention import show

    if layer is None:
        check_unused_options({"--head": head}, "without --layer", "add --layer N")
    attention = show(text, model, pair=pair, max_tokens=max_length, first_head=(layer or 0, head or 0), output=output)
    if output is not None:
        print_file(output, 1)
        return
    # Shape of the weights: (layers, heads, tokens, tokens); the last axis sums to 1. Slices keep the axis of a single
    # layer or head.
    layers = slice(None) if layer is None else slice(layer, layer + 1)
    heads = slice(None) if head is None else slice(head, head + 1)
    values = {
        "model": attention.model,
        "tokens": attention.tokens,
        "layers": list(range(len(attention.weights)))[layers],
        "heads": list(range(attention.weights.shape[1]))[heads],
        "weights": attention.weights[layers, heads].astype(float).round(_DECIMALS).tolist(),
        "entropy": attention.entropy[layers, heads].astype(float).round(_DECIMALS).tolist(),
        "rollout": attention.rollout[layers].round(_DECIMALS).tolist(),
    }
    print_result(values, lambda _: _print_attention(attention, layer, head))


def _print_attention(attention: AttendedText, layer: int | None, head: int | None) -> None:
    layers, heads, count, _ = attention.weights.shape
    print_text(f"{attention.model}: {layers} layers of {heads} heads, {count} tokens")
    layer = layers - 1 if layer is None else layer
    weights = attention.weights[layer].mean(axis=0) if head is None else attention.weights[layer, head]
    rows = []
    for token, token_weights in zip(attention.tokens, weights, strict=True):
        positions = (-token_weights).argsort(kind="stable")[:_MAX_TARGETS]
        texts = [f"{attention.tokens[position].text} {token_weights[position]:.2f}" for position in positions]
        rows.append({"token": token.text, "attends most to": ", ".join(texts)})
    name = "the mean of all heads" if head is None else f"head {head}"
    print_table(f"layer {layer}, {name}", rows, max_rows=len(rows))
    print_text(_WARNING)


def measure_heads(
    file: Annotated[
        str, argument("File with texts or lists of words, in any format that `predict` reads; `-` for stdin.", "FILE")
    ],
    model: EncoderOption = ...,  # type: ignore[assignment]
    column: ColumnOption = "text",
    limit: Annotated[int, option("Use only the first N rows.", "N", min=1)] = 1000,
    max_length: Annotated[int, option("Maximum tokens per row; longer rows are skipped.", "N", min=4)] = 512,
    output: PageOption = None,
    changes: Annotated[list[str] | None, set_option("data.*", help=FILE_HELP)] = None,
) -> None:
    """Measure what every head of an encoder attends to over the rows of a file.

    Prints the fraction of each head's attention that goes to neighboring tokens, special tokens, punctuation and so on,
    and its entropy. If the file has syntactic heads (columns tokens, head and deprel, as in CoNLL-U), it also prints
    the best attention head for each relation, and the best fixed offset. Layers and heads count from 0.
    """
    from bertkit.workflows.attention import measure

    data = read_data_options(column, changes).model_copy(update={"limit": limit})
    result = measure(file, model, data=data, max_tokens=max_length, output=output)
    if output is not None:
        print_file(output, result.rows)
    else:
        print_result(result, _print_heads)


def _print_heads(result: MeasuredHeads) -> None:
    skipped_text = ""
    if result.left_out:
        skipped_text = f"; {format_rows(result.left_out)} skipped: empty, or over {result.max_tokens:,} tokens"
    size = f"{result.layers} layers of {result.heads} heads, over {format_rows(result.rows)}"
    print_text(f"{result.model}: {size} of {result.file} ({result.tokens:,} tokens{skipped_text})")
    rows = [
        {
            "head": f"{head.layer}.{head.head}",
            "described as": head.described_as,
            **_format_fractions(head.shares),
            "entropy": f"{head.entropy:.2f}",
        }
        for head in result.measured
    ]
    # The baseline: a head that attends to all tokens alike.
    rows.append({"head": "uniform", **_format_fractions(result.uniform)})
    print_table("fraction of attention (layer.head)", rows, max_rows=len(rows))
    relations = [
        {
            "relation": relation.relation,
            "words": relation.words,
            "head": f"{relation.layer}.{relation.head}",
            "direction": relation.direction,
            "accuracy": f"{relation.accuracy:.3f} ({format_interval(relation.interval)})",
            # The baseline is the word at a fixed distance, such as +1 for the next word, because many relations are
            # between neighbors.
            "offset": f"{relation.offset:+d}",
            "offset accuracy": f"{relation.offset_accuracy:.3f}",
            "difference": relation.difference_interval,
        }
        for relation in result.relations
    ]
    title = "best head per relation, selected on half of the rows and scored on the other half (95% CI)"
    print_table(title, relations, max_rows=len(relations))
    print_text(_WARNING)


def _format_fractions(fractions: dict[str, float]) -> dict[str, str]:
    return {name: f"{fraction:.2f}" for name, fraction in fractions.items()}


COMMANDS = {
    "show": (show_attention, 'bertkit attention show "The cat sat on the mat." --model demo --output page.html'),
    "heads": (measure_heads, "bertkit attention heads UD_English-EWT/en_ewt-ud-dev.conllu --model demo"),
}
