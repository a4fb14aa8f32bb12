"""Measure what the heads of an encoder attend to over the rows of a file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from bertkit.data.files import first_of, read_records
from bertkit.data.hub_sets import read_hub_split
from bertkit.data.sources import files_by_split
from bertkit.data.text import Record
from bertkit.errors import DataError, UsageError, closest
from bertkit.progress import stage
from bertkit.recipe import Data, typed_path
from bertkit.storage import hub
from bertkit.storage.outputs import claimed
from bertkit.workflows.attention.show import check_output

if TYPE_CHECKING:
    from bertkit.insight.attention.heads import MeasuredHeads


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
    from bertkit.insight.attention.rows import parse_row

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
        from bertkit.insight.attention.heads import measure_heads
        from bertkit.insight.attention.weights import load_attention_model

        loaded = load_attention_model(folder, model)
    measured = measure_heads(loaded, rows, name, max_tokens=max_tokens)
    if output is not None:
        from bertkit.insight.attention.patterns import PATTERNS
        from bertkit.reports.insight.attention_heads import write_heads

        with claimed(output):
            write_heads(output, measured, PATTERNS)
    return measured


def _read_records(source: str, data: Data, split: str | None) -> Iterator[Record]:
    """Yield the rows of a file, or of one split of a folder or of a data set of the hub."""
    path = typed_path(source)
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
