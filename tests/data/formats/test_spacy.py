"""DocBins of spaCy, where it is installed, and one line where it is not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bertkit.data.files import read_records
from bertkit.data.spans import read_spans
from bertkit.errors import DataError, UnavailableError
from bertkit.recipe import DataConfig

TEXT = "😀 Zoe\u0301 left New York."


def test_texts_and_entities(here):
    spacy = pytest.importorskip("spacy")
    blank = spacy.blank("en")
    document = blank(TEXT)
    document.ents = [document.char_span(2, 6, "PER"), document.char_span(12, 20, "VILLE")]
    spacy.tokens.DocBin(docs=[document, blank("no entities are set")]).to_disk("a.spacy")
    (_, first), (_, second) = read_records("a.spacy", DataConfig())
    assert [(*span,) for span in read_spans(first["spans"], first["text"])] == [(2, 6, "PER"), (12, 20, "VILLE")]
    assert (first["text"], second["spans"]) == (TEXT, None)
    nameless = spacy.tokens.DocBin(docs=[document])
    nameless.strings -= {"VILLE"}
    for damaged in (b"x\x9c and no more", nameless.to_bytes()):
        Path("a.spacy").write_bytes(damaged)
        with pytest.raises(DataError, match="not a DocBin"):
            list(read_records("a.spacy", DataConfig()))


def test_a_missing_package_is_said_before_anything_is_read(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    Path("a.spacy").write_bytes(b"x\x9c")
    with pytest.raises(UnavailableError, match=r"needs the package spacy \(a.spacy\) - `pip install .*spacy"):
        read_records("a.spacy", DataConfig())
