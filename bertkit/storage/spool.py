"""Sequences of more items than memory should hold: they wait in a file without a name, which is gone when read."""

from __future__ import annotations

import heapq
import os
import pickle
import tempfile
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, TypeVar, overload

from bertkit.storage.cache import cache_folder
from bertkit.storage.files import disk_errors

IN_MEMORY = 1 << 14
"""The most items that stay a list, since so few take little memory; of more, as many are worked on at a time."""

_BLOCK = 256  # items that are written, and read, together
# items that are sorted in memory; a file is open for each so many, until all are merged
_PART = 1 << 16

Item = TypeVar("Item")


class Spooled(Sequence[Item]):
    """Items in the order that they came in, written in blocks; the block that was read last stays in memory.

    So items are best read in order. What is changed in an item is lost.
    """

    def __init__(self, items: Iterable[Item], block: int = _BLOCK) -> None:
        self._block, self._count = block, 0
        self._file, self._ends = _open_file(), array("q", [0])
        weakref.finalize(self, self._file.close)
        self._last: tuple[int, list[Item]] = (-1, [])
        remaining = iter(items)
        while chunk := list(islice(remaining, block)):
            with disk_errors(_folder()):
                self._file.write(pickle.dumps(chunk, pickle.HIGHEST_PROTOCOL))
            self._ends.append(self._file.tell())
            self._count += len(chunk)
        with disk_errors(_folder()):
            self._file.flush()

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        """Read an item, or a list of them."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(self._count))]
        block, place = divmod(range(self._count)[index], self._block)
        number, items = self._last
        if number != block:
            items = self._read_block(block)
            self._last = block, items
        return items[place]

    def __iter__(self) -> Iterator[Item]:
        return chain.from_iterable(map(self._read_block, range(len(self._ends) - 1)))

    def _read_block(self, number: int) -> list[Item]:
        start, size = self._ends[number], self._ends[number + 1] - self._ends[number]
        if os.name == "nt":
            self._file.seek(start)
            content = self._file.read(size)
        else:  # processes that are forked share one position in the file
            content = os.pread(self._file.fileno(), size, start)
        items: list[Item] = pickle.loads(content)
        return items


def spool(items: Iterable[Item], block: int = _BLOCK) -> Sequence[Item]:
    """Return items as a sequence, whose memory does not grow with their number; a list where they are few.

    Args:
        items: they are read once.
        block: how many are read from disk together: few, where they are read in any order.

    Raises:
        ResourceError: the disk of the cache is full.
    """
    remaining = iter(items)
    first = list(islice(remaining, IN_MEMORY + 1))
    return first if len(first) <= IN_MEMORY else Spooled(chain(first, remaining), block)


def spool_sorted(items: Iterable[Item], key: Callable[[Item], Any]) -> Sequence[Item]:
    """Return items as a sequence in the order that `sorted` has, whose memory does not grow with their number."""
    remaining, parts = iter(items), list[Sequence[Item]]()
    while part := sorted(islice(remaining, _PART), key=key):
        parts.append(spool(part))
    return parts[0] if len(parts) == 1 else spool(heapq.merge(*parts, key=key))


def _open_file() -> IO[Any]:
    """Open a file without a name beside what is cached, since a folder of temporary files may be in memory itself."""
    with suppress(OSError):
        _folder().mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=_folder())
    return tempfile.TemporaryFile()


def _folder() -> Path:
    return cache_folder("spooled")
