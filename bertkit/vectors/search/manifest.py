"""What an index holds: its manifest, which is written last, so that a folder without one is no index.

An index is a folder of shards, one for each build or addition. A shard is never changed. Rows that are deleted stay in
their shard, and the manifest names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bertkit.errors import DataError, UsageError
from bertkit.storage.fingerprints import file_fingerprint, leaves_folder, read_signed, write_signed
from bertkit.vectors.search.passages import Coverage

MANIFEST = "manifest.json"
VECTORS, ROUNDED, ROWS, ENDS, IDS = "vectors.npy", "vectors-bf16.npy", "rows.jsonl", "row-ends.npy", "ids.npy"
SHARD_FILES = (VECTORS, ROUNDED, ROWS, ENDS, IDS)
SIMILARITIES = ("cosine", "dot")

_FORMAT = 1


@dataclass(frozen=True)
class ShardInfo:
    """A shard as its manifest describes it."""

    folder: str
    rows: int
    longest: float
    """Length of its longest vector."""
    rounding: float
    """Length of the largest difference between a vector and itself rounded to bf16."""
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Name of a file -> its size and SHA-256."""
    source: Mapping[str, Any] | None = None
    """What its rows were read from (`TextRows.fingerprint`); None where that is not known."""


@dataclass(frozen=True)
class Manifest:
    """What an index holds, and how its vectors were computed."""

    dimension: int
    similarity: str = "cosine"
    """cosine, of vectors that have length 1 on disk, or dot."""
    model: str | None = None
    """What the user called the model; None for vectors that came without one."""
    embedding: Mapping[str, Any] = field(default_factory=dict)
    """What `Embedder.describe` says: model, pooling, dimension, length."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of the `Embedder`, by name; those that are not here are as the model folder says."""
    prompts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """``document`` and ``query`` -> name (None for none) and text of the prompt of each."""
    passages: Mapping[str, int] | None = None
    """Tokens and overlap of the passages that texts are split into; None where each text is a row."""
    coverage: Coverage = field(default_factory=Coverage)
    """How much of all texts that were ever added the model read."""
    shards: tuple[ShardInfo, ...] = ()
    deleted: tuple[int, ...] = ()
    """Numbers of the rows that are deleted, ascending."""
    lexical: Mapping[str, Any] | None = None
    """BM25 of the rows, as of the last addition: its folder and files."""

    @property
    def total(self) -> int:
        """The number of rows in all shards, deleted ones too."""
        return sum(shard.rows for shard in self.shards)

    @property
    def rows(self) -> int:
        """The number of rows that can be found."""
        return self.total - len(self.deleted)

    def find_shard(self, source: Mapping[str, Any]) -> ShardInfo | None:
        """Return the shard whose rows were read from a source; None where there is none, or a row of it is deleted."""
        first = 0
        for shard in self.shards:
            last = first + shard.rows
            if shard.source == source and not any(first <= number < last for number in self.deleted):
                return shard
            first = last
        return None

    def with_shard(self, shard: ShardInfo, coverage: Coverage) -> Manifest:
        """Return the manifest with one more shard."""
        return replace(self, shards=(*self.shards, shard), coverage=self.coverage + coverage)


def write_manifest(index: Path, manifest: Manifest) -> None:
    """Write the manifest of an index atomically: from then on, the index holds what it says."""
    write_signed(index / MANIFEST, {"format": _FORMAT, "rows": manifest.rows, **asdict(manifest)})


def read_manifest(index: Path, *, verify: bool = False) -> Manifest:
    """Read the manifest of an index, and check the sizes of its files and, where asked, their checksums.

    Raises:
        UsageError: the folder is no index.
        DataError: it is damaged, or was not finished, or a newer bertkit wrote it.
    """
    file = index / MANIFEST
    damaged = DataError("the manifest of the index is damaged", "build the index again", file=file)
    content = read_signed(file, damaged, form=("an index", _FORMAT))
    if content is None:
        raise _no_index(index)
    try:
        for name in ("format", "rows"):
            del content[name]
        shards = tuple(ShardInfo(**shard) for shard in content.pop("shards"))
        coverage = Coverage(**content.pop("coverage"))
        manifest = Manifest(shards=shards, coverage=coverage, deleted=tuple(content.pop("deleted")), **content)
    except (KeyError, TypeError, AttributeError):
        raise damaged from None
    folders = [(shard.folder, shard.files) for shard in manifest.shards]
    if manifest.lexical:
        folders.append((manifest.lexical["folder"], manifest.lexical["files"]))
    for folder, files in folders:
        if leaves_folder(folder):
            raise damaged
        check_files(index / folder, files, verify)
    return manifest


def _no_index(index: Path) -> UsageError:
    if not index.exists():
        return UsageError("no such index", "build it with `bertkit search build`", file=index)
    if not index.is_dir():
        return UsageError("a file, not an index", "name the folder that `bertkit search build` wrote", file=index)
    return UsageError(f"not an index: it has no {MANIFEST}", "build one with `bertkit search build`", file=index)


def check_files(folder: Path, files: Mapping[str, Mapping[str, Any]], verify: bool) -> None:
    """Compare files of an index with what its manifest says; raises as `read_manifest` does."""
    for name, entry in files.items():
        file = folder / name
        if leaves_folder(name) or not file.is_file():
            raise DataError("a file of the index is missing", "restore it, or build the index again", file=file)
        size = file.stat().st_size
        if size != entry["size"]:
            what = f"the file has {size:,} bytes, not {entry['size']:,}: the index is damaged"
            raise DataError(what, "restore it, or build the index again", file=file)
        if verify and file_fingerprint(file) != entry["sha256"]:
            what = "the file does not match its checksum: the index is damaged"
            raise DataError(what, "restore it, or build the index again", file=file)
