"""brat: a text in a `.txt` file and its entities in the `.ann` file of the same name, or a folder of such pairs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertkit.data.formats import Format
from bertkit.data.text import Record, Source, excerpt, read_lines, read_text, require_path
from bertkit.errors import DataError
from bertkit.recipe.records import Data

_ENTITY = re.compile(r"T\d+\t(?P<label>\S+) (?P<start>\d+) (?P<end>\d+)(?P<more>;[\d ;]+)?\t(?P<text>.*)")


def read(source: Source, data: Data, name: str) -> Iterator[Record]:
    """Yield a row per text, with the name of its files as ``id``, ``text`` and ``spans`` (None without an ``.ann``).

    Raises:
        DataError: a text is missing, a line is no entity, or an entity has several parts.
        UsageError: the source is standard input.
    """
    return _read_pairs(require_path(source, "brat", "name the folder"), data)


def _read_pairs(source: Path, data: Data) -> Iterator[Record]:
    names = {file.with_suffix("") for pattern in ("*.ann", "*.txt") for file in source.glob(pattern)}
    for row, name in enumerate(sorted(names) if source.is_dir() else [source.with_suffix("")], 1):
        text, annotation = name.with_name(f"{name.name}.txt"), name.with_name(f"{name.name}.ann")
        if not text.exists():
            raise DataError("an .ann file without its text", f"put {text.name} beside it", file=annotation)
        spans = list(_read_entities(annotation, data)) if annotation.exists() else None
        yield row, {"id": name.name, "text": "".join(read_text(text, data.encoding, str(text))), "spans": spans}


def _read_entities(file: Path, data: Data) -> Iterator[dict[str, Any]]:
    """Yield the entities; relations, events, attributes and notes are left out."""
    for row, line in enumerate(read_lines(file, data.encoding, str(file)), 1):
        if not line.startswith("T"):
            continue
        entity = _ENTITY.match(line)
        if entity is None:
            raise DataError(f"not an entity: {excerpt(line)}", "write it as brat does", file=file, row=row)
        if entity["more"]:
            what = f"an entity of several parts: {excerpt(line)}"
            raise DataError(what, "make it one span in brat, or delete it", file=file, row=row)
        yield {
            "start": int(entity["start"]),
            "end": int(entity["end"]),
            "label": entity["label"],
            "text": entity["text"].rstrip("\r"),
        }


FORMAT = Format("brat", read, endings=(".ann",), running_text=False, folder="*.ann")
