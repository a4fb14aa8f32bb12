"""Parts of an output: found again by the same command, refused to another, joined by the shard that ends last."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

import pytest

from bertkit.errors import ResourceError, UsageError
from bertkit.hardware.launch import Launch
from bertkit.storage.output_shards import OutputShards, is_part_complete, read_part, write_part

OPTIONS = {"--model": "abc", "--pooling": None}


@dataclass
class Rows:
    checksum: str

    def digest(self):
        return self.checksum * 64


ROWS = [Rows("a"), Rows("b"), Rows("c")]


class Interrupted(Exception):
    """A kill, after which nothing is cleaned up."""


class Command:
    """A command that computes three parts, in the precision that it prefers; it may be interrupted."""

    def __init__(self, folder, rank=0, size=1, options=OPTIONS, precision="bf16"):
        self.parts = OutputShards(folder / "out.npy", options, Launch(rank, size, is_shard=size > 1))
        self.precisions, self.computed, self.precision = [], [], precision

    def load(self, precision):
        self.precisions.append(precision)
        return precision or self.precision

    def write(self, file, rows):
        self.computed.append(rows.checksum)
        write_part(file, rows.checksum.encode() * 100)

    def run(self, rows=ROWS, interrupt=False, restart=False):
        """Return the contents of all parts, or None if another shard joins them."""
        with self.parts.opened(self.load, restart=restart):
            files = self.parts.compute(rows, self.write)
            if interrupt:
                raise Interrupted
            with self.parts.joined(files) as joins:
                return [bytes(read_part(file))[:1].decode() for file in files] if joins else None


@pytest.fixture
def interrupted(tmp_path):
    """The folder of a command that computed two of its parts."""
    command = Command(tmp_path)
    with pytest.raises(Interrupted):
        command.run(ROWS[:2], interrupt=True)
    return command.parts.folder


def test_parts_are_found_again_and_computed_in_the_same_precision(interrupted, tmp_path, caplog):
    caplog.set_level("INFO", "bertkit")
    again = Command(tmp_path, precision="fp32")
    assert again.run() == ["a", "b", "c"]
    assert (again.precisions, again.computed) == (["bf16"], ["c"])
    assert "resuming: 2 parts of an interrupted command exist" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_parts_of_other_options_are_refused_unless_fresh(interrupted, tmp_path):
    options = {**OPTIONS, "--pooling": "cls"}
    with pytest.raises(
        UsageError, match=r"left parts .*--pooling: None there, cls requested.* delete \.out\.npy\.parts"
    ):
        Command(tmp_path, options=options).run()
    assert len(list(interrupted.glob("*.part"))) == 2
    fresh = Command(tmp_path, options=options)
    assert fresh.run(restart=True) == fresh.computed == ["a", "b", "c"]


def test_a_folder_without_parts_does_not_count(interrupted, tmp_path):
    for part in interrupted.glob("*.part"):
        part.unlink()
    assert Command(tmp_path, options={"--model": "x"}).run() == ["a", "b", "c"]


def test_a_command_that_fails_before_its_first_part_leaves_nothing(tmp_path):
    with pytest.raises(Interrupted):
        Command(tmp_path).run([], interrupt=True)
    assert list(tmp_path.iterdir()) == []


def test_a_part_of_other_rows_is_replaced(interrupted, tmp_path):
    command = Command(tmp_path)
    assert command.run([Rows("x"), *ROWS[1:]]) == ["x", "b", "c"]
    assert command.computed == ["x", "c"]


DAMAGE = {
    "flipped": lambda content: content[:90] + bytes([content[90] ^ 1]) + content[91:],
    "half": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_part_is_not_taken_for_one(damage, interrupted, tmp_path, caplog):
    caplog.set_level("INFO", "bertkit")
    file, _ = sorted(interrupted.glob("*.part"))
    assert is_part_complete(file)
    file.write_bytes(damage(file.read_bytes()))
    command = Command(tmp_path)
    assert command.run() == ["a", "b", "c"]
    assert command.computed == ["a", "c"]
    assert f"{file} is damaged; recomputing it" in caplog.text


@pytest.mark.parametrize("damage", [*DAMAGE.values(), None], ids=[*DAMAGE, "missing"])
@pytest.mark.parametrize("size", [1, 2])
def test_parts_without_a_valid_plan_are_computed_again(damage, size, interrupted, tmp_path, caplog):
    caplog.set_level("INFO", "bertkit")
    plan = interrupted / "plan.json"
    plan.write_bytes(damage(plan.read_bytes())) if damage else plan.unlink()
    command = Command(tmp_path, size=size, precision="fp32")
    command.run()
    assert command.computed == ["a", "b", "c"][::size]
    assert command.precisions == [None]
    assert (f"{plan} is damaged; recomputing all parts" in caplog.text) == (damage is not None)


def test_a_part_that_is_damaged_meanwhile_is_deleted_and_named(interrupted):
    file, _ = sorted(interrupted.glob("*.part"))
    file.write_bytes(b"ARROW1" + bytes(100))
    with pytest.raises(ResourceError, match=r"the part was damaged, and is deleted .* - repeat the command"):
        read_part(file)
    assert not file.exists()


def test_shards_compute_as_the_first_and_the_last_joins(tmp_path, caplog):
    caplog.set_level("INFO", "bertkit")
    last = Command(tmp_path, 1, 2, precision="fp32")
    assert last.run() is None
    assert "other shards compute 2 of 3 parts" in caplog.text
    first = Command(tmp_path, 0, 2)
    assert first.run() == ["a", "b", "c"]
    assert (last.precisions, first.precisions) == ([None], ["fp32"])
    assert (last.computed, first.computed) == (["b"], ["a", "c"])
    assert list(tmp_path.iterdir()) == []


def test_parts_that_another_shard_has_joined_are_not_joined_again(tmp_path):
    Command(tmp_path, 1, 2).run()
    slow = Command(tmp_path, 0, 2)
    with slow.parts.opened(slow.load):
        files = slow.parts.compute(ROWS, slow.write)
        joined = slow.parts.joined(files)
        shutil.copytree(slow.parts.folder, tmp_path / "before")
        assert Command(tmp_path, 0, 2).run() == ["a", "b", "c"]
        with joined as joins:
            assert not joins


def test_an_output_that_cannot_be_replaced_is_refused_before_a_shard_computes(tmp_path):
    (tmp_path / "out.npy").mkdir()
    command = Command(tmp_path, 0, 2)
    with pytest.raises(UsageError, match="a folder, not a file"):
        command.run()
    assert command.precisions == []


def test_several_processes_do_not_start_afresh(tmp_path):
    with pytest.raises(UsageError, match="--restart with several processes"):
        Command(tmp_path, 0, 2).run(restart=True)


def test_a_part_that_no_process_has_computed_is_not_waited_for(tmp_path):
    command = Command(tmp_path)
    with command.parts.opened(command.load):
        files = command.parts.compute(ROWS, command.write)
        with (
            pytest.raises(ResourceError, match="the rows changed while they were read"),
            command.parts.joined([*files, files[0].with_name("000003-other.part")]),
        ):
            pass
    assert len(list(command.parts.folder.glob("*.part"))) == 3
