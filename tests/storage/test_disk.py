"""Arrays that runs share: complete or computed again, after kills, damage and full disks; and objects that wait."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from bertkit.errors import ResourceError
from bertkit.storage import disk
from bertkit.storage.cache import log_once
from bertkit.storage.disk import (
    IN_MEMORY,
    ArrayWriter,
    DiskList,
    cache_arrays,
    load_arrays,
    map_arrays,
    map_npy,
    map_or_write,
    offload_to_disk,
    save_arrays,
    sort_on_disk,
)
from bertkit.storage.files import disk_errors

DTYPES = {"tokens": "<u2", "ends": "<i8", "empty": "<f4"}
TOKENS = [1, 2, 65535, 7]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "arrays"


def write(folder):
    with ArrayWriter(folder, DTYPES) as writer:
        writer.append("tokens", np.array(TOKENS[:3]))
        writer.append("ends", np.array([2, 3]))
        writer.append("tokens", np.array(TOKENS[3:]))
        writer.finish({"documents": 2})


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture
def complete(folder):
    """The bytes of files that nothing interrupted."""
    write(folder)
    return contents(folder)


@pytest.fixture
def log(caplog):
    caplog.set_level("INFO", logger="bertkit")
    log_once.cache_clear()
    return caplog


def flip(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


# --- Arrays in a folder ---


def test_finished_arrays_are_mapped_with_their_facts_and_are_plain_npy_files(folder, complete):
    arrays, facts = map_arrays(folder)
    assert {name: array.tolist() for name, array in arrays.items()} == {"tokens": TOKENS, "ends": [2, 3], "empty": []}
    assert [array.dtype.str for array in arrays.values()] == list(DTYPES.values())
    assert facts["documents"] == 2 and set(facts["sha256"]) == set(DTYPES)
    with pytest.raises(ValueError, match="read-only"):
        arrays["tokens"][0] = 3
    assert set(complete) == {"manifest.json", *(f"{name}.npy" for name in DTYPES)}
    for name, array in arrays.items():
        np.testing.assert_array_equal(np.load(folder / f"{name}.npy"), array)


def test_the_checksum_depends_on_the_numbers_and_not_on_the_turns(folder, tmp_path, complete):
    with ArrayWriter(tmp_path / "at once", DTYPES) as writer:
        writer.append("ends", np.array([2, 3]))
        writer.append("tokens", np.array(TOKENS))
        writer.finish({"documents": 2})
    assert contents(tmp_path / "at once") == complete


@pytest.mark.parametrize("kill", ["append 1", "append 3", "finish", "manifest"])
def test_a_killed_writer_leaves_nothing_that_counts_and_the_next_one_starts_over(kill, folder, complete, monkeypatch):
    name, _, number = kill.partition(" ")
    owner, name = (disk, "write_with_checksum") if name == "manifest" else (ArrayWriter, name)
    original, calls = getattr(owner, name), []

    def killed(*arguments):
        calls.append(1)
        if len(calls) == int(number or 1):
            raise KeyboardInterrupt
        return original(*arguments)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(owner, name, killed)
        write(folder)
    assert map_arrays(folder) is None
    map_or_write(folder, lambda: write(folder))
    assert contents(folder) == complete


@pytest.mark.parametrize("name", ["tokens.npy", "empty.npy", "manifest.json"])
def test_a_flipped_byte_anywhere_is_noticed(name, folder, complete, log):
    for place in range(len(complete[name])):
        folder.joinpath("manifest.json").write_bytes(complete["manifest.json"])
        folder.joinpath(name).write_bytes(flip(complete[name], place))
        assert map_arrays(folder) is None, place
        assert log.messages.pop() == f"the numbers in {folder} are damaged and are computed again"
        assert not (folder / "manifest.json").exists()
        log.clear()


DAMAGE = {
    "cut in the numbers": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "cut in the header": lambda file: file.write_bytes(file.read_bytes()[:40]),
    "empty": lambda file: file.write_bytes(b""),
    "longer": lambda file: file.write_bytes(file.read_bytes() + b"\0"),
    "missing": lambda file: file.unlink(),
    "another array": lambda file: np.save(file, np.zeros(4, "<u2")),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_arrays_are_written_again(damage, folder, complete, log):
    damage(folder / "tokens.npy")
    arrays, facts = map_or_write(folder, lambda: write(folder))
    assert arrays["tokens"].tolist() == TOKENS and facts["documents"] == 2
    assert log.messages == [f"the numbers in {folder} are damaged and are computed again"]
    assert contents(folder) == complete


@pytest.mark.parametrize("harm", ["half", "no object", "facts", "name", "missing"])
def test_a_manifest_that_does_not_fit_does_not_count(harm, folder, complete, log):
    manifest = folder / "manifest.json"
    content = json.loads(manifest.read_text())
    if harm == "facts":
        content["facts"]["documents"] = 3
    if harm == "name":
        content["arrays"]["others"] = content["arrays"].pop("tokens")
    harmed = {"half": manifest.read_text()[:-9], "no object": "[]"}.get(harm, json.dumps(content))
    manifest.unlink() if harm == "missing" else manifest.write_text(harmed)
    assert map_arrays(folder) is None
    assert bool(log.messages) == (harm != "missing")


def test_a_full_disk_is_named_and_leaves_no_manifest(folder, complete, monkeypatch):
    class Full:
        def __init__(self, stream):
            self.stream = stream

        def __getattr__(self, name):
            return getattr(self.stream, name)

        def write(self, content):
            if len(content) < 100:  # headers have room
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return self.stream.write(content)

    enter = ArrayWriter.__enter__

    def full(writer):
        enter(writer)._streams.update({name: Full(stream) for name, stream in writer._streams.items()})
        return writer

    with monkeypatch.context() as patched:
        patched.setattr(ArrayWriter, "__enter__", full)
        with pytest.raises(ResourceError, match=r"No space left on device.*free some space"), disk_errors(folder):
            map_or_write(folder.with_name("new"), lambda: write(folder.with_name("new")))
    assert map_arrays(folder.with_name("new")) is None
    map_or_write(folder.with_name("new"), lambda: write(folder.with_name("new")))
    assert contents(folder.with_name("new")) == complete


def test_a_disk_that_loses_what_was_written_is_told(folder):
    with pytest.raises(ResourceError, match="the files differ from what was written"):
        map_or_write(folder, lambda: folder.mkdir())


def test_another_process_waits_for_the_lock_and_finds_the_arrays(folder, monkeypatch):
    @contextlib.contextmanager
    def locked(_):
        write(folder)  # by the process that held the lock
        yield

    monkeypatch.setattr(disk, "lock_folder", locked)
    arrays, _ = map_or_write(folder, lambda: pytest.fail("written twice"))
    assert arrays["tokens"].tolist() == TOKENS


# --- Arrays in one file ---


ARRAYS = {"vectors": np.arange(6.0).reshape(2, 3), "sizes": np.array([2, 1])}


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "missing"])
def test_saved_arrays_are_loaded_complete_or_not_at_all(damage, tmp_path, log):
    file = tmp_path / "new" / "kept.arrays"
    assert load_arrays(file) is None and not log.messages
    save_arrays(file, ARRAYS)
    loaded = load_arrays(file)
    assert {name: array.tolist() for name, array in loaded.items()} == {
        name: array.tolist() for name, array in ARRAYS.items()
    }
    content = file.read_bytes()
    for place in range(0, len(content), 7):
        file.write_bytes({"flipped": flip(content, place), "cut": content[:place]}.get(damage, b""))
        if damage == "missing":
            file.unlink()
        assert load_arrays(file) is None
    assert (f"{file} is damaged; recomputing it" in log.text) == (damage != "missing")


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))], ids=str)
def test_a_stop_while_arrays_are_saved_keeps_those_that_were_there(stop, tmp_path, monkeypatch):
    file = tmp_path / "kept.arrays"
    save_arrays(file, ARRAYS)

    def write_half(temporary, content):
        with temporary.open("wb") as stream:
            stream.write(content[:50])
        raise stop

    monkeypatch.setattr(Path, "write_bytes", write_half)
    with pytest.raises(type(stop) if isinstance(stop, OSError) else stop) as raised:
        save_arrays(file, {"vectors": np.zeros(9)})
    assert getattr(raised.value, "filename", str(file)) == str(file)
    assert load_arrays(file)["vectors"].shape == (2, 3)
    assert list(tmp_path.iterdir()) == [file]


def test_a_cache_that_cannot_be_written_costs_a_line(tmp_path, log):
    (tmp_path / "file").touch()
    for _ in range(2):
        cache_arrays(tmp_path / "file" / "kept.arrays", ARRAYS)
        assert load_arrays(tmp_path / "file" / "kept.arrays") is None
    written, read = log.messages
    assert written.startswith("numbers are not cached: ") and read.startswith("cached numbers cannot be read: ")
    assert all(line.endswith("set BERTKIT_CACHE to use another folder") for line in log.messages)


# --- Arrays of other programs ---


def test_a_damaged_npy_file_is_mapped_or_refused(tmp_path):
    np.save(file := tmp_path / "a.npy", np.eye(3))
    content = file.read_bytes()
    assert (map_npy(file) == np.eye(3)).all()
    for place in range(130):
        for bit in (1, 4, 64):
            file.write_bytes(content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :])
            with contextlib.suppress(ValueError):
                map_npy(file)
    for damaged in (b"", content[:100], content[:-1], b"PK\x03\x04"):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match="not an npy file"):
            map_npy(file)


# --- Objects that wait on disk ---


@pytest.fixture(autouse=True)
def cache_parent(tmp_path, monkeypatch):
    monkeypatch.setenv("BERTKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_few_items_are_a_list_and_many_are_not():
    assert offload_to_disk(iter(range(IN_MEMORY))) == list(range(IN_MEMORY))
    assert isinstance(offload_to_disk(range(IN_MEMORY + 1)), DiskList)


@pytest.mark.parametrize("block", [1, 7, 256])
@pytest.mark.parametrize("count", [0, 1, 255, 256, 1000])
def test_items_are_found_as_in_a_list(count, block):
    items = [{"text": f"row {number}", "tags": (None, 1.5, number)} for number in range(count)]
    spooled = DiskList(iter(items), block)
    assert len(spooled) == count and list(spooled) == items
    assert spooled[3:900:11] == items[3:900:11] and spooled[::-1] == items[::-1]
    numbers = np.random.default_rng(0).integers(-count, count, 50) if count else []
    assert [spooled[number] for number in numbers] == [items[number] for number in numbers]
    with pytest.raises(IndexError):
        _ = spooled[count]


def test_nothing_is_left_on_disk_and_hardly_anything_in_memory(cache_parent):
    tracemalloc.start()
    try:
        spooled = offload_to_disk({"text": f"the text of row {number}"} for number in range(3 * IN_MEMORY))
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 30 * len(spooled)  # bytes; a list takes 300
    assert list((cache_parent / "spooled").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("BERTKIT_CACHE", str(tmp_path / "file"))
    assert list(DiskList(range(3))) == [0, 1, 2]


def test_a_full_disk_is_named(monkeypatch):
    class Full:
        def write(self, content):
            raise OSError(28, "No space left on device")

        def close(self):
            pass

    monkeypatch.setattr("bertkit.storage.disk._open_file", Full)
    with pytest.raises(ResourceError, match="No space left on device"):
        DiskList(range(3))


@pytest.mark.parametrize("count", [0, 1, 7, 100, 1000])
def test_items_are_sorted_as_by_python(count, monkeypatch):
    monkeypatch.setattr("bertkit.storage.disk._PART", 100)
    monkeypatch.setattr("bertkit.storage.disk.IN_MEMORY", 10)
    rng = random.Random(count)
    items = [(rng.randrange(20), number) for number in range(count)]  # many are equal: their order is kept
    ordered = sort_on_disk(iter(items), lambda item: -item[0])
    assert list(ordered) == sorted(items, key=lambda item: -item[0])
    assert isinstance(ordered, list if count <= 10 else DiskList)
