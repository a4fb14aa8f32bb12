"""Files of vectors, written by `bertkit embed` and by other programs."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from bertkit.errors import DataError, UsageError
from bertkit.vectors.embedder import Embedder
from bertkit.vectors.text_files import TextSource
from bertkit.vectors.vector_files import (
    DTYPES,
    output_files,
    read_description,
    read_vectors,
    to_unit_length,
    truncate,
    write_vector_part,
    write_vectors,
)
from bertkit.workflows.embed import embed_to_file
from tests.conftest import write_csv

VECTORS = np.arange(12, dtype=np.float32).reshape(4, 3)
DRAWN = np.random.default_rng(0).normal(size=(5, 16)).astype(np.float32)
WORDS = ["a", "b", "c", "d", "e"]


@pytest.fixture
def parts(tmp_path):
    """Two parts, the second with ids that are text, and one without vectors between them."""
    files = [tmp_path / f"{number}-x.arrow" for number in range(3)]
    write_vector_part(files[0], [7, 7, 9], DRAWN[:3], {"word": WORDS[:3]})
    write_vector_part(files[1], [], np.zeros((0, 0), dtype=np.float32), {"word": []})
    write_vector_part(files[2], ["x", 11], DRAWN[3:], {"word": WORDS[3:]})
    return files


def read_back(file: Path):
    """Return the rows and the vectors of an output, and its description."""
    if file.suffix == ".parquet":
        table = parquet.read_table(file)
        vectors = np.stack(table.column("embedding").to_numpy())
        return table.select(["id", "word"]).to_pylist(), vectors, json.loads(table.schema.metadata[b"bertkit"])
    rows = [json.loads(line) for line in Path(f"{file}.rows.jsonl").read_text().splitlines()]
    return rows, np.load(file, mmap_mode="r"), json.loads(Path(f"{file}.json").read_text())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ending", [".parquet", ".npy"])
def test_an_output_holds_all_vectors_in_order(parts, tmp_path, ending, dtype):
    file = tmp_path / f"out{ending}"
    described = write_vectors(parts, file, tmp_path / "staging", dtype=dtype, about={"model": "tiny"})
    rows, vectors, about = read_back(file)
    as_text = ending == ".parquet"  # a column has one type
    assert [row["id"] for row in rows] == (["7", "7", "9", "x", "11"] if as_text else [7, 7, 9, "x", "11"])
    assert [row["word"] for row in rows] == WORDS
    assert about == described == {"model": "tiny", "dtype": dtype, "vectors": 5, "width": 16}
    assert vectors.dtype == dtype
    np.testing.assert_array_equal(vectors, DRAWN.astype(dtype))
    assert set(tmp_path.glob("out*")) == set(output_files(file, dtype))
    assert list((tmp_path / "staging").iterdir()) == []


def test_an_output_replaces_another(parts, tmp_path):
    file = tmp_path / "out.npy"
    for dtype in ("float32", "float16"):
        write_vectors(parts, file, tmp_path / "staging", dtype=dtype, about={})
    assert np.load(file).dtype == np.float16


def test_what_cannot_be_written_is_refused(parts, tmp_path):
    with pytest.raises(UsageError, match=r"unknown ending '.csv' - name a .npy or .parquet file"):
        output_files(Path("out.csv"), "float32")
    with pytest.raises(UsageError, match="did you mean float16"):
        output_files(Path("out.npy"), "float61")
    with pytest.raises(DataError, match="the rows have no words"):
        write_vectors(parts[1:2], tmp_path / "out.npy", tmp_path / "staging", dtype="float32", about={})


def test_ids_are_integers_or_text(tmp_path):
    for ids, read in (["abc", ["a", "b", "c"]], [[1, 2, 3], [1, 2, 3]], [[1, 2, 2**70], ["1", "2", str(2**70)]]):
        write_vector_part(tmp_path / "0-a.part", ids, DRAWN[:3], {})
        write_vectors([tmp_path / "0-a.part"], tmp_path / "a.parquet", tmp_path / "b", dtype="float32", about={})
        assert parquet.read_table(tmp_path / "a.parquet").column("id").to_pylist() == read


def test_the_first_components_have_length_1_again():
    unit = DRAWN / np.linalg.norm(DRAWN, axis=1, keepdims=True)
    np.testing.assert_allclose(np.linalg.norm(truncate(unit, 4, is_normalized=True), axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(truncate(DRAWN, 4, is_normalized=False), DRAWN[:, :4])
    with pytest.raises(UsageError, match="a dimension of 17 - the model's vectors have 16"):
        truncate(DRAWN, 17, is_normalized=False)


def save_vectors(file, vectors=VECTORS):
    if file.suffix == ".npy":
        np.save(file, vectors)
    else:
        parquet.write_table(pyarrow.table({"id": range(len(vectors)), "embedding": list(vectors)}), file)
    return file


@pytest.mark.parametrize("ending", [".npy", ".parquet"])
def test_vectors_are_read_from_each_format(ending, tmp_path):
    file = save_vectors(tmp_path / f"vectors{ending}")
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


@pytest.mark.parametrize("ending", [".npy", ".parquet"])
def test_what_embed_notes_is_read(ending, tmp_path, tiny_model):
    embedder = Embedder(str(tiny_model), precision="fp32")
    rows = write_csv(tmp_path / "rows.csv", [{"text": "a good film"}, {"text": "a bad song"}])
    exact = embedder.encode(["a good film", "a bad song"])
    for dtype, error in (("float32", 1e-6), ("float16", 1e-3)):
        file = tmp_path / f"{dtype}{ending}"
        embed_to_file(embedder, TextSource(rows), file, dtype=dtype)
        assert read_description(file) == json.loads(json.dumps(embedder.describe()))
        np.testing.assert_allclose(read_vectors(file, 2), exact, atol=error)


@pytest.mark.parametrize("ending", [".npy", ".parquet"])
def test_damaged_files_are_read_or_refused_in_one_line(ending, tmp_path):
    file = save_vectors(tmp_path / f"vectors{ending}")
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
    file = save_vectors(tmp_path / "vectors.npy")
    assert read_description(file) is None
    (tmp_path / "vectors.npy.json").write_bytes(note)
    for read in (read_description, lambda file: read_vectors(file, 4)):
        with pytest.raises(DataError, match="about the vectors is damaged"):
            read(file)
