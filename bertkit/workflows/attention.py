"""Attention of an encoder: in one text, or measured over the rows of a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from bertkit.data.files import first_of, read_records
from bertkit.data.remote import find_source, read_hub_split
from bertkit.data.sources import files_by_split
from bertkit.data.text import Record
from bertkit.errors import DataError, UsageError, closest
from bertkit.progress import stage
from bertkit.recipe.records import Data
from bertkit.recipe.sections import typed_path
from bertkit.storage import hub
from bertkit.storage.outputs import check_page, claimed

if TYPE_CHECKING:
    import numpy as np

    from bertkit.insight.attention import AttendedText
    from bertkit.insight.attention_heads import MeasuredHeads


@dataclass(frozen=True)
class ShownAttention:
    """Attention of a text, with its rollout and entropy."""

    text: AttendedText
    rollout: np.ndarray
    """(layers, tokens, tokens): shares of the input tokens at each position, up to each layer."""
    entropy: np.ndarray
    """(layers, heads), in nats."""


def show(
    text: str,
    model: str,
    *,
    pair: str | None = None,
    max_tokens: int = 128,
    at: tuple[int, int] = (0, 0),
    output: Path | None = None,
) -> ShownAttention:
    """Compute what the heads of an encoder attend to in a text, or in a pair of texts.

    Args:
        text: Input of the encoder.
        model: a run or any other checkpoint.
        pair: a second text.
        max_tokens: a longer input is refused.
        at: layer and head that the page begins with.
        output: a page to write, which opens from disk.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    check_output(output, model, {})
    folder = hub.find_model(model)
    with stage(f"loading {model}"):
        from bertkit.insight.attention import attend, entropies, load_attention_model, roll_out

        loaded = load_attention_model(folder, model)
    attended = attend(loaded, text, pair, max_tokens=max_tokens)
    layers, heads = attended.weights.shape[:2]
    if at[0] >= layers or at[1] >= heads:
        raise UsageError(f"the model has {layers} layers of {heads} heads", "count them from 0")
    shown = ShownAttention(attended, roll_out(attended.weights), entropies(attended.weights))
    if output is not None:
        from bertkit.reports.attention import write_attention

        with claimed(output):
            write_attention(output, attended, shown.rollout, at)
    return shown


def check_output(output: Path | None, model: str, inputs: Mapping[str, Path]) -> None:
    """Check the name of a page, and that nothing that is read would be overwritten.

    Args:
        output: Page to write, or None.
        model: whose folder is read.
        inputs: Name and path of each file that is read.

    Raises:
        UsageError: the name does not end in ``.html``, or belongs to a file that is read.
    """
    if output is None:
        return
    folder = typed_path(model)
    beside = folder.rglob("*") if folder.is_dir() else ()
    check_page(output, chain(inputs.items(), (("a file of the model folder", file) for file in beside)))


def measure(
    source: str,
    model: str,
    *,
    data: Data | None = None,
    split: str | None = None,
    max_tokens: int = 512,
    output: Path | None = None,
) -> MeasuredHeads:
    """Measure what each head of an encoder attends to over the rows of a file, or of one split of a data set.

    Args:
        source: a file, ``-`` for standard input, a folder, or the hub name of a data set.
        model: a run or any other checkpoint.
        data: how rows are read, and how many.
        split: of a folder or a data set; ``validation`` by default.
        max_tokens: longer rows are left out.
        output: a page to write, which opens from disk.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    # A page that cannot be written is refused before anything is read.
    path = typed_path(source)
    check_output(output, model, {"the file that is measured": path} if path.is_file() else {})
    folder = hub.find_model(model)
    from bertkit.insight.attention_rows import parse_row

    settings = data or Data()
    name = "standard input" if source == "-" else source
    column = settings.columns.get("text", "text")
    if not isinstance(column, str):
        raise UsageError("a text has one column", "name it with --column")
    with stage(f"reading {name}", total=1):
        records = first_of(_read_records(source, settings, split), settings.limit)
        rows = [parse_row(record, column, name) for record in records]
    if not rows:
        raise DataError("no rows", "name a file that has some", file=name)
    # Rows are parsed before the model is loaded: a wrong column is told at once.
    with stage(f"loading {model}"):
        from bertkit.insight.attention import load_attention_model
        from bertkit.insight.attention_heads import measure_heads

        loaded = load_attention_model(folder, model)
    measured = measure_heads(loaded, rows, name, max_tokens=max_tokens)
    if output is not None:
        from bertkit.insight.attention_heads import PATTERNS
        from bertkit.reports.attention import write_heads

        with claimed(output):
            write_heads(output, measured, PATTERNS)
    return measured


def _read_records(source: str, data: Data, split: str | None) -> Iterator[Record]:
    """Yield the rows of a file, or of one split of a folder or of a data set of the hub."""
    path = find_source(source)
    if source == "-" or path.is_file():
        if split is not None:
            raise UsageError(f"--split {split} of a single file", "leave it out", file=source)
        return read_records(path, data)
    name = split or "validation"
    settings = data.model_copy(update={"source": str(path) if path.exists() else source})
    files = files_by_split(settings)
    if files is None:
        return read_hub_split(settings, name)
    if name not in files:
        raise DataError(f"no split {name!r}", f"{closest(name, files)}; name one with --split", file=source)
    return chain.from_iterable(read_records(file, settings) for file in files[name])
