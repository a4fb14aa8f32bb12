"""spaCy's `.spacy`: the texts and the entities of a DocBin, read by spaCy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertkit.data.formats import Format
from bertkit.data.text import Record, Source
from bertkit.errors import DataError
from bertkit.recipe.plugins import import_extra
from bertkit.recipe.records import Data


def read(source: Source, data: Data, name: str) -> Iterator[Record]:
    """Yield the documents with ``text`` and ``spans``, which are None where a document has no annotated entities.

    Raises:
        UnavailableError: spaCy is not installed.
        DataError: it is no DocBin, or has no documents.
    """
    spacy = import_extra("spacy", "a .spacy file needs the package spacy", "spacy", "export it as .jsonl", file=name)
    return _read_documents(spacy, source, name)


def _read_documents(spacy: Any, source: Source, name: str) -> Iterator[Record]:
    content, row = source.read_bytes() if isinstance(source, Path) else source.read(), 0
    try:
        documents = list(spacy.tokens.DocBin().from_bytes(content).get_docs(spacy.blank("xx").vocab))
    except Exception as error:  # those of zlib, msgpack, numpy and spaCy
        raise DataError(f"not a DocBin: {str(error)[:60]}", "write it with DocBin.to_disk", file=name) from None
    for row, document in enumerate(documents, 1):
        spans = [
            {"start": entity.start_char, "end": entity.end_char, "label": entity.label_} for entity in document.ents
        ]
        yield row, {"text": document.text, "spans": spans if document.has_annotation("ENT_IOB") else None}
    if not row:
        raise DataError("no documents", "add some", file=name)


FORMAT = Format("spacy", read, endings=(".spacy",), magic=b"x\x9c", running_text=False)
