"""An index changes in one step, or not at all."""

from __future__ import annotations

import errno

import numpy as np
import pytest

from bertkit.errors import ModelError, ResourceError, UsageError
from bertkit.vectors.search.build import add_to_index, build_index, delete_from_index, staging_folder
from bertkit.vectors.search.coverage import Coverage
from bertkit.vectors.search.index import Index
from bertkit.vectors.search.manifest import Manifest
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


@pytest.mark.parametrize("how", [{"approximate": "quick"}, {"similarity": "euclidean"}])
def test_what_is_not_known_is_refused_before_anything_is_written(how, tmp_path):
    manifest = Manifest(16, how.get("similarity", "cosine"))
    with pytest.raises(UsageError, match=r"quick|euclidean"):
        build_index(tmp_path / "index", manifest, chunks_of(VECTORS), approximate=how.get("approximate"))
    assert list(tmp_path.iterdir()) == []
