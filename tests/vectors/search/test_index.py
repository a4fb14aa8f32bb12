"""An index changes completely or not at all, damage to it is named, and its results are those of a plain loop."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from bertkit.errors import DataError, ModelError, ResourceError, UsageError
from bertkit.storage.fingerprints import write_with_checksum
from bertkit.vectors.search import index as module
from bertkit.vectors.search.bm25 import BM25
from bertkit.vectors.search.index import MANIFEST, OFFSETS, ROWS, VECTORS, Addition, Index, Manifest
from bertkit.vectors.search.passages import Coverage

SOURCE = {"rows": "those"}


def make_vectors(count, dimension=16, seed=0):
    return np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32)


VECTORS_OF_300 = make_vectors(300)


def chunks_of(vectors, first=0, size=100):
    """The chunks of rows that are numbered as their vectors are."""
    records = [{"id": first + number, "text": f"text {first + number}: é\u2028"} for number in range(len(vectors))]
    starts = range(0, len(vectors), size)
    return lambda done: ((records[n : n + size], vectors[n : n + size], Coverage()) for n in starts if n >= done)


def chunks_of_texts(texts, first=0):
    records = [{"id": first + number, "text": text} for number, text in enumerate(texts)]
    vectors = np.random.default_rng(first).standard_normal((len(texts), 16)).astype(np.float32)
    return lambda done: [(records, vectors, Coverage())]


def build(folder, vectors=VECTORS_OF_300, **options):
    return Index.create(folder / "index", Manifest(16), chunks_of(vectors), **options)


def files_of(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


# --- Results ---


def plain_search(vectors, query, k, similarity="cosine"):
    """Score each vector by itself, in float64."""
    scores = []
    for vector in vectors.astype(np.float64):
        length = np.linalg.norm(vector) * np.linalg.norm(query) if similarity == "cosine" else 1.0
        scores.append(vector @ query.astype(np.float64) / length)
    best = sorted(range(len(vectors)), key=lambda row: -scores[row])[:k]
    return best, [scores[row] for row in best]


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks and passes so small that there are many."""
    monkeypatch.setattr(module, "_BLOCK", 128)
    monkeypatch.setattr(module, "_BLOCK_OF_ONE", 256)
    monkeypatch.setattr(module, "_QUERIES", 8)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_results_are_those_of_a_plain_loop(similarity, tmp_path, small_blocks):
    vectors, queries = make_vectors(700), make_vectors(20, seed=1)
    index = Index.create(tmp_path / "index", Manifest(16, similarity), chunks_of(vectors[:500]))
    index = index.add(chunks_of(vectors[500:], first=500)).delete([3, 600])
    alive = np.setdiff1d(np.arange(700), [3, 600])
    scores, rows = index.search(queries, 10)
    for query, found, values in zip(queries, rows, scores, strict=True):
        best, expected = plain_search(vectors[alive], query, 10, similarity)
        assert found.tolist() == alive[best].tolist()
        np.testing.assert_allclose(values, expected, rtol=1e-6)
    assert [record["id"] for record in index.rows([699, 0, 510])] == [699, 0, 510]
    assert [number for number, _ in index.records()] == alive.tolist()
    assert index.find_rows([3, 4, "699", "none"]) == {"4": [4], "699": [699]}
    np.testing.assert_allclose(index.similarities(queries[0], rows[0]), scores[0], rtol=1e-6)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("queries", [1, 20])
def test_every_block_counts(queries, order, small_blocks, tmp_path):
    """In ascending order, each block has more candidates than the block before; in descending order, none."""
    vectors, asked = make_vectors(1000), make_vectors(queries, seed=1)
    index = Index.create(
        tmp_path / "index", Manifest(16, "dot"), chunks_of(vectors[np.argsort(order * (vectors @ asked[0]))])
    )
    for query, rows in zip(asked, index.search(asked, 10)[1], strict=True):
        assert rows.tolist() == plain_search(index.vectors, query, 10, "dot")[0]


def test_a_query_has_the_same_results_alone_and_among_others(small_blocks, tmp_path):
    index, queries = build(tmp_path), make_vectors(20, seed=1)
    together = index.search(queries, 5)
    alone = [index.search(query, 5) for query in queries]
    for number in (0, 1):
        np.testing.assert_array_equal(together[number], np.concatenate([each[number] for each in alone]))


def test_a_large_file_that_is_mapped_block_by_block_gives_the_same_results(small_blocks, tmp_path, monkeypatch):
    index, queries = build(tmp_path), make_vectors(20, seed=1)
    expected = index.search(queries, 10)
    monkeypatch.setattr(module, "_MAPPED", 0)
    for _ in range(2):
        for number, values in enumerate(index.search(queries, 10)):
            np.testing.assert_array_equal(values, expected[number])


def test_equal_scores_are_in_the_order_of_the_rows(small_blocks, tmp_path):
    index = build(tmp_path, np.repeat(make_vectors(10), 30, axis=0))
    scores, rows = index.search(make_vectors(10), 30)
    for number in range(10):
        assert rows[number].tolist() == list(range(30 * number, 30 * number + 30))
    assert len(set(scores[0].tolist())) == 1


def test_deleted_rows_are_left_out_of_any_block(small_blocks, tmp_path):
    deleted = np.arange(100, 290)
    index = build(tmp_path).delete(deleted)
    alive = np.setdiff1d(np.arange(300), deleted)
    for query, rows in zip(VECTORS_OF_300, index.search(VECTORS_OF_300[:9], 200)[1], strict=False):
        assert sorted(rows.tolist()) == alive.tolist()
        assert rows[:12].tolist() == alive[plain_search(VECTORS_OF_300[alive], query, 12)[0]].tolist()


def test_vectors_of_zeros_stay(tmp_path):
    index = build(tmp_path, np.zeros((2, 16), np.float32))
    assert index.search(make_vectors(1), 2)[0].tolist() == [[0, 0]]


def test_all_rows_may_be_deleted_and_new_ones_take_their_ids(tmp_path):
    index = build(tmp_path, VECTORS_OF_300[:5]).delete([1, 2]).delete([0, 3, 4])
    assert (len(index), index.search(VECTORS_OF_300[:2], 3)[1].shape) == (0, (2, 0))
    records = [{"id": 1, "text": "again"}]
    index = index.add(lambda done: [(records, VECTORS_OF_300[:1], Coverage())])
    assert index.find_rows(["1"]) == {"1": [5]}
    assert index.search(VECTORS_OF_300[0], 3)[1].tolist() == [[5]]


def test_other_programs_can_read_the_files(tmp_path):
    index = Index.create(tmp_path / "index", Manifest(16, "dot"), chunks_of(VECTORS_OF_300))
    np.testing.assert_array_equal(np.fromfile(index.folder / VECTORS, "<f4").reshape(-1, 16), VECTORS_OF_300)
    content = (index.folder / ROWS).read_bytes()
    offsets = np.fromfile(index.folder / OFFSETS, "<i8").tolist()
    rows = [json.loads(content[start:end]) for start, end in itertools.pairwise([*offsets, len(content)])]
    assert rows == index.rows(range(300))


@pytest.mark.parametrize(
    "queries, message",
    [
        (make_vectors(1, 8), "have dimension 8, and the index 16"),
        (np.full((1, 16), np.nan), "is not finite"),
    ],
)
def test_wrong_queries_are_refused(queries, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        build(tmp_path).search(queries, 3)


# --- A manifest may hold more than the commands write so far ---


def test_rows_can_be_replaced_in_one_step_and_an_index_can_have_words_only(tmp_path):
    folder = tmp_path / "index"
    folder.mkdir()
    lines = [json.dumps({"id": "a", "text": text, "stars": 5}) + "\n" for text in ("an old cat", "a new cat")]
    (folder / ROWS).write_text("".join(lines))
    np.array([0, len(lines[0])], "<i8").tofile(folder / OFFSETS)
    (folder / VECTORS).touch()
    BM25.build([(1, "a new cat")]).save(folder / "bm25" / "2")
    words = {
        file.name: {"size": file.stat().st_size, "sha256": ""} for file in sorted((folder / "bm25" / "2").iterdir())
    }
    additions = (Addition(rows=1, bytes=len(lines[0])), Addition(rows=1, bytes=len(lines[1])))
    content = asdict(Manifest(0, additions=additions, deleted=(0,), words=words))
    write_with_checksum(folder / MANIFEST, {"format": 2, "rows": 1, **content})
    index = Index.open(folder)
    assert index.find_rows(["a"]) == {"a": [1]}
    assert index.rows(index.words.search("cat", 3, index.deleted)[1]) == [{"id": "a", "text": "a new cat", "stars": 5}]


# --- Commands that are killed, and disks that are full ---


def snapshot_steps(monkeypatch, folder, copies):
    """Copy a folder before each step that changes what is on disk: a kill there leaves the copy."""
    numbers = itertools.count()

    def patch(owner, name):
        function = getattr(owner, name)

        def copy_first(*arguments, **options):
            if folder.exists():
                shutil.copytree(folder, copies / f"{next(numbers):03d}")
            return function(*arguments, **options)

        monkeypatch.setattr(owner, name, copy_first)

    for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "rename"), (Path, "unlink"), (shutil, "rmtree")):
        patch(owner, name)


FEW = VECTORS_OF_300[:30]


def run_build(folder):
    Index.create(folder / "index", Manifest(16), chunks_of(FEW, size=15), source=SOURCE)


def run_addition(folder):
    index = Index.open(folder / "index", verify=True)
    if index.manifest.has_source(SOURCE):
        index.delete_old_words()
    else:
        index.add(chunks_of(FEW, first=30, size=15), source=SOURCE)


def run_deletion(folder):
    Index.open(folder / "index").delete([7, 8])


CHANGES = {run_build: (None, 30), run_addition: (30, 60), run_deletion: (30, 28)}
"""A change -> number of rows before and after it."""


@pytest.fixture(params=CHANGES)
def change(request, tmp_path):
    """A change, the folder in which it is made, and the files that it leaves when nothing interrupts it."""
    for name in ("work", "complete"):
        (tmp_path / name).mkdir()
        if request.param is not run_build:
            build(tmp_path / name, FEW)
    request.param(tmp_path / "complete")
    return request.param, tmp_path / "work", files_of(tmp_path / "complete")


def check_that_a_change_is_complete_or_invisible(change, folder):
    before, after = CHANGES[change]
    if before is None and not (folder / "index").exists():
        return
    index = Index.open(folder / "index", verify=True)
    assert len(index) in (before, after)
    assert len(index.search(FEW[:1], 1000)[1][0]) == len(index)
    assert len(index.words.search("text", 1000, index.deleted)[1]) == len(index)


def repeat(change, folder):
    if change is not run_build or not (folder / "index").exists():
        change(folder)


def test_a_command_that_is_killed_at_any_step_resumes(change, tmp_path, monkeypatch):
    change, folder, complete = change
    with monkeypatch.context() as patches:
        snapshot_steps(patches, folder, tmp_path / "copies")
        change(folder)
    assert files_of(folder) == complete
    copies = sorted((tmp_path / "copies").iterdir())
    assert len(copies) >= (2 if change is run_deletion else 20)
    for copy in copies:
        check_that_a_change_is_complete_or_invisible(change, copy)
        repeat(change, copy)
        assert files_of(copy) == complete, copy.name


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_a_command_that_ends_at_any_step_resumes(error, change, tmp_path, monkeypatch):
    change, folder, complete = change
    for step in itertools.count():
        work = Path(shutil.copytree(folder, tmp_path / f"step-{step}"))
        with monkeypatch.context() as patches:
            numbers = itertools.count()

            def fail(_, numbers=numbers, step=step):
                if next(numbers) == step:
                    raise error

            patches.setattr(os, "fsync", fail)
            try:
                change(work)
                break
            except (ResourceError, KeyboardInterrupt) as ended:
                assert isinstance(ended, KeyboardInterrupt) or "free some space" in str(ended)
        check_that_a_change_is_complete_or_invisible(change, work)
        repeat(change, work)
        assert files_of(work) == complete, step
    assert step >= (1 if change is run_deletion else 10)


def kill_after(chunks, count):
    """Yield a number of chunks, then end as a killed process does; and list the first rows that were asked for."""
    firsts = []

    def yield_chunks(done):
        firsts.append(done)
        yield from itertools.islice(chunks(done), count)
        if count is not None:
            raise KeyboardInterrupt

    return yield_chunks, firsts


@pytest.mark.parametrize("source, kept", [(SOURCE, 200), ({"rows": "others"}, 0), (None, 0)])
def test_only_the_same_rows_are_resumed(source, kept, tmp_path):
    index = build(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        index.add(kill_after(chunks_of(VECTORS_OF_300, first=300), 2)[0], source=SOURCE)
    with (index.folder / VECTORS).open("ab") as stream:
        stream.write(b"half a chunk")
    chunks, firsts = kill_after(chunks_of(VECTORS_OF_300, first=300), None)
    assert len(Index.open(index.folder).delete([0]).add(chunks, source=source)) == 599
    assert firsts == [kept]
    assert (index.folder / VECTORS).stat().st_size == 4 * 16 * 600


@pytest.mark.parametrize("name", [MANIFEST, VECTORS, ROWS, OFFSETS])
@pytest.mark.parametrize("damage", ["flipped", "half", "empty"])
def test_a_killed_build_that_is_damaged_is_started_over(damage, name, tmp_path, caplog):
    caplog.set_level("INFO", "bertkit")
    complete = files_of(build(tmp_path, source=SOURCE).folder)
    with pytest.raises(KeyboardInterrupt):
        killed, _ = kill_after(chunks_of(VECTORS_OF_300), 2)
        Index.create(tmp_path / "other", Manifest(16), killed, source=SOURCE)
    file = tmp_path / ".other.building" / name
    content = bytearray(file.read_bytes())
    content[150] ^= 1
    file.write_bytes({"flipped": content, "half": content[: len(content) // 2], "empty": b""}[damage])
    chunks, firsts = kill_after(chunks_of(VECTORS_OF_300), None)
    assert files_of(Index.create(tmp_path / "other", Manifest(16), chunks, source=SOURCE).folder) == complete
    assert firsts == [0]
    assert "damaged" in caplog.text and name in caplog.text and "all rows are embedded again" in caplog.text


# --- Refused before anything is written ---


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_vector_that_is_not_finite_leaves_nothing(value, tmp_path):
    vectors = VECTORS_OF_300.copy()
    vectors[150] = value
    with pytest.raises(ModelError, match="id 150 is not finite"):
        build(tmp_path, vectors)
    assert list(tmp_path.iterdir()) == []


def test_an_index_is_not_overwritten(tmp_path):
    build(tmp_path)
    before = files_of(tmp_path / "index")
    with pytest.raises(UsageError, match="search add"):
        build(tmp_path)
    assert files_of(tmp_path / "index") == before
    assert (tmp_path / "index" / ".gitignore").read_text().splitlines()[-1] == "*"


def test_an_unknown_similarity_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(UsageError, match="euclidean"):
        Index.create(tmp_path / "index", Manifest(16, "euclidean"), chunks_of(VECTORS_OF_300))
    assert list(tmp_path.iterdir()) == []


# --- Damage ---


def test_a_flipped_byte_in_any_file_is_noticed(tmp_path):
    index = build(tmp_path).add(chunks_of(VECTORS_OF_300, first=300))
    files = [file for file in sorted(index.folder.rglob("[!.]*")) if file.is_file()]
    assert len(files) > 6
    for file in files:
        content = file.read_bytes()
        for place in (0, len(content) // 3, len(content) - 2):
            file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            with pytest.raises(DataError, match="damaged") as refused:
                Index.open(index.folder, verify=True)
            assert refused.value.file == str(file)
        file.write_bytes(content)
    assert len(Index.open(index.folder, verify=True)) == 600


@pytest.mark.parametrize(
    "damage", [lambda file, content: file.write_bytes(content[:-9]), lambda file, _: file.unlink()]
)
def test_a_truncated_or_missing_file_is_noticed_when_an_index_is_opened(damage, tmp_path):
    index = build(tmp_path)
    for file in [file for file in sorted(index.folder.rglob("[!.]*")) if file.is_file()]:
        content = file.read_bytes()
        damage(file, content)
        with pytest.raises((DataError, UsageError), match=r"damaged|is missing|not an index") as refused:
            Index.open(index.folder)
        assert refused.value.file in (str(file), str(index.folder))
        file.write_bytes(content)


@pytest.mark.parametrize(
    "text, message",
    [
        ("[]", "the manifest of the index is damaged"),
        ('{"format": 1}', "an index of format 1, where this bertkit reads 2 .* build the index again"),
    ],
)
def test_another_manifest_is_refused(text, message, tmp_path):
    folder = build(tmp_path).folder
    (folder / MANIFEST).write_text(text)
    with pytest.raises(DataError, match=message) as refused:
        Index.open(folder)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda path: None, "no such index"),
        (lambda path: path.write_text("text"), "a file, not an index"),
        (lambda path: path.mkdir(), f"not an index: it has no {MANIFEST}"),
    ],
)
def test_other_paths_are_refused(make, message, tmp_path):
    make(tmp_path / "other")
    with pytest.raises(UsageError, match=message):
        Index.open(tmp_path / "other")


# --- Words ---

TEXTS = ["a cat", "the old cat", "dogs bark", "one more cat"]


def test_words_follow_the_rows(tmp_path):
    index = Index.create(tmp_path / "index", Manifest(16), chunks_of_texts(TEXTS[:3]))
    added = index.delete([0]).add(chunks_of_texts(TEXTS[3:], first=3))
    scores, rows = added.words.search("cat", 9, added.deleted)
    plain = BM25.build([(1, TEXTS[1]), (2, TEXTS[2]), (3, TEXTS[3])])
    assert rows.tolist() == [1, 3]
    np.testing.assert_array_equal(scores, plain.score("cat", rows))
    assert [path.name for path in (added.folder / "bm25").iterdir()] == ["2"]


def test_without_bm25s_there_are_no_words(monkeypatch, tmp_path, caplog):
    caplog.set_level("INFO", "bertkit")
    monkeypatch.setitem(sys.modules, "bm25s", None)
    index = Index.create(tmp_path / "index", Manifest(16), chunks_of_texts(TEXTS))
    assert "the index has no words: search by words needs the package bm25s" in caplog.text
    with pytest.raises(UsageError, match="the index has no words"):
        _ = index.words
