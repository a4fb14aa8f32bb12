"""Columns of numbers, one file each in a folder: written shard by shard, later mapped into memory.

A folder counts once its manifest with sizes and SHA-256s is written, which comes last.
"""

from __future__ import annotations

import hashlib
import io
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from bertkit.errors import ResourceError
from bertkit.progress import log
from bertkit.storage import files
from bertkit.storage.cache import say_once, touch, writing
from bertkit.storage.fingerprints import feed_file, is_whole, read_signed, with_digest, without_digest, write_signed


def read_arrays(file: Path) -> dict[str, Any] | None:
    """Read the arrays that `write_arrays` has cached; None where there are none, or damaged ones, which is logged."""
    try:
        content = without_digest(file.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        say_once(f"cached numbers cannot be read: {error}; set BERTKIT_CACHE to use another folder")
        return None
    if content is None:
        log.info(f"{file} is damaged, so its numbers are computed anew")
        return None
    touch(file)
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def write_arrays(file: Path, arrays: Mapping[str, Any]) -> None:
    """Cache arrays as `save_arrays` does; where they cannot be written, that is logged."""
    try:
        save_arrays(file, arrays)
    except OSError as error:
        say_once(f"numbers are not cached: {error}; set BERTKIT_CACHE to use another folder")


def save_arrays(file: Path, arrays: Mapping[str, Any]) -> None:
    """Cache arrays with a checksum of all of them."""
    np.savez(content := io.BytesIO(), **arrays)
    with writing(file) as temporary:
        temporary.write_bytes(with_digest(content.getvalue()))


def map_npy(file: Path) -> Any:
    """Map an array into memory, copied where it is written: torch warns of arrays that cannot be.

    Raises:
        ValueError: the file is empty or damaged.
        OSError: it cannot be read.
    """
    try:
        return np.lib.format.open_memmap(file, mode="c")
    except OSError:
        raise
    except Exception as error:  # the header is read as Python code, which may fail in any way
        raise ValueError(f"not an npy file: {error}") from None


def unmap_rows(mapped: Any, first: int, last: int) -> None:
    """Drop the pages of some rows of an array of `map_npy`, which count as memory of the process once they are read."""
    if hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
        start, end = (mapped.offset + row * mapped.strides[0] for row in (first, last))
        start -= start % mmap.PAGESIZE
        mapped._mmap.madvise(mmap.MADV_DONTNEED, start, end - start)


Numbers = np.ndarray[Any, Any]
"""An array of any shape and dtype."""

_MANIFEST, JOURNAL = "manifest.json", "journal.json"


class JournaledFiles(ABC):
    """Files that are appended to together; a context manager.

    After each commit a journal has how much of each file counts, with its SHA-256. A kill leaves files that are longer
    than that; the next process of the same origin truncates them and goes on.

    Args:
        folder: used by these files only, and locked by this process.
        headers: name of a file -> the bytes before its content, which no journal counts.
        origin: what identifies the content, as a JSON value; content of another origin is overwritten, of None any.
        anew: what happens where a file is damaged.
    """

    def __init__(self, folder: Path, headers: Mapping[str, int], origin: Any, anew: str) -> None:
        self.folder, self.headers, self.origin, self.anew = folder, headers, origin, anew

    def __enter__(self) -> Self:
        """Open the files, and truncate them to what the last commit counts."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._digests = {name: hashlib.sha256() for name in self.headers}
        journal = self._read_journal()
        self._resume(journal)
        self._opened = ExitStack()
        self._streams: dict[str, BinaryIO] = {}
        sizes = self._sizes(journal) if journal else dict.fromkeys(self.headers, 0)
        for name, header in self.headers.items():
            (self.folder / name).touch()
            self._streams[name] = self._opened.enter_context((self.folder / name).open("r+b"))
            self._streams[name].truncate(header + sizes[name])
            self._streams[name].seek(0, os.SEEK_END)
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files."""
        self._opened.close()

    @abstractmethod
    def _sizes(self, journal: Mapping[str, Any]) -> dict[str, int]:
        """Return how many bytes of each file a journal counts, without headers."""

    @abstractmethod
    def _resume(self, journal: Mapping[str, Any]) -> None:
        """Take over what a journal says; an empty one begins anew."""

    def _append_bytes(self, name: str, content: bytes) -> None:
        self._streams[name].write(content)
        self._digests[name].update(content)

    def _write_journal(self, content: Mapping[str, Any]) -> None:
        # Data before the journal: a kill between them leaves files longer than it says, which the next process
        # truncates. In the other order, the journal could count what is not on disk.
        for stream in self._streams.values():
            stream.flush()
            os.fsync(stream.fileno())
        digests = {name: digest.hexdigest() for name, digest in self._digests.items()}
        write_signed(self.folder / JOURNAL, {"origin": self.origin, **content, "digests": digests})

    def _read_journal(self) -> dict[str, Any]:
        """Return the journal if it is of the same origin and what it counts is whole, else an empty one."""
        try:
            journal = read_signed(self.folder / JOURNAL, ResourceError(f"{JOURNAL} is damaged", file=self.folder))
            if journal is None or self.origin is None or journal["origin"] != self.origin:
                return {}
            for name, size in self._sizes(journal).items():
                feed_file(self._digests[name], self.folder / name, self.headers[name], size)
                if self._digests[name].hexdigest() != journal["digests"][name]:
                    raise ResourceError(f"{name} is damaged", file=self.folder)
            return journal
        except (ResourceError, OSError, KeyError) as error:
            log.info(f"{error}: {self.anew}")
            self._digests = {name: hashlib.sha256() for name in self.headers}
            return {}


class ColumnWriter(JournaledFiles):
    """Appends to columns; a context manager.

    Args:
        folder: used by these columns only, and locked by this process.
        dtypes: column -> dtype of its numbers.
        origin: fingerprint of what the columns are made from, for a writer that goes on behind the last commit; columns
            of another origin are overwritten, and without one all are.
    """

    def __init__(self, folder: Path, dtypes: Mapping[str, str], origin: str | None = None) -> None:
        self.dtypes = {name: np.dtype(dtype) for name, dtype in dtypes.items()}
        super().__init__(folder, dict.fromkeys(map(_file_name, dtypes), 0), origin, "the numbers are computed again")

    def _sizes(self, journal: Mapping[str, Any]) -> dict[str, int]:
        return {_file_name(name): journal["lengths"][name] * dtype.itemsize for name, dtype in self.dtypes.items()}

    def _resume(self, journal: Mapping[str, Any]) -> None:
        # columns with a valid manifest are mapped, not written
        (self.folder / _MANIFEST).unlink(missing_ok=True)
        self.lengths: dict[str, int] = journal.get("lengths") or dict.fromkeys(self.dtypes, 0)
        # what was committed with the last complete shard
        self.state: dict[str, Any] = journal.get("state", {})

    def append(self, name: str, values: Numbers) -> None:
        """Append values to a column."""
        self._append_bytes(_file_name(name), np.ascontiguousarray(values, dtype=self.dtypes[name]).tobytes())
        self.lengths[name] += len(values)

    def commit(self, state: Mapping[str, Any]) -> None:
        """Flush all columns to disk, then record their lengths and the state that the writer needs to continue."""
        self.state = dict(state)
        self._write_journal({"lengths": self.lengths, "state": self.state})

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Commit what was appended, and write the manifest with `facts` about the columns: now the folder counts."""
        self.commit(self.state)
        columns = {}
        for name, dtype in self.dtypes.items():
            size, digest = self.lengths[name] * dtype.itemsize, self._digests[_file_name(name)].hexdigest()
            columns[name] = {"kind": dtype.str, "bytes": size, "sha256": digest}
        content = {"columns": columns, "facts": dict(facts)}
        # The journal goes last: after a kill between these lines, the manifest counts and the journal is not read. In
        # the other order, a kill would leave neither, and all shards would be written anew.
        write_signed(self.folder / _MANIFEST, content)
        (self.folder / JOURNAL).unlink()


def map_columns(folder: Path) -> tuple[dict[str, Numbers], dict[str, Any]] | None:
    """Map the columns of a folder into memory; return them with its facts and the SHA-256 of each column.

    None where the folder is incomplete or damaged. Mapped columns are read page by page as they are used, so that a
    corpus may be larger than memory and processes share one copy.
    """
    manifest = folder / _MANIFEST
    try:
        content = read_signed(manifest, ResourceError("the manifest is damaged", file=manifest))
        if content is None:
            return None
        touch(manifest)
        columns = {name: (folder / _file_name(name), column) for name, column in content["columns"].items()}
        if all(is_whole(file, {"size": of["bytes"], "sha256": of["sha256"]}) for file, of in columns.values()):
            with suppress(OSError):
                (folder / JOURNAL).unlink()  # of a writer that was killed after its manifest
            mapped = {name: np.asarray(np.memmap(file, of["kind"], "r")) for name, (file, of) in columns.items()}
            return mapped, {**content["facts"], "sha256": {name: of["sha256"] for name, (_, of) in columns.items()}}
    except (ResourceError, ValueError, KeyError, TypeError, AttributeError):
        pass
    log.info(f"the numbers in {folder} are damaged and are computed again")
    manifest.unlink(missing_ok=True)
    return None


def map_or_write(folder: Path, write: Callable[[], None]) -> tuple[dict[str, Numbers], dict[str, Any]]:
    """Map the columns of a folder as `map_columns` does; where there are none, `write` them first, under its lock.

    Raises:
        ResourceError: what was written cannot be read back.
    """
    with locked(folder):
        stored = map_columns(folder)
        if stored is None:
            write()
            stored = map_columns(folder)
    if stored is None:
        raise ResourceError("the files differ from what was written", "check the disk", file=folder)
    return stored


def locked(folder: Path, refuse: Callable[[str], ResourceError] | None = None) -> AbstractContextManager[None]:
    """Hold a folder's lock; while another process holds it, wait, or raise what `refuse` builds."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = folder.with_name(f"{folder.name}.lock")
    lock.touch()
    touch(lock)
    waiting = f"waiting for another process that computes the numbers in {folder}"
    return files.locked(lock, refuse=refuse, on_wait=lambda: log.info(waiting))


def _file_name(column: str) -> str:
    return f"{column}.bin"
