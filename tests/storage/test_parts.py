"""Parts of an output: found again by the same command, refused to another, joined by the shard that ends last."""

from __future__ import annotations

import pytest

from bertkit.errors import ResourceError, UsageError
from bertkit.hardware.launch import Launch
from bertkit.storage.parts import PartFolder, is_whole, read_part, write_part

OPTIONS = {"--model": "abc", "--pooling": None}
ALONE = Launch(0, 1)


@pytest.fixture
def begun(tmp_path):
    folder = PartFolder(tmp_path / "out.npy", OPTIONS, ALONE)
    assert folder.open(fresh=False) is None
    folder.begin("bf16")
    write_part(folder.file(0, "d" * 64), b"content" * 30)
    return folder


def test_parts_are_found_again(begun, tmp_path):
    again = PartFolder(tmp_path / "out.npy", OPTIONS, ALONE)
    assert again.open(fresh=False) == "bf16"
    assert read_part(again.file(0, "d" * 64)).to_pybytes() == b"content" * 30
    assert not again.file(0, "e" * 64).exists()


def test_parts_of_other_options_are_refused_unless_fresh(begun, tmp_path):
    other = PartFolder(tmp_path / "out.npy", {**OPTIONS, "--pooling": "cls"}, ALONE)
    with pytest.raises(UsageError, match=r"left parts .*--pooling: None there, cls asked.* delete \.out\.npy\.parts"):
        other.open(fresh=False)
    assert begun.has_parts()
    assert other.open(fresh=True) is None
    assert not begun.folder.exists()


def test_a_folder_without_parts_does_not_count(begun, tmp_path):
    begun.file(0, "d" * 64).unlink()
    assert PartFolder(tmp_path / "out.npy", {"--model": "x"}, ALONE).open(fresh=False) is None


def test_a_part_of_other_rows_is_replaced(begun):
    file = begun.file(0, "e" * 64)
    write_part(file, b"other")
    assert list(begun.folder.glob("*.part")) == [file]


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
    assert f"{file} is damaged, so it is computed anew" in caplog.text
    write_part(file, b"content" * 30)
    plan.write_bytes(damage(plan.read_bytes()))
    assert PartFolder(tmp_path / "out.npy", OPTIONS, ALONE).open(fresh=False) is None
    assert f"{plan} is damaged, so all parts are computed anew" in caplog.text


def test_a_part_that_is_damaged_meanwhile_is_deleted_and_named(begun):
    file = begun.file(0, "d" * 64)
    file.write_bytes(b"ARROW1" + bytes(100))
    with pytest.raises(ResourceError, match=r"the part was damaged, and is deleted .* - repeat the command"):
        read_part(file)
    assert not file.exists()


def test_shards_compute_as_the_first_and_the_last_joins(tmp_path, caplog):
    caplog.set_level("INFO", "bertkit")
    asked = []

    def run(rank):
        folder = PartFolder(tmp_path / "out.npy", OPTIONS, Launch(rank, 2))
        files = [folder.file(number, "d" * 64) for number in range(2)]
        with folder.opened(lambda before: asked.append(before) or before or f"chosen by {rank}"):
            write_part(files[rank], b"of this shard")
            with folder.joined(files) as joins:
                return joins

    assert not run(1)
    assert "other shards compute 1 of 2 parts" in caplog.text
    assert run(0)
    assert asked == [None, "chosen by 1"]
    assert list(tmp_path.iterdir()) == []


def test_several_processes_do_not_start_afresh(tmp_path):
    folder = PartFolder(tmp_path / "out.npy", OPTIONS, Launch(0, 2))
    with pytest.raises(UsageError, match="--fresh with several processes"), folder.opened(str, fresh=True):
        pass
