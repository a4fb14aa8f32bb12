"""TSV: CSV with tabs, whatever the name of the file."""

from __future__ import annotations

from collections.abc import Iterator

from bertkit.data.formats import Format, csv
from bertkit.data.text import Record, Source
from bertkit.recipe.records import Data


def read(source: Source, data: Data, name: str) -> Iterator[Record]:
    """Yield the rows as `csv.read` does, separated by a tab unless ``data.delimiter`` says otherwise."""
    return csv.read(source, data.model_copy(update={"delimiter": data.delimiter or "tab"}), name)


FORMAT = Format("tsv", read, endings=(".tsv",))
