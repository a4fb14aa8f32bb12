"""Files of vectors, read back by the libraries of their formats."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet
from safetensors import safe_open

from bertkit.errors import DataError, UsageError
from bertkit.vectors.embedding.outputs import DTYPES, gather, output_files, write_output
from bertkit.vectors.embedding.parts import write_vectors
from bertkit.vectors.embedding.quantize import from_int8
from bertkit.vectors.embedding.units import UnitVectors

VECTORS = np.random.default_rng(0).normal(size=(5, 16)).astype(np.float32)
WORDS = ["a", "b", "c", "d", "e"]
RANGES = np.stack([VECTORS.min(axis=0), VECTORS.max(axis=0)])


@pytest.fixture
def parts(tmp_path):
    """Two parts, the second with ids that are text, and one without vectors between them."""
    files = [tmp_path / f"{number}-x.arrow" for number in range(3)]
    write_vectors(files[0], [7, 8, 9], UnitVectors(VECTORS[:3], [0, 0, 2], {"word": WORDS[:3]}))
    write_vectors(files[1], [10], UnitVectors(np.zeros((0, 0), dtype=np.float32), [], {"word": []}))
    write_vectors(files[2], ["x", 11], UnitVectors(VECTORS[3:], [0, 1], {"word": WORDS[3:]}))
    return files


def read_back(file: Path):
    """Return the rows and the arrays of an output, and what is said of it."""
    if file.suffix == ".parquet":
        table = parquet.read_table(file)
        arrays = {
            name: np.array(table.column(name).to_pylist())
            for name in ("embedding", "int8")
            if name in table.column_names
        }
        rows = table.select(["id", "word"]).to_pylist()
        return rows, arrays, json.loads(table.schema.metadata[b"bertkit"])
    if file.suffix == ".jsonl":
        records = [json.loads(line) for line in file.read_text().splitlines()]
        arrays = {
            name: np.array([record.pop(name) for record in records])
            for name in ("embedding", "int8")
            if name in records[0]
        }
        return records, arrays, json.loads(Path(f"{file}.json").read_text())
    rows = [json.loads(line) for line in Path(f"{file}.rows.jsonl").read_text().splitlines()]
    if file.suffix == ".npy":
        arrays = {"embedding": np.load(file, mmap_mode="r")}
        if Path(f"{file}.int8.npy").exists():
            arrays["int8"] = np.load(f"{file}.int8.npy", mmap_mode="r")
        return rows, arrays, json.loads(Path(f"{file}.json").read_text())
    with safe_open(file, "np") as tensors:
        arrays = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
        return rows, arrays, json.loads(tensors.metadata()["bertkit"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ending", [".parquet", ".npy", ".safetensors", ".jsonl"])
def test_an_output_holds_all_vectors_in_order(parts, tmp_path, ending, dtype):
    file = tmp_path / f"out{ending}"
    write_output(gather(parts, dtype, {"model": "tiny"}), file, tmp_path / "staging")
    rows, arrays, about = read_back(file)
    as_text = ending == ".parquet"  # a column has one type
    assert [row["id"] for row in rows] == (["7", "7", "9", "x", "11"] if as_text else [7, 7, 9, "x", "11"])
    assert [row["word"] for row in rows] == WORDS
    assert (about["model"], about["dtype"], about["vectors"], about["width"]) == ("tiny", dtype, 5, 16)
    if dtype == "float32":
        np.testing.assert_array_equal(arrays["embedding"].astype(np.float32), VECTORS)
    if dtype == "float16":
        np.testing.assert_array_equal(arrays["embedding"].astype(np.float16), VECTORS.astype(np.float16))
    if dtype == "binary":
        np.testing.assert_array_equal(np.unpackbits(arrays["embedding"].astype(np.uint8), axis=1), VECTORS > 0)
    if dtype in ("int8", "binary"):
        ranges = np.array(about["ranges"], dtype=np.float32)
        undone = from_int8(arrays["int8" if dtype == "binary" else "embedding"], ranges)
        assert (abs(undone - VECTORS) <= (RANGES[1] - RANGES[0]) / 255 / 2 * 1.001).all()
    assert set(tmp_path.glob("out*")) == set(output_files(file, dtype))
    assert list((tmp_path / "staging").iterdir()) == []


def test_an_output_replaces_another(parts, tmp_path):
    file = tmp_path / "out.npy"
    for dtype in ("float32", "float16"):
        write_output(gather(parts, dtype, {}), file, tmp_path / "staging")
    assert np.load(file).dtype == np.float16


def test_what_cannot_be_written_is_refused(parts):
    with pytest.raises(UsageError, match=r"unknown ending '.csv' - one of .parquet, .npy, .safetensors, .jsonl"):
        output_files(Path("out.csv"), "float32")
    with pytest.raises(UsageError, match="did you mean float16"):
        output_files(Path("out.npy"), "float61")
    with pytest.raises(DataError, match="the rows have no words"):
        gather(parts[1:2], "float32", {})
