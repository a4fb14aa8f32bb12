"""Attention of an encoder: in one text, or measured over the rows of a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bertkit.data.files import read_records, take_first
from bertkit.errors import DataError, UsageError
from bertkit.progress import stage
from bertkit.recipe.records import DataConfig
from bertkit.storage import hub
from bertkit.storage.outputs import lock_output

if TYPE_CHECKING:
    from bertkit.analysis.attention import AttendedText, MeasuredHeads


def show(
    text: str,
    model: str,
    *,
    pair: str | None = None,
    max_tokens: int = 128,
    first_head: tuple[int, int] = (0, 0),
    output: Path | None = None,
) -> AttendedText:
    """Compute the attention of all heads of an encoder in a text, or in a pair of texts.

    Args:
        text: Input of the encoder.
        model: A run or any other checkpoint.
        pair: Second text.
        max_tokens: Maximum tokens of the input; the size of the result grows quadratically.
        first_head: Layer and head that the page shows first.
        output: Page to write, which opens from disk.

    Raises:
        BertkitError: If the model, an input or a setting is wrong; see `bertkit.errors`.
    """
    # 1. Load the encoder.
    folder = hub.find_model(model)
    with stage(f"loading {model}"):
        from bertkit.analysis.attention import attend, load_attention_model

        encoder = load_attention_model(folder, model)

    # 2. Compute the attention weights. Shape: (layers, heads, tokens, tokens).
    attention = attend(encoder, text, pair, max_tokens=max_tokens)
    layers, heads = attention.weights.shape[:2]
    if first_head[0] >= layers or first_head[1] >= heads:
        raise UsageError(f"the model has {layers} layers of {heads} heads", "count them from 0")

    # 3. Write the page.
    if output is not None:
        from bertkit.reports.attention import write_attention

        with lock_output(output):
            write_attention(output, attention, first_head)
    return attention


def measure(
    file: str, model: str, *, data: DataConfig | None = None, max_tokens: int = 512, output: Path | None = None
) -> MeasuredHeads:
    """Measure what each head of an encoder attends to over the rows of a file.

    Args:
        file: Rows of texts or of words; ``-`` for standard input.
        model: A run or any other checkpoint.
        data: Columns, format and limit of the rows.
        max_tokens: Maximum tokens per row; longer rows are skipped.
        output: Page to write, which opens from disk.

    Raises:
        BertkitError: If the model, a row or a setting is wrong; see `bertkit.errors`.
    """
    # 1. Read the rows. A wrong column is an error before the model is loaded.
    folder = hub.find_model(model)
    from bertkit.analysis.syntax import parse_row

    settings = data or DataConfig()
    name = "standard input" if file == "-" else file
    column = settings.columns.get("text", "text")
    if not isinstance(column, str):
        raise UsageError("data.columns.text must be a single column", "name it with --column")
    with stage(f"reading {name}", total=1):
        records = take_first(read_records(file, settings), settings.limit)
        rows = [parse_row(record, column, name) for record in records]
    if not rows:
        raise DataError("no rows", "name a file that has some", file=name)

    # 2. Measure the heads.
    with stage(f"loading {model}"):
        from bertkit.analysis.attention import PATTERNS, load_attention_model, measure_heads

        encoder = load_attention_model(folder, model)
    heads = measure_heads(encoder, rows, name, max_tokens=max_tokens)

    # 3. Write the page.
    if output is not None:
        from bertkit.reports.attention import write_heads

        with lock_output(output):
            write_heads(output, heads, PATTERNS)
    return heads
