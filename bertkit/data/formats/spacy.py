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
    content = source.read_bytes() if isinstance(source, Path) else source.read()
    try:
        documents = spacy.tokens.DocBin().from_bytes(content).get_docs(spacy.blank("xx").vocab)
        records = list(enumerate(map(_read_document, documents), 1))
    except Exception as error:  # those of zlib, msgpack, numpy and spaCy
        raise DataError(f"not a DocBin: {str(error)[:60]}", "write it with DocBin.to_disk", file=name) from None
    if not records:
        raise DataError("no documents", "add some", file=name)
    yield from records


def _read_document(document: Any) -> dict[str, Any]:
    spans = [{"start": entity.start_char, "end": entity.end_char, "label": entity.label_} for entity in document.ents]
    return {"text": document.text, "spans": spans if document.has_annotation("ENT_IOB") else None}


FORMAT = Format("spacy", read, endings=(".spacy",), magic=b"x\x9c", running_text=False)
