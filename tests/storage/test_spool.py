"""Sequences on disk: the items that were put in, in their order, and no memory for them."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pytest

from bertkit.errors import ResourceError
from bertkit.storage import spool as module
from bertkit.storage.spool import IN_MEMORY, Spooled, spool, spool_sorted


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BERTKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_few_items_are_a_list_and_many_are_not():
    assert spool(iter(range(IN_MEMORY))) == list(range(IN_MEMORY))
    assert isinstance(spool(range(IN_MEMORY + 1)), Spooled)


@pytest.mark.parametrize("block", [1, 7, 256])
@pytest.mark.parametrize("count", [0, 1, 255, 256, 1000])
def test_items_are_found_as_in_a_list(count, block):
    items = [{"text": f"row {number}", "tags": (None, 1.5, number)} for number in range(count)]
    spooled = Spooled(iter(items), block)
    assert len(spooled) == count and list(spooled) == items
    assert spooled[3:900:11] == items[3:900:11] and spooled[::-1] == items[::-1]
    numbers = np.random.default_rng(0).integers(-count, count, 50) if count else []
    assert [spooled[number] for number in numbers] == [items[number] for number in numbers]
    with pytest.raises(IndexError):
        _ = spooled[count]


def test_nothing_is_left_on_disk_and_hardly_anything_in_memory(cache):
    tracemalloc.start()
    try:
        spooled = spool({"text": f"the text of row {number}"} for number in range(3 * IN_MEMORY))
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 30 * len(spooled)  # bytes; a list takes 300
    assert list((cache / "spooled").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("BERTKIT_CACHE", str(tmp_path / "file"))
    assert list(Spooled(range(3))) == [0, 1, 2]


def test_a_full_disk_is_named(monkeypatch):
    class Full:
        def write(self, content):
            raise OSError(28, "No space left on device")

        def close(self):
            pass

    monkeypatch.setattr(module, "_open_file", Full)
    with pytest.raises(ResourceError, match="No space left on device"):
        Spooled(range(3))


@pytest.mark.parametrize("count", [0, 1, 7, 100, 1000])
def test_items_are_sorted_as_by_python(count, monkeypatch):
    monkeypatch.setattr(module, "_PART", 100)
    monkeypatch.setattr(module, "IN_MEMORY", 10)
    rng = random.Random(count)
    items = [(rng.randrange(20), number) for number in range(count)]  # many are equal: their order is kept
    ordered = spool_sorted(iter(items), lambda item: -item[0])
    assert list(ordered) == sorted(items, key=lambda item: -item[0])
    assert isinstance(ordered, list if count <= 10 else Spooled)
