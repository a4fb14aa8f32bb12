"""Split documents into the passages that an index of them has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bertkit.progress import log
from bertkit.vectors.embedder import Embedder
from bertkit.vectors.search.coverage import Coverage
from bertkit.vectors.search.models import choose_prompts
from bertkit.vectors.search.rows import TextRows


def passages(rows: TextRows, embedder: Embedder, *, prompt: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the passages of documents, and say at the end how much of the text the model reads in them.

    Args:
        rows: the documents, with the settings of passages.
        embedder: the model, whose tokens count.
        prompt: name of the prompt of documents; by default that of the model for them.

    Returns:
        records with ``id``, ``text``, ``document``, ``file``, ``start`` and ``end``, such that the text of the
        document from start to end is that of the passage; then the other columns of the row.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    return _yield_passages(rows.split_for(choose_prompts(embedder, {"document": prompt})["document"]))


def _yield_passages(rows: TextRows) -> Iterator[dict[str, Any]]:
    coverage, count = Coverage(), 0
    for split, of_document in rows.split():
        coverage += of_document
        count += len(split)
        yield from (row.record for row in split)
    log.info(f"passages: {count:,}, of texts: {coverage.texts:,}; {coverage} of the text reaches the model")
