"""An index changes in one step, or not at all."""

from __future__ import annotations

import errno
import sys

import numpy as np
import pytest

from bertkit.errors import DataError, ModelError, ResourceError, UsageError
from bertkit.vectors.search.build import add_to_index, build_index, delete_from_index, staging_folder
from bertkit.vectors.search.index import Index
from bertkit.vectors.search.lexical import LexicalIndex
from bertkit.vectors.search.manifest import Manifest
from bertkit.vectors.search.passages import Coverage
from tests.vectors.search.test_index import chunks_of, make_vectors

VECTORS = make_vectors(300)
ORIGIN = {"rows": "those"}


def failing(chunks, number, error):
    """Yield chunks up to one, in whose place an error is raised; note from which row on they were asked for."""
    asked = []

    def yielding(done):
        asked.append(done)
        for position, chunk in enumerate(chunks(done)):
            if position == number:
                raise error
            yield chunk

    return yielding, asked


def files_of(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_a_build_that_was_cut_off_goes_on(error, tmp_path):
    whole = build_index(tmp_path / "whole", Manifest(16), chunks_of(VECTORS), origin=ORIGIN)
    broken, _ = failing(chunks_of(VECTORS), 2, error)
    with pytest.raises((ResourceError, KeyboardInterrupt)) as ended:
        build_index(tmp_path / "index", Manifest(16), broken, origin=ORIGIN)
    assert not (tmp_path / "index").exists()
    if isinstance(error, OSError):
        assert "free some space" in str(ended.value)
    goes_on, asked = failing(chunks_of(VECTORS), None, None)
    index = build_index(tmp_path / "index", Manifest(16), goes_on, origin=ORIGIN)
    assert asked == [200]
    assert (index.folder / ".gitignore").read_text().splitlines()[-1] == "*"
    assert files_of(index.folder) == files_of(whole.folder)
    assert not staging_folder(index.folder).exists()


def test_an_addition_that_was_cut_off_leaves_the_index_and_goes_on(tmp_path):
    index = build_index(tmp_path / "index", Manifest(16), chunks_of(VECTORS))
    manifest = (index.folder / "manifest.json").read_bytes()
    broken, _ = failing(chunks_of(VECTORS, first=300), 1, OSError(errno.ENOSPC, "full"))
    with pytest.raises(ResourceError):
        add_to_index(index, broken, origin=ORIGIN)
    assert (index.folder / "manifest.json").read_bytes() == manifest
    assert len(Index.open(index.folder, verify=True)) == 300
    goes_on, asked = failing(chunks_of(VECTORS, first=300), None, None)
    assert len(add_to_index(index, goes_on, origin=ORIGIN)) == 600
    assert asked == [100]


def test_a_wrong_vector_leaves_nothing(tmp_path):
    vectors = VECTORS.copy()
    vectors[150] = np.nan
    with pytest.raises(ModelError, match="id 150"):
        build_index(tmp_path / "index", Manifest(16), chunks_of(vectors))
    assert list(tmp_path.iterdir()) == []


def test_an_index_is_not_overwritten(tmp_path):
    build_index(tmp_path / "index", Manifest(16), chunks_of(VECTORS))
    before = files_of(tmp_path / "index")
    with pytest.raises(UsageError, match="search add"):
        build_index(tmp_path / "index", Manifest(16), chunks_of(VECTORS))
    assert files_of(tmp_path / "index") == before


def test_all_rows_may_be_deleted_and_new_ones_take_their_ids(tmp_path):
    index = build_index(tmp_path / "index", Manifest(16), chunks_of(VECTORS[:5]))
    index = delete_from_index(delete_from_index(index, [1, 2]), [0, 3, 4])
    assert (len(index), index.search(VECTORS[:2], 3)[1].shape) == (0, (2, 0))
    records = [{"id": 1, "text": "again"}]
    index = add_to_index(index, lambda done: [(records, VECTORS[:1], Coverage())])
    assert index.find_ids(["1"]) == {"1": 5}
    assert index.search(VECTORS[0], 3)[1].tolist() == [[5]]


def test_an_unknown_similarity_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(UsageError, match="euclidean"):
        build_index(tmp_path / "index", Manifest(16, "euclidean"), chunks_of(VECTORS))
    assert list(tmp_path.iterdir()) == []


TEXTS = ["a cat", "the old cat", "dogs bark", "one more cat"]


def chunks_of_texts(texts, first=0):
    records = [{"id": first + number, "text": text} for number, text in enumerate(texts)]
    vectors = np.random.default_rng(first).standard_normal((len(texts), 4)).astype(np.float32)
    return lambda done: [(records, vectors, Coverage())]


@pytest.fixture
def index(tmp_path):
    return build_index(tmp_path / "index", Manifest(4), chunks_of_texts(TEXTS[:3]))


def test_words_follow_the_rows(index):
    folder = index.folder / index.manifest.lexical["folder"]
    added = add_to_index(delete_from_index(index, [0]), chunks_of_texts(TEXTS[3:], first=3))
    scores, rows = added.words.search("cat", 9, added.deleted)
    plain = LexicalIndex.build([(1, TEXTS[1]), (2, TEXTS[2]), (3, TEXTS[3])])
    assert rows.tolist() == [1, 3]
    np.testing.assert_array_equal(scores, plain.score("cat", rows))
    assert not folder.exists()
    assert [path.name for path in added.folder.glob("words-*")] == [added.manifest.lexical["folder"]]


def test_without_bm25s_there_are_no_words(monkeypatch, tmp_path, caplog):
    caplog.set_level("INFO", "bertkit")
    monkeypatch.setitem(sys.modules, "bm25s", None)
    index = build_index(tmp_path / "index", Manifest(4), chunks_of_texts(TEXTS))
    assert "no BM25 beside the vectors: search by words needs the package bm25s" in caplog.text
    with pytest.raises(UsageError, match="the index has no words"):
        _ = index.words


def test_a_damaged_file_of_words_is_noticed(index):
    file = index.folder / index.manifest.lexical["folder"] / "vocab.index.json"
    file.write_text(file.read_text()[:-1])
    with pytest.raises(DataError, match="the index is damaged"):
        Index.open(index.folder)
