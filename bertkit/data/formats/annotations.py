"""Texts with entities: brat's pairs of files and spaCy's `.spacy`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertkit.data.spans import report_unread
from bertkit.data.text import Record, Source, excerpt, read_lines, read_text, require_path
from bertkit.errors import DataError
from bertkit.recipe.plugins import import_extra
from bertkit.recipe.records import Data

_ENTITY = re.compile(r"T\d+\t(?P<label>\S+) (?P<parts>\d+ \d+(;\d+ \d+)*)\t(?P<text>.*)")
_UNREAD = {"A": "attribute", "M": "attribute", "R": "relation", "*": "relation", "E": "event", "#": "note"}


def read_brat(source: Source, data: Data, name: str) -> Iterator[Record]:
    """Yield a row per text, with the name of its files as ``id``, ``text`` and ``spans`` (None without an ``.ann``).

    Raises:
        DataError: If a text is missing, or a line that begins with T is not an entity.
        UsageError: If the source is standard input.
    """
    return _read_pairs(require_path(source, "brat", "name the folder"), data)


def _read_pairs(source: Path, data: Data) -> Iterator[Record]:
    unread = Counter[str]()
    names = {file.with_suffix("") for pattern in ("*.ann", "*.txt") for file in source.glob(pattern)}
    for row, name in enumerate(sorted(names) if source.is_dir() else [source.with_suffix("")], 1):
        text, annotation = name.with_name(f"{name.name}.txt"), name.with_name(f"{name.name}.ann")
        if not text.exists():
            raise DataError("an .ann file without its text", f"put {text.name} beside it", file=annotation)
        spans = list(_read_entities(annotation, data, unread)) if annotation.exists() else None
        yield row, {"id": name.name, "text": "".join(read_text(text, data.encoding, str(text))), "spans": spans}
    report_unread(source, unread)


def _read_entities(file: Path, data: Data, unread: Counter[str]) -> Iterator[dict[str, Any]]:
    """Yield the entities, and count the relations, events, attributes and notes.

    An entity over a line end has two parts in brat, one per line, and is one span.
    """
    for row, line in enumerate(read_lines(file, data.encoding, str(file)), 1):
        if not line.startswith("T"):
            if kind := _UNREAD.get(line[:1]):
                unread[" ".join([kind, *line.split()[1:2]]) if kind == "attribute" else kind] += 1
            continue
        entity = _ENTITY.match(line)
        if entity is None:
            raise DataError(f"not an entity: {excerpt(line)}", "write it as brat does", file=file, row=row)
        offsets = [int(offset) for offset in re.findall(r"\d+", entity["parts"])]
        span = {"start": offsets[0], "end": offsets[-1], "label": entity["label"], "text": entity["text"].rstrip("\r")}
        is_one_span = all(start - end <= 2 for end, start in zip(offsets[1::2], offsets[2::2], strict=False))
        yield span if is_one_span else {**span, "parts": entity["parts"].split(";")}


def read_spacy(source: Source, data: Data, name: str) -> Iterator[Record]:
    """Yield the documents with ``text`` and ``spans``, which are None where a document has no annotated entities.

    Raises:
        UnavailableError: spaCy is not installed.
        DataError: it is no DocBin, or has no documents.
    """
    spacy = import_extra("spacy", "a .spacy file needs the package spacy", "spacy", "export it as .jsonl", file=name)
    return _read_docbin(spacy, source, name)


def _read_docbin(spacy: Any, source: Source, name: str) -> Iterator[Record]:
    content = source.read_bytes() if isinstance(source, Path) else source.read()
    try:
        documents = spacy.tokens.DocBin().from_bytes(content).get_docs(spacy.blank("xx").vocab)
        records = list(enumerate(map(_read_document, documents), 1))
    except Exception as error:  # zlib, msgpack, numpy and spaCy each raise their own errors for damaged files
        raise DataError(f"not a DocBin: {str(error)[:60]}", "write it with DocBin.to_disk", file=name) from None
    if not records:
        raise DataError("no documents", "add some", file=name)
    yield from records


def _read_document(document: Any) -> dict[str, Any]:
    spans = [{"start": entity.start_char, "end": entity.end_char, "label": entity.label_} for entity in document.ents]
    return {"text": document.text, "spans": spans if document.has_annotation("ENT_IOB") else None}
