"""Columns of numbers in files of their own, in one folder: written a shard at a time, later mapped into memory.

After each shard a journal says how long the columns are. A kill leaves files that are longer than that; the next
process cuts them back and goes on. A manifest with sizes and SHA-256s, written last, makes the folder count.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, cast

import numpy as np

from bertkit.storage import files
from bertkit.storage.cache import touch
from bertkit.storage.files import write_json
from bertkit.storage.fingerprints import file_fingerprint

log = logging.getLogger("bertkit")

Numbers = np.ndarray[Any, Any]

_MANIFEST, _JOURNAL = "manifest.json", "journal.json"


class Columns:
    """Columns that grow at their ends; to be used as a context.

    Args:
        folder: theirs alone, locked by this process.
        kinds: column -> type of its numbers.
        origin: what the columns are made from; those of another origin are thrown away.
    """

    def __init__(self, folder: Path, kinds: Mapping[str, str], origin: str) -> None:
        self.folder, self.origin = folder, origin
        self.kinds = {name: np.dtype(kind) for name, kind in kinds.items()}

    def __enter__(self) -> Columns:
        """Open the files, as long as they were after the last whole shard; ``state`` is what was noted then."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / _MANIFEST).unlink(missing_ok=True)  # a good one would have been mapped
        journal = self._read_journal()
        self.lengths: dict[str, int] = journal.get("lengths") or dict.fromkeys(self.kinds, 0)
        self.state: dict[str, Any] = journal.get("state", {})
        self._opened = ExitStack()
        self._streams = {name: self._opened.enter_context(_file(self.folder, name).open("ab")) for name in self.kinds}
        for name, stream in self._streams.items():
            stream.truncate(self.lengths[name] * self.kinds[name].itemsize)
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files."""
        self._opened.close()

    def append(self, name: str, values: Numbers) -> None:
        """Lengthen a column."""
        self._streams[name].write(np.ascontiguousarray(values, dtype=self.kinds[name]).tobytes())
        self.lengths[name] += len(values)

    def commit(self, state: Mapping[str, Any]) -> None:
        """Flush all columns to disk, then note their lengths and what the writer has to know to go on."""
        for stream in self._streams.values():
            stream.flush()
            os.fsync(stream.fileno())
        self.state = dict(state)
        write_json(self.folder / _JOURNAL, {"origin": self.origin, "lengths": self.lengths, "state": self.state})

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Make the folder count, with what is worth knowing of its columns."""
        columns = {
            name: {
                "kind": kind.str,
                "bytes": self.lengths[name] * kind.itemsize,
                "sha256": file_fingerprint(_file(self.folder, name)),
            }
            for name, kind in self.kinds.items()
        }
        content = {"columns": columns, "facts": dict(facts)}
        write_json(self.folder / _MANIFEST, {**content, "sha256": _digest(content)})
        (self.folder / _JOURNAL).unlink()

    def _read_journal(self) -> dict[str, Any]:
        """Give the journal of these very columns, where their files are at least as long as it says."""
        try:
            journal = json.loads((self.folder / _JOURNAL).read_text(encoding="utf-8"))
            sizes = {name: _file(self.folder, name).stat().st_size for name in self.kinds}
            lengths = journal["lengths"]
            fits = all(sizes[name] >= lengths[name] * kind.itemsize for name, kind in self.kinds.items())
            return cast(dict[str, Any], journal) if journal["origin"] == self.origin and fits else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}


def map_columns(folder: Path) -> tuple[dict[str, Numbers], dict[str, Any]] | None:
    """Give the columns of a folder, mapped into memory, and its facts, the SHA-256 of each column among them.

    None where the folder is not whole.
    """
    manifest = folder / _MANIFEST
    if not manifest.is_file():
        return None
    touch(manifest)
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
        is_whole = content.pop("sha256") == _digest(content) and all(
            _file(folder, name).stat().st_size == column["bytes"]
            and file_fingerprint(_file(folder, name)) == column["sha256"]
            for name, column in content["columns"].items()
        )
        if is_whole:
            mapped = {name: _map(_file(folder, name), column["kind"]) for name, column in content["columns"].items()}
            digests = {name: column["sha256"] for name, column in content["columns"].items()}
            return mapped, {**content["facts"], "sha256": digests}
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        pass
    log.info(f"the corpus in {folder} is damaged: it is made anew")
    manifest.unlink(missing_ok=True)
    return None


def locked(folder: Path) -> AbstractContextManager[None]:
    """Hold a folder's lock, waiting for whoever holds it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = folder.with_name(f"{folder.name}.lock")
    lock.touch()
    touch(lock)
    return files.locked(lock, on_wait=lambda: log.info("another process prepares this corpus: waiting for it"))


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.bin"


def _map(file: Path, kind: str) -> Numbers:
    return np.asarray(np.memmap(file, dtype=kind, mode="r"))


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
