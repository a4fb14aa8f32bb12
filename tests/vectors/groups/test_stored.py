"""Vectors in files, written by other programs and by `bertkit embed`."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from safetensors.numpy import save_file

from bertkit.errors import DataError, UsageError
from bertkit.vectors.embedding.quantize import to_unit_length
from bertkit.vectors.groups.stored import read_description, read_vectors
from tests.conftest import write_csv

VECTORS = np.arange(12, dtype=np.float32).reshape(4, 3)


def write_vectors(file, vectors=VECTORS):
    if file.suffix == ".npy":
        np.save(file, vectors)
    elif file.suffix == ".safetensors":
        save_file({"embedding": vectors}, file)
    elif file.suffix == ".jsonl":
        file.write_text(
            "".join(json.dumps({"id": n, "embedding": line.tolist()}) + "\n" for n, line in enumerate(vectors))
        )
    else:
        parquet.write_table(pyarrow.table({"id": range(len(vectors)), "embedding": list(vectors)}), file)
    return file


@pytest.mark.parametrize("ending", [".npy", ".safetensors", ".jsonl", ".parquet"])
def test_vectors_are_read_from_each_format(ending, tmp_path):
    file = write_vectors(tmp_path / f"vectors{ending}")
    np.testing.assert_array_equal(read_vectors(file, 4), VECTORS)
    with pytest.raises(DataError, match="4 vectors for 5 rows"):
        read_vectors(file, 5)


def wrong(value):
    vectors = VECTORS.copy()
    vectors[2, 1] = value
    return vectors


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("a.npy", wrong(np.nan), DataError, r"not finite .*a.npy:3"),
        ("a.npy", wrong(np.inf), DataError, r"not finite .*a.npy:3"),
        ("a.npy", VECTORS.astype(int), DataError, "array of int64"),
        ("a.npy", VECTORS[0], DataError, "1 axes"),
        ("a.npy", b"\x93NUMPY", DataError, "cannot be read"),
        ("a.parquet", b"PAR1", DataError, "cannot be read"),
        ("a.jsonl", b'{"vector": [1]}\n', DataError, "no vectors in a column 'embedding'"),
        ("a.txt", b"", UsageError, "unknown ending '.txt'"),
        ("missing.npy", None, DataError, "no such file"),
    ],
)
def test_wrong_vectors_end_in_one_line(name, content, error, message, tmp_path):
    file = tmp_path / name
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        np.save(file, content)
    with pytest.raises(error, match=message):
        read_vectors(file, 4)


def test_a_vector_of_zeros_stays_one():
    np.testing.assert_array_equal(
        to_unit_length(np.array([[3, 4], [0, 0]], dtype=np.float32)), np.array([[0.6, 0.8], [0, 0]], dtype=np.float32)
    )


@pytest.mark.parametrize("ending", [".npy", ".safetensors", ".jsonl", ".parquet"])
def test_what_embed_notes_is_read(ending, tmp_path, tiny_model):
    from bertkit.vectors.embedder import Embedder
    from bertkit.vectors.embedding.sources import TextSource
    from bertkit.workflows.embed import embed_to_file

    embedder = Embedder(str(tiny_model), precision="fp32")
    rows = write_csv(tmp_path / "rows.csv", [{"text": "a good film"}, {"text": "a bad song"}])
    exact = embedder.encode(["a good film", "a bad song"])
    for dtype, error in (("float32", 1e-6), ("int8", 0.01)):
        file = tmp_path / f"{dtype}{ending}"
        embed_to_file(embedder, TextSource(rows), file, dtype=dtype)
        assert read_description(file) == json.loads(json.dumps(embedder.describe()))
        np.testing.assert_allclose(read_vectors(file, 2), exact, atol=error)


@pytest.mark.parametrize("ending", [".npy", ".safetensors", ".jsonl", ".parquet"])
def test_damaged_files_are_read_or_refused_in_one_line(ending, tmp_path):
    file = write_vectors(tmp_path / f"vectors{ending}")
    content = file.read_bytes()
    step = max(1, len(content) // 60)
    flipped = [content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :] for at in range(0, len(content), step)]
    for damaged in (*flipped, *(content[:at] for at in range(0, len(content), step))):
        file.write_bytes(damaged)
        with contextlib.suppress(DataError):
            read_vectors(file, 4)
            read_description(file)
    for empty in (b"", content[: len(content) // 2]):
        file.write_bytes(empty)
        with pytest.raises(DataError):
            read_vectors(file, 4)


@pytest.mark.parametrize("note", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_damaged_note_is_refused_as_no_note_is_not(note, tmp_path):
    file = write_vectors(tmp_path / "vectors.npy")
    assert read_description(file) is None
    (tmp_path / "vectors.npy.json").write_bytes(note)
    for read in (read_description, lambda file: read_vectors(file, 4)):
        with pytest.raises(DataError, match="noted of the vectors is damaged"):
            read(file)
