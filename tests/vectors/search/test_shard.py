"""A shard: its files as other programs read them, and what a kill leaves of it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from bertkit.errors import DataError, ModelError
from bertkit.vectors.search.manifest import SHARD_FILES
from bertkit.vectors.search.passages import Coverage
from bertkit.vectors.search.shard import JOURNAL, Shard, ShardWriter, prepare
from tests.vectors.search.test_index import make_vectors

ORIGIN = {"rows": "a"}


def records(first, count):
    return [{"id": number, "text": f"Zeile {number}: é\u2028"} for number in range(first, first + count)]


def write(folder, vectors, chunks=(0, 30, 50), origin=ORIGIN):
    """Write the chunks that are not done; return how many rows were, and what the manifest says."""
    with ShardWriter(folder, 16, "dot", origin) as writer:
        done = writer.rows
        for start, end in zip(chunks, [*chunks[1:], len(vectors)], strict=True):
            if start >= done:
                writer.append(records(start, end - start), vectors[start:end], Coverage())
        return done, writer.finish()


def test_numpy_reads_the_files(tmp_path):
    vectors = make_vectors(70)
    _, info = write(tmp_path / "shard", vectors)
    np.testing.assert_array_equal(np.load(tmp_path / "shard" / "vectors.npy"), vectors)
    lines = (tmp_path / "shard" / "rows.jsonl").read_bytes().split(b"\n")
    assert [json.loads(line) for line in lines[:-1]] == records(0, 70)
    assert Shard(tmp_path / "shard", info).read_rows([69, 0, 30]) == [*records(69, 1), *records(0, 1), *records(30, 1)]


@pytest.mark.parametrize("origin, kept", [(ORIGIN, 50), ({"rows": "b"}, 0), (None, 0)])
def test_what_was_cut_off_goes_on_after_the_last_chunk(origin, kept, tmp_path):
    vectors = make_vectors(70)
    _, whole = write(tmp_path / "whole" / "shard", vectors)
    with ShardWriter(tmp_path / "shard", 16, "dot", ORIGIN) as writer:
        writer.append(records(0, 30), vectors[:30], Coverage())
        writer.append(records(30, 20), vectors[30:50], Coverage())
        writer._streams["vectors.npy"].write(b"half a chunk")
    source = origin and origin["rows"]
    assert write(tmp_path / "shard", vectors, origin=origin) == (kept, replace(whole, source=source))


def test_a_journal_of_more_than_is_there_is_not_trusted(tmp_path):
    vectors = make_vectors(70)
    write(tmp_path / "shard", vectors)
    with (tmp_path / "shard" / "rows.jsonl").open("r+b") as stream:
        stream.truncate(10)
    assert (tmp_path / "shard" / JOURNAL).exists()
    assert write(tmp_path / "shard", vectors)[0] == 0


@pytest.mark.parametrize("name", [*SHARD_FILES, JOURNAL])
@pytest.mark.parametrize("damage", ["flipped", "half", "empty"])
def test_what_was_cut_off_and_is_damaged_is_written_anew(damage, name, tmp_path, caplog):
    caplog.set_level("INFO", "bertkit")
    vectors = make_vectors(70)
    _, whole = write(tmp_path / "whole" / "shard", vectors)
    with ShardWriter(tmp_path / "shard", 16, "dot", ORIGIN) as writer:
        writer.append(records(0, 30), vectors[:30], Coverage())
    file = tmp_path / "shard" / name
    content = bytearray(file.read_bytes())
    content[150] ^= 1
    file.write_bytes({"flipped": content, "half": content[: len(content) // 2], "empty": b""}[damage])
    assert write(tmp_path / "shard", vectors) == (0, whole)
    assert f"{name} is damaged" in caplog.text and "all rows are embedded anew" in caplog.text


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_vector_that_is_not_finite_is_refused(value, tmp_path):
    vectors = make_vectors(3)
    vectors[1, 4] = value
    with (
        ShardWriter(tmp_path / "shard", 16, "cosine") as writer,
        pytest.raises(ModelError, match="id 1 is not finite"),
    ):
        writer.append(records(0, 3), vectors, Coverage())


def test_vectors_of_zeros_stay():
    assert prepare(np.zeros((1, 4)), "cosine").tolist() == [[0, 0, 0, 0]]


def test_a_damaged_file_is_named(tmp_path):
    _, info = write(tmp_path / "shard", make_vectors(70))
    (tmp_path / "shard" / "vectors.npy").write_bytes(b"nothing of numpy")
    with pytest.raises(DataError, match=r"damaged \(.*vectors\.npy\)"):
        _ = Shard(tmp_path / "shard", info).vectors
