"""The folder of what bertkit keeps on disk: files that are computed once, and sequences too long for memory."""

from __future__ import annotations

import heapq
import os
import pickle
import secrets
import shutil
import tempfile
import time
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, TypeVar, overload

from bertkit.progress import log
from bertkit.recipe.sections import typed_path
from bertkit.storage import files

_DAYS = 30
_TEMPORARY = cache(tempfile.TemporaryDirectory)  # deleted when the process ends


def cache_folder(content: str) -> Path:
    """Return the folder of cached files with this content, such as ``features``; BERTKIT_CACHE names its parent."""
    named = os.environ.get("BERTKIT_CACHE")
    folder = typed_path(named) if named else _home_cache()
    with suppress(OSError):  # Commands that only read do not need the folder.
        files.make_ignored_folder(folder)
    return folder / content


def _home_cache() -> Path:
    """Return the cache in the user's home, or a temporary one for a user without a home, as in many containers."""
    try:
        return Path("~/.cache/bertkit").expanduser()
    except RuntimeError:
        say_once("this user has no home, so what is cached is lost when the command ends; set BERTKIT_CACHE to keep it")
        return Path(_TEMPORARY().name)


def keep_working_folder_clean() -> None:
    """Let temporary files go to a folder that is deleted, where they would go to the working folder, and some stay.

    Python takes the working folder where no other one can be written, as in a container without TMPDIR. torch makes a
    folder for its compiler there when it is imported.
    """
    with suppress(FileNotFoundError):  # not even the working folder can be written
        if Path(tempfile.gettempdir()) == Path.cwd():
            os.environ["TMPDIR"] = tempfile.tempdir = _TEMPORARY().name


@contextmanager
def writing(file: Path) -> Iterator[Path]:
    """Yield a temporary file that replaces a cached file once it is written without an error.

    Files of the same folder that nobody has read for 30 days are then deleted, so that it does not grow for ever.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with files.replacing(file) as temporary:
            yield temporary
    except OSError as error:
        if error.errno and not error.filename:
            # a write does not know where it goes, and a caller would name its own output
            error.filename = str(file)
        raise
    sweep(file.parent)


def touch(file: Path) -> None:
    """Note that a cached file was read now."""
    with suppress(OSError):  # a file of another user can be read, but not touched
        os.utime(file)


@cache
def say_once(line: str) -> None:
    """Log a line only once per process, not again for every split."""
    log.info(line)


def sweep(folder: Path) -> None:
    """Delete entries that nobody has read for 30 days; a process that has such a file open can go on reading it.

    A folder is as old as its most recent file. It is renamed before it is deleted, so that nobody sees half of it.
    """
    for entry in folder.iterdir():
        with suppress(OSError):
            times = [file.stat().st_mtime for file in (entry, *(entry.iterdir() if entry.is_dir() else ()))]
            if time.time() - max(times) <= _DAYS * 24 * 3600:
                continue
            if entry.is_dir():
                entry = entry.rename(entry.with_name(f"{entry.name}.{secrets.token_hex(4)}.tmp"))
                shutil.rmtree(entry)
            else:
                entry.unlink()


# --- Sequences that wait on disk ---


IN_MEMORY = 1 << 14
"""Maximum items that stay a list, because they take little memory; longer sequences are processed in such parts."""

_BLOCK = 256  # items that are written, and read, together
_PART = 1 << 16  # items that are sorted in memory; each part is a file until all are merged

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
            with files.disk_errors(_spool_folder()):
                self._file.write(pickle.dumps(chunk, pickle.HIGHEST_PROTOCOL))
            self._ends.append(self._file.tell())
            self._count += len(chunk)
        with files.disk_errors(_spool_folder()):
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
    """Return items as a sequence whose memory does not grow with their number, or as a list if they are few.

    Args:
        items: they are read once.
        block: Number of items that are read from disk together; a few if they are read in random order.

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
    """Open a file without a name in the cache, because a folder of temporary files may be in memory itself."""
    with suppress(OSError):
        _spool_folder().mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=_spool_folder())
    return tempfile.TemporaryFile()


def _spool_folder() -> Path:
    return cache_folder("spooled")
