"""Reading texts more than once, and the vectors of a file."""

from __future__ import annotations

import json

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from safetensors.numpy import save_file

from bertkit.errors import DataError, UsageError
from bertkit.vectors.texts import TextFile, VectorSource, read_vectors, to_unit_length
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


def test_texts_are_read_twice_and_a_file_that_changes_is_noticed(tmp_path):
    file = write_csv(tmp_path / "a.csv", [{"body": " one "}, {"body": ""}])
    texts = TextFile(file, "body")
    assert [(row.line, row.text) for row in texts] == [row[:1] + row[2:] for row in texts] == [(2, "one"), (3, "")]
    write_csv(file, [{"body": "one"}, {"body": "two"}])
    with pytest.raises(DataError, match="changed while it was read"):
        list(texts)


@pytest.mark.parametrize(
    ("row", "message"), [({"txt": "a"}, "no column 'text'.*did you mean txt"), ({"text": 3}, "not a text: '3'.*:1")]
)
def test_a_column_without_texts_is_refused(row, message, tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=message):
        list(TextFile(file))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (VectorSource(), "no vectors"),
        (VectorSource("demo", ("a.npy",)), "--model and --vectors"),
        (VectorSource(None, ("a.npy",), "query"), "--prompt without --model"),
    ],
)
def test_vectors_come_from_one_place(source, message):
    with pytest.raises(UsageError, match=message):
        _ = source.embedder


def test_standard_input_is_refused():
    with pytest.raises(UsageError, match="standard input only once"):
        TextFile.open("-")


def test_vectors_of_several_files_are_chosen_by_row(tmp_path):
    files = (write_vectors(tmp_path / "a.npy"), write_vectors(tmp_path / "b.npy", VECTORS + 100))
    chosen = VectorSource(files=files).read([], np.array([3, 4]), [4, 4])
    np.testing.assert_array_equal(chosen, [VECTORS[3], VECTORS[0] + 100])


def test_a_vector_of_zeros_stays_one():
    np.testing.assert_array_equal(
        to_unit_length(np.array([[3, 4], [0, 0]], dtype=np.float32)), np.array([[0.6, 0.8], [0, 0]], dtype=np.float32)
    )
