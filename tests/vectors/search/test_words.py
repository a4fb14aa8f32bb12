"""BM25 in the folder of an index: kept with every addition, and gone without bm25s."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from bertkit.errors import DataError, UsageError
from bertkit.vectors.search.build import add_to_index, build_index, delete_from_index
from bertkit.vectors.search.coverage import Coverage
from bertkit.vectors.search.index import Index
from bertkit.vectors.search.lexical import LexicalIndex
from bertkit.vectors.search.manifest import Manifest

TEXTS = ["a cat", "the old cat", "dogs bark", "one more cat"]


def chunks_of(texts, first=0):
    records = [{"id": first + number, "text": text} for number, text in enumerate(texts)]
    vectors = np.random.default_rng(first).standard_normal((len(texts), 4)).astype(np.float32)
    return lambda done: [(records, vectors, Coverage())]


@pytest.fixture
def index(tmp_path):
    return build_index(tmp_path / "index", Manifest(4), chunks_of(TEXTS[:3]))


def test_words_follow_the_rows(index):
    folder = index.folder / index.manifest.lexical["folder"]
    added = add_to_index(delete_from_index(index, [0]), chunks_of(TEXTS[3:], first=3))
    scores, rows = added.words.search("cat", 9, added.deleted)
    plain = LexicalIndex.build([(1, TEXTS[1]), (2, TEXTS[2]), (3, TEXTS[3])])
    assert rows.tolist() == [1, 3]
    np.testing.assert_array_equal(scores, plain.score("cat", rows))
    assert not folder.exists()
    assert [path.name for path in added.folder.glob("words-*")] == [added.manifest.lexical["folder"]]


def test_without_bm25s_there_are_no_words(monkeypatch, tmp_path, caplog):
    caplog.set_level("INFO", "bertkit")
    monkeypatch.setitem(sys.modules, "bm25s", None)
    index = build_index(tmp_path / "index", Manifest(4), chunks_of(TEXTS))
    assert "no BM25 beside the vectors: search by words needs the package bm25s" in caplog.text
    with pytest.raises(UsageError, match="the index has no words"):
        _ = index.words


def test_a_damaged_file_of_words_is_noticed(index):
    file = index.folder / index.manifest.lexical["folder"] / "vocab.index.json"
    file.write_text(file.read_text()[:-1])
    with pytest.raises(DataError, match="the index is damaged"):
        Index.open(index.folder)
