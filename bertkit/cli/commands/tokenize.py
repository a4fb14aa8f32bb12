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
            "Text to tokenize; or a file of texts to measure (csv, jsonl, parquet, txt, ...), or `-` for stdin.",
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
    # A source that is not a file is a text: its tokens are shown, and nothing is counted.
    if not is_file(source):
        tokenized = tokenize_text(source, models, pair=pair)
        print_result({"tokenizers": tokenized}, lambda _: list(map(_print_tokens, tokenized)))
        return
    if pair is not None:
        raise UsageError("--pair is for a text, not for a file", "leave it out")
    figures = measure_file(source, models, data=read_data_options(column, changes))
    values = {"file": source, "tokenizers": figures}
    print_result(values, lambda _: _print_figures(source, figures))


def _print_tokens(tokenized: TextTokens) -> None:
    limit = "" if tokenized.max_tokens is None else f", up to {tokenized.max_tokens:,} per input"
    print_text(f"{tokenized.model}: {tokenized.type}, {tokenized.vocabulary:,} tokens{limit}")
    has_pair = any(token.segment for token in tokenized.tokens)
    rows = [
        {
            "token": token.token,
            "id": str(token.id),
            "segment": token.segment if has_pair else "",
            # Tokens with the same word are pieces of it, such as `token` and `##ization`.
            "word": "special" if token.word is None else str(token.word),
            "characters": "" if token.start is None else f"{token.start}-{token.end}",
            "text": token.text,
        }
        for token in tokenized.tokens
    ]
    print_table("tokens", rows, max_rows=len(rows))
    special = sum(token.is_special for token in tokenized.tokens)
    text = len(tokenized.tokens) - special
    print_text(
        f"  {len(tokenized.tokens):,} tokens: {special} special and {text:,} of text, for {tokenized.words:,} words; "
        f"unknown: {tokenized.unknown:,}"
    )
    if tokenized.max_tokens is not None and len(tokenized.tokens) > tokenized.max_tokens:
        print_text(f"  longer than the model reads: {len(tokenized.tokens) - tokenized.max_tokens:,} tokens are lost")


def _print_figures(source: str, figures: list[TextFigures]) -> None:
    """Print a row per figure, and a column per tokenizer, because the choice is among tokenizers."""
    rows: dict[str, list[str]] = {
        "algorithm": [model.type for model in figures],
        "vocabulary": [f"{model.vocabulary:,}" for model in figures],
        "vocabulary that occurs": [f"{model.vocabulary_seen:.1%}" for model in figures],
        "maximal length": ["-" if model.max_tokens is None else f"{model.max_tokens:,}" for model in figures],
        # A fertility of 1 means that every word is in the vocabulary (Rust et al. 2021).
        "tokens per word (fertility)": [f"{model.fertility:.3f}" for model in figures],
        "single-token words": [f"{model.coverage:.1%}" for model in figures],
        "unknown tokens": [f"{model.unknown_rate:.3%}" for model in figures],
        "tokens per text: mean": [f"{model.mean_length:.1f}" for model in figures],
        "half up to": [f"{model.median_length:,}" for model in figures],
        "99% up to": [f"{model.length_99:,}" for model in figures],
        "longest": [f"{model.longest:,}" for model in figures],
    }
    for limit in sorted({limit for model in figures for limit in model.truncated}):
        rows[f"texts over {limit:,} tokens"] = [_share(model.truncated.get(limit)) for model in figures]
        rows[f"tokens lost beyond {limit:,}"] = [_share(model.lost.get(limit)) for model in figures]
    names = [model.model for model in figures]
    table = [{"figure": figure, **dict(zip(names, cells, strict=True))} for figure, cells in rows.items()]
    print_text(f"{source}: {figures[0].texts:,} texts of {figures[0].words:,} words")
    print_table("tokenizers", table, max_rows=60)
    if any(model.max_tokens is None for model in figures):
        print_line("  A dash is a maximal length that no file of the tokenizer states.")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"
