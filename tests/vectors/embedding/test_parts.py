"""Parts of an output: found again by the same command, refused to another."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.errors import ResourceError, UsageError
from bertkit.vectors.embedding.parts import PartFolder, is_whole, read_parts, vectors_of, write_part
from bertkit.vectors.embedding.units import UnitVectors

VECTORS = np.eye(3, 2, dtype=np.float32)
OPTIONS = {"--model": "abc", "--pooling": None}


@pytest.fixture
def begun(tmp_path):
    folder = PartFolder(tmp_path / "out.npy", OPTIONS)
    assert folder.open(fresh=False) is None
    folder.begin("bf16")
    write_part(folder.file(0, "d" * 64), ["a", "b", "c"], UnitVectors(VECTORS, range(3)))
    return folder


def test_parts_are_found_again(begun, tmp_path):
    again = PartFolder(tmp_path / "out.npy", OPTIONS)
    assert again.open(fresh=False) == "bf16"
    (table,) = read_parts([again.file(0, "d" * 64)])
    assert table.column("id").to_pylist() == ["a", "b", "c"]
    np.testing.assert_array_equal(vectors_of(table), VECTORS)
    assert not again.file(0, "e" * 64).exists()


def test_parts_of_other_options_are_refused_unless_fresh(begun, tmp_path):
    other = PartFolder(tmp_path / "out.npy", {**OPTIONS, "--pooling": "cls"})
    with pytest.raises(UsageError, match=r"an interrupted command with --pooling None has left parts .* or --fresh"):
        other.open(fresh=False)
    assert begun.has_parts()
    assert other.open(fresh=True) is None
    assert not begun.folder.exists()


def test_a_folder_without_parts_does_not_count(begun, tmp_path):
    begun.file(0, "d" * 64).unlink()
    assert PartFolder(tmp_path / "out.npy", {"--model": "x"}).open(fresh=False) is None


def test_a_part_of_other_rows_is_replaced(begun):
    file = begun.file(0, "e" * 64)
    write_part(file, [1, 2, 2**70], UnitVectors(VECTORS, range(3)))
    assert list(begun.folder.glob("*.arrow")) == [file]
    (table,) = read_parts([file])
    assert table.column("id").to_pylist() == ["1", "2", str(2**70)]


DAMAGE = {
    "flipped": lambda content: content[:90] + bytes([content[90] ^ 1]) + content[91:],
    "half": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_part_is_not_taken_for_one(damage, begun, tmp_path, caplog):
    caplog.set_level("INFO", "bertkit")
    file, plan = begun.file(0, "d" * 64), begun.folder / "plan.json"
    assert is_whole(file)
    file.write_bytes(damage(file.read_bytes()))
    assert not is_whole(file) and not file.exists()
    assert f"{file} is damaged, so its vectors are computed anew" in caplog.text
    write_part(file, ["a", "b", "c"], UnitVectors(VECTORS, range(3)))
    plan.write_bytes(damage(plan.read_bytes()))
    assert PartFolder(tmp_path / "out.npy", OPTIONS).open(fresh=False) is None
    assert f"{plan} is damaged, so all vectors are computed anew" in caplog.text


def test_a_part_that_is_damaged_meanwhile_is_deleted_and_named(begun):
    file = begun.file(0, "d" * 64)
    file.write_bytes(b"ARROW1" + bytes(100))
    with pytest.raises(ResourceError, match=r"the part was damaged, and is deleted .* - repeat the command"):
        list(read_parts([file]))
    assert not file.exists()
