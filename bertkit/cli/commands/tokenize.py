"""`bertkit tokenize`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from bertkit.cli.options import ColumnOption, PairOption, TextSettingsOption, argument, option, read_data_options
from bertkit.cli.output import print_line, print_result, print_table, print_text
from bertkit.errors import UsageError

if TYPE_CHECKING:
    from bertkit.analysis.tokenization import TextFigures, TextTokens

ORDER = 35
EXAMPLE = 'bertkit tokenize "Bank is located in the city of London" --model demo'


def command(
    source: Annotated[
        str,
        argument(
            "Text, or file of texts to measure (csv, jsonl, parquet, txt, ...); `-` for stdin.",
            "TEXT|FILE",
        ),
    ],
    model: Annotated[str, option("Model whose tokenizer to use: Hub name, directory or `demo`.", "MODEL")] = ...,  # type: ignore[assignment]
    pair: PairOption = None,
    compare_with: Annotated[str | None, option("Second model to compare with.", "MODEL")] = None,
    column: ColumnOption = "text",
    changes: TextSettingsOption = None,
) -> None:
    """Show the tokens of a text, or measure how a tokenizer splits the texts of a file.

    For a file, it prints tokens per word, unknown tokens, and the fraction of texts with more than 128, 256 or 512
    tokens. It loads no model.
    """
    from bertkit.workflows.tokenize import is_file, measure_file, tokenize_text

    models = [model] if compare_with is None else [model, compare_with]
    if not is_file(source):
        text_tokens = tokenize_text(source, models, pair=pair)
        print_result({"tokenizers": text_tokens}, lambda _: list(map(_print_tokens, text_tokens)))
        return
    if pair is not None:
        raise UsageError("--pair is for a text, not for a file", "leave it out")
    figures = measure_file(source, models, data=read_data_options(column, changes))
    values = {"file": source, "tokenizers": figures}
    print_result(values, lambda _: _print_figures(source, figures))


def _print_tokens(text_tokens: TextTokens) -> None:
    tokens, max_tokens = text_tokens.tokens, text_tokens.max_tokens
    limit = "" if max_tokens is None else f", up to {max_tokens:,} per input"
    print_text(f"{text_tokens.model}: {text_tokens.type}, {text_tokens.vocabulary:,} tokens{limit}")
    has_pair = any(token.segment for token in tokens)
    rows = [
        {
            "token": token.token,
            "id": str(token.id),
            "segment": token.segment if has_pair else "",
            # Tokens of one word, such as `token` and `##ization`, have the same index.
            "word": "special" if token.word is None else str(token.word),
            "characters": "" if token.start is None else f"{token.start}-{token.end}",
            "text": token.text,
        }
        for token in tokens
    ]
    print_table("tokens", rows, max_rows=len(rows))
    special = sum(token.is_special for token in tokens)
    text = len(tokens) - special
    print_text(
        f"  {len(tokens):,} tokens: {special} special and {text:,} of text, for {text_tokens.words:,} words; "
        f"unknown: {text_tokens.unknown:,}"
    )
    if max_tokens is not None and len(tokens) > max_tokens:
        print_text(f"  truncated by the model: {len(tokens) - max_tokens:,} tokens")


def _print_figures(source: str, tokenizers: list[TextFigures]) -> None:
    """Print a table with a row per figure and a column per tokenizer."""
    rows: dict[str, list[str]] = {
        "algorithm": [stats.type for stats in tokenizers],
        "vocabulary": [f"{stats.vocabulary:,}" for stats in tokenizers],
        "vocabulary that occurs": [f"{stats.vocabulary_seen:.1%}" for stats in tokenizers],
        "maximum length": ["-" if stats.max_tokens is None else f"{stats.max_tokens:,}" for stats in tokenizers],
        "tokens per word (fertility)": [f"{stats.fertility:.3f}" for stats in tokenizers],
        "single-token words": [f"{stats.coverage:.1%}" for stats in tokenizers],
        "unknown tokens": [f"{stats.unknown_rate:.3%}" for stats in tokenizers],
        "tokens per text: mean": [f"{stats.mean_length:.1f}" for stats in tokenizers],
        "tokens per text: median": [f"{stats.median_length:,}" for stats in tokenizers],
        "tokens per text: 99th percentile": [f"{stats.length_99:,}" for stats in tokenizers],
        "tokens per text: maximum": [f"{stats.longest:,}" for stats in tokenizers],
    }
    for limit in sorted({limit for stats in tokenizers for limit in stats.truncated}):
        rows[f"texts over {limit:,} tokens"] = [_format_fraction(stats.truncated.get(limit)) for stats in tokenizers]
        rows[f"tokens truncated at {limit:,}"] = [_format_fraction(stats.lost.get(limit)) for stats in tokenizers]
    names = [stats.model for stats in tokenizers]
    table = [{"figure": figure, **dict(zip(names, cells, strict=True))} for figure, cells in rows.items()]
    print_text(f"{source}: {tokenizers[0].texts:,} texts of {tokenizers[0].words:,} words")
    print_table("tokenizers", table, max_rows=60)
    if any(stats.max_tokens is None for stats in tokenizers):
        print_line("  -: the files of the tokenizer state no maximum length.")


def _format_fraction(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"
