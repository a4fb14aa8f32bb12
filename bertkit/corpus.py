"""A corpus as pieces: long arrays on disk, mapped into memory, that all pretraining objectives read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Pieces:
    """The pieces of one split, documents one after the other; nothing special is among them.

    Sentence number s is ``pieces[sentences[s] : sentences[s + 1]]``; document number d is the sentences
    ``documents[d]`` to ``documents[d + 1]``.
    """

    pieces: Numbers
    """(pieces,) ids, uint16 or uint32."""
    word_starts: Numbers
    """(pieces,) bool: whether a piece begins a word."""
    sentences: Numbers
    """(sentences + 1,) int64 places in `pieces`."""
    documents: Numbers
    """(documents + 1,) int64 places in `sentences`."""
    facts: Mapping[str, Any]
    """What was counted: documents, duplicates, sentences, pieces, unknown, bytes."""

    def document_edges(self) -> Numbers:
        """Give the (documents + 1,) places in `pieces` where documents begin and end."""
        edges: Numbers = np.asarray(self.sentences)[np.asarray(self.documents)]
        return edges
