"""Columns of numbers, one file each in a folder: written shard by shard, later mapped into memory.

After each shard a journal records the lengths and SHA-256s of the columns. A kill leaves files that are longer than
that; the next process truncates them and continues, unless what the journal counts has changed since. A folder counts
once its manifest with sizes and SHA-256s is written, which comes last.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.errors import ResourceError
from bertkit.progress import log
from bertkit.storage import files
from bertkit.storage.cache import touch
from bertkit.storage.fingerprints import is_whole
from bertkit.storage.records import read_signed, write_signed

Numbers = np.ndarray[Any, Any]
"""An array of any shape and dtype."""

_MANIFEST, _JOURNAL = "manifest.json", "journal.json"


class ColumnWriter:
    """Appends to columns; a context manager.

    Args:
        folder: used by these columns only, and locked by this process.
        dtypes: column -> dtype of its numbers.
        origin: fingerprint of what the columns are made from; columns of another origin are overwritten.
    """

    def __init__(self, folder: Path, dtypes: Mapping[str, str], origin: str) -> None:
        self.folder, self.origin = folder, origin
        self.dtypes = {name: np.dtype(dtype) for name, dtype in dtypes.items()}

    def __enter__(self) -> ColumnWriter:
        """Open the files and truncate them to the last complete shard; ``state`` is what was committed with it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # columns with a valid one are mapped, not written
        (self.folder / _MANIFEST).unlink(missing_ok=True)
        journal = self._read_journal()
        if not journal:
            self._digests = {name: hashlib.sha256() for name in self.dtypes}
        self.lengths: dict[str, int] = journal.get("lengths") or dict.fromkeys(self.dtypes, 0)
        self.state: dict[str, Any] = journal.get("state", {})
        self._opened = ExitStack()
        self._streams = {name: self._opened.enter_context(_file(self.folder, name).open("ab")) for name in self.dtypes}
        for name, stream in self._streams.items():
            stream.truncate(self.lengths[name] * self.dtypes[name].itemsize)
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files."""
        self._opened.close()

    def append(self, name: str, values: Numbers) -> None:
        """Append values to a column."""
        content = np.ascontiguousarray(values, dtype=self.dtypes[name]).tobytes()
        self._streams[name].write(content)
        self._digests[name].update(content)
        self.lengths[name] += len(values)

    def commit(self, state: Mapping[str, Any]) -> None:
        """Flush all columns to disk, then record their lengths and the state that the writer needs to continue."""
        # Data before the journal: a kill between them leaves files longer than it says, which the next process
        # truncates. In the other order, the journal could count numbers that are not on disk.
        for stream in self._streams.values():
            stream.flush()
            os.fsync(stream.fileno())
        self.state = dict(state)
        digests = {name: digest.hexdigest() for name, digest in self._digests.items()}
        content = {"origin": self.origin, "lengths": self.lengths, "digests": digests, "state": self.state}
        write_signed(self.folder / _JOURNAL, content)

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Commit what was appended, and write the manifest with `facts` about the columns: now the folder counts."""
        self.commit(self.state)
        columns = {}
        for name, dtype in self.dtypes.items():
            size, digest = self.lengths[name] * dtype.itemsize, self._digests[name].hexdigest()
            columns[name] = {"kind": dtype.str, "bytes": size, "sha256": digest}
        content = {"columns": columns, "facts": dict(facts)}
        # The journal goes last: after a kill between these lines, the manifest counts and the journal is not read. In
        # the other order, a kill would leave neither, and all shards would be written anew.
        write_signed(self.folder / _MANIFEST, content)
        (self.folder / _JOURNAL).unlink()

    def _read_journal(self) -> dict[str, Any]:
        """Return the journal if it is of the same origin and what it counts is whole, else an empty one."""
        file = self.folder / _JOURNAL
        damaged = ResourceError("the journal is damaged", file=file)
        try:
            journal = read_signed(file, damaged) or {}
            if journal.get("origin") != self.origin:
                return {}
            sizes = {name: journal["lengths"][name] * dtype.itemsize for name, dtype in self.dtypes.items()}
            self._digests = {name: _digest_start(_file(self.folder, name), size) for name, size in sizes.items()}
            if any(digest.hexdigest() != journal["digests"][name] for name, digest in self._digests.items()):
                raise damaged
            return journal
        except (ResourceError, OSError, KeyError):
            log.info(f"the numbers in {self.folder} are damaged and are computed again")
            return {}


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
        columns = {name: (_file(folder, name), column) for name, column in content["columns"].items()}
        if all(is_whole(file, {"size": of["bytes"], "sha256": of["sha256"]}) for file, of in columns.values()):
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


def locked(folder: Path) -> AbstractContextManager[None]:
    """Hold a folder's lock; wait while another process holds it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = folder.with_name(f"{folder.name}.lock")
    lock.touch()
    touch(lock)
    waiting = f"waiting for another process that computes the numbers in {folder}"
    return files.locked(lock, on_wait=lambda: log.info(waiting))


def _digest_start(file: Path, size: int) -> Any:
    """Return the SHA-256 of the first bytes of a file, to be fed with those that will follow."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while size and (block := stream.read(min(size, 1 << 20))):
            digest.update(block)
            size -= len(block)
    return digest


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.bin"
