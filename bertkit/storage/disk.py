"""More than fits into memory, by two mechanisms: objects that wait on disk, and arrays that later runs read again.

`offload_to_disk` pickles objects into a file without a name, which is gone when the process ends. `ArrayWriter` writes
arrays as .npy files, and a manifest with their checksums last: a folder without a valid manifest does not count.
"""

from __future__ import annotations

import hashlib
import heapq
import io
import os
import pickle
import tempfile
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import chain, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, TypeVar

from bertkit.errors import ResourceError
from bertkit.progress import log
from bertkit.storage import files
from bertkit.storage.cache import atomic_cache_write, cache_folder, delete_unused, lock_folder, log_once, touch
from bertkit.storage.fingerprints import feed_file, read_with_checksum, with_digest, without_digest, write_with_checksum

if TYPE_CHECKING:
    # numpy is imported inside functions, because commands that only read rows do not need it.
    import numpy as np

    Array = np.ndarray[Any, Any]

# --- Objects that wait on disk ---


IN_MEMORY = 1 << 14
"""Maximum items that stay a list, because they take little memory; longer sequences are processed in such parts."""

_BLOCK = 256  # items that are written, and read, together
_PART = 1 << 16  # items that are sorted in memory; each part is a file until all are merged

Item = TypeVar("Item")


class DiskList(Sequence[Item]):
    """Items in the order that they came in, written in blocks; the block that was read last stays in memory.

    So items are best read in order. What is changed in an item is lost.
    """

    def __init__(self, items: Iterable[Item], block: int = _BLOCK) -> None:
        self._block, self._count = block, 0
        self._file, self._ends = _open_file(), array("q", [0])  # bytes; block i is between ends i and i + 1
        weakref.finalize(self, self._file.close)
        self._last: tuple[int, list[Item]] = (-1, [])
        remaining = iter(items)
        # A block is one pickle, which stores the keys of its rows once; a pickle per row would repeat them.
        while chunk := list(islice(remaining, block)):
            with files.disk_errors(_offload_folder()):
                self._file.write(pickle.dumps(chunk, pickle.HIGHEST_PROTOCOL))
            self._ends.append(self._file.tell())
            self._count += len(chunk)
        with files.disk_errors(_offload_folder()):
            self._file.flush()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        """Read an item, or a list of items for a slice."""
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(self._count))]
        block, place = divmod(range(self._count)[index], self._block)
        # Another thread may replace the last block at any time.
        last, items = self._last
        if last != block:
            items = self._read_block(block)
            self._last = block, items
        return items[place]

    def __iter__(self) -> Iterator[Item]:
        return chain.from_iterable(map(self._read_block, range(len(self._ends) - 1)))

    def _read_block(self, index: int) -> list[Item]:
        start, size = self._ends[index], self._ends[index + 1] - self._ends[index]
        if hasattr(os, "pread"):  # Forked processes share one position in the file.
            content = os.pread(self._file.fileno(), size, start)
        else:  # Windows
            self._file.seek(start)
            content = self._file.read(size)
        items: list[Item] = pickle.loads(content)
        return items


def offload_to_disk(items: Iterable[Item], block: int = _BLOCK) -> Sequence[Item]:
    """Return items as a sequence whose memory does not grow with their number, or as a list if they are few.

    Args:
        items: Items, which are read once.
        block: Number of items that are read from disk together; a few if they are read in random order.

    Raises:
        ResourceError: If the disk of the cache is full.
    """
    remaining = iter(items)
    first = list(islice(remaining, IN_MEMORY + 1))
    return first if len(first) <= IN_MEMORY else DiskList(chain(first, remaining), block)


def sort_on_disk(items: Iterable[Item], key: Callable[[Item], Any]) -> Sequence[Item]:
    """Return items as a sequence in the order that `sorted` has, whose memory does not grow with their number."""
    remaining, parts = iter(items), list[Sequence[Item]]()
    while part := sorted(islice(remaining, _PART), key=key):
        parts.append(offload_to_disk(part))
    # `merge` keeps one block of each part in memory. It is stable like `sorted`, because the parts are in order.
    return parts[0] if len(parts) == 1 else offload_to_disk(heapq.merge(*parts, key=key))


def _open_file() -> IO[Any]:
    """Open a file without a name in the cache, because a folder of temporary files may be in memory itself."""
    with suppress(OSError):
        _offload_folder().mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=_offload_folder())
    return tempfile.TemporaryFile()


def _offload_folder() -> Path:
    return cache_folder("spooled")


# --- Arrays that later runs read again ---

_MANIFEST = "manifest.json"
# An npy file reserves room for longer shapes, so that arrays of a few axes have headers of one size.
_HEADER_BYTES = 128


class ArrayWriter:
    """Writer of arrays whose first axis grows, and may be longer than memory; a context manager.

    Each array is a file NAME.npy, which numpy reads too. It is written from the start: a killed writer leaves a folder
    that does not count.

    Args:
        folder: Folder of these arrays only; the caller holds its lock.
        dtypes: Name of an array -> dtype of its numbers.
    """

    def __init__(self, folder: Path, dtypes: Mapping[str, str]) -> None:
        import numpy as np

        self._folder = folder
        self._dtypes = {name: np.dtype(dtype) for name, dtype in dtypes.items()}
        self.shapes: dict[str, tuple[int, ...]] = dict.fromkeys(dtypes, (0,))
        self._digests = {name: hashlib.sha256() for name in dtypes}
        self._streams: dict[str, IO[bytes]] = {}
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        """Create the files, with room for the headers that `finish` writes."""
        self._folder.mkdir(parents=True, exist_ok=True)
        # The manifest of earlier arrays must not count for new ones.
        (self._folder / _MANIFEST).unlink(missing_ok=True)
        for name in self._dtypes:
            file = self._folder / f"{name}.npy"
            # Another process may have mapped the earlier file, which must not change under it.
            file.unlink(missing_ok=True)
            self._streams[name] = self._opened.enter_context(file.open("wb"))
            self._streams[name].write(bytes(_HEADER_BYTES))
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files."""
        self._opened.close()

    def append(self, name: str, values: Array) -> None:
        """Append values to an array; all values of an array have the same shape, except along the first axis."""
        import numpy as np

        content = np.ascontiguousarray(values, dtype=self._dtypes[name]).tobytes()
        self._streams[name].write(content)
        self._digests[name].update(content)
        length = self.shapes[name][0]
        # Empty values after others may have another shape.
        if len(values) or not length:
            self.shapes[name] = (length + len(values), *values.shape[1:])

    def finish(self, metadata: Mapping[str, Any]) -> None:
        """Flush all arrays to disk, and write the manifest with `metadata` about them: now the folder counts."""
        arrays = {}
        for name, stream in self._streams.items():
            dtype, shape = self._dtypes[name].str, self.shapes[name]
            stream.seek(0)
            stream.write(_npy_header(dtype, shape))
            stream.flush()
            os.fsync(stream.fileno())
            arrays[name] = {"dtype": dtype, "shape": shape, "sha256": self._digests[name].hexdigest()}
        write_with_checksum(self._folder / _MANIFEST, {"arrays": arrays, "facts": dict(metadata)})


def map_arrays(folder: Path) -> tuple[dict[str, Array], dict[str, Any]] | None:
    """Map the arrays of a folder into memory, or return None if they are incomplete or damaged, which is logged.

    Mapped arrays are read page by page as they are used, so that they may be larger than memory and processes share
    one copy.

    Returns:
        The arrays by name, and their metadata with the SHA-256 of the numbers of each.
    """
    manifest = folder / _MANIFEST
    try:
        content = read_with_checksum(manifest, ResourceError("the manifest is damaged", file=manifest))
        if content is None:
            return None
        arrays = {name: _map_checked(folder / f"{name}.npy", **entry) for name, entry in content["arrays"].items()}
    except (ResourceError, ValueError, FileNotFoundError):
        # Without its manifest, the folder does not count, even if the next process is killed while it writes.
        log.info(f"the numbers in {folder} are damaged and are computed again")
        manifest.unlink(missing_ok=True)
        return None
    touch(manifest)
    digests = {name: entry["sha256"] for name, entry in content["arrays"].items()}
    return arrays, {**content["facts"], "sha256": digests}


def map_or_write(folder: Path, write: Callable[[], None]) -> tuple[dict[str, Array], dict[str, Any]]:
    """Map the arrays of a folder as `map_arrays` does; if that fails, `write` them first, under the folder's lock.

    Folders next to it that no process has read for 30 days are then deleted.

    Raises:
        ResourceError: If the files differ from what was written.
    """
    with lock_folder(folder):
        # Look under the lock: another process may have written the arrays while this one waited.
        stored = map_arrays(folder)
        if stored is None:
            write()
            delete_unused(folder.parent)
            stored = map_arrays(folder)
    if stored is None:
        raise ResourceError("the files differ from what was written", "check the disk", file=folder)
    return stored


def _map_checked(file: Path, dtype: str, shape: Sequence[int], sha256: str) -> Array:
    """Map an array of `ArrayWriter`.

    Raises:
        ValueError: If it differs from its entry in the manifest.
    """
    import numpy as np

    digest = hashlib.sha256()
    # The header is compared and not parsed: numpy evaluates it, and damage could raise any error.
    with file.open("rb") as stream:
        has_header = stream.read(_HEADER_BYTES) == _npy_header(dtype, shape)
    feed_file(digest, file, _HEADER_BYTES)
    if not has_header or digest.hexdigest() != sha256:
        raise ValueError(f"{file} is damaged")
    return np.asarray(np.memmap(file, dtype, "r", _HEADER_BYTES, tuple(shape)))


def _npy_header(dtype: str, shape: Sequence[int]) -> bytes:
    """Return the header of an npy file."""
    import numpy as np

    stream, header = io.BytesIO(), {"descr": dtype, "fortran_order": False, "shape": tuple(shape)}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue()


def save_arrays(file: Path, arrays: Mapping[str, Any]) -> None:
    """Save arrays that fit into memory as one file with a checksum, in the cache."""
    import numpy as np

    np.savez(content := io.BytesIO(), **arrays)
    with atomic_cache_write(file) as temporary:
        temporary.write_bytes(with_digest(content.getvalue()))


def cache_arrays(file: Path, arrays: Mapping[str, Any]) -> None:
    """Save arrays as `save_arrays` does, or log that they cannot be written."""
    try:
        save_arrays(file, arrays)
    except OSError as error:
        log_once(f"numbers are not cached: {error}; set BERTKIT_CACHE to use another folder")


def load_arrays(file: Path) -> dict[str, Array] | None:
    """Load the arrays of `save_arrays`, or return None if they are missing, or damaged, which is logged."""
    import numpy as np

    try:
        content = without_digest(file.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        log_once(f"cached numbers cannot be read: {error}; set BERTKIT_CACHE to use another folder")
        return None
    if content is None:
        log.info(f"{file} is damaged; recomputing it")
        return None
    touch(file)
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


# --- Arrays that other programs may have written ---


def map_npy(file: Path) -> Array:
    """Map an array into memory. What is written to it is not saved; torch warns of arrays that cannot be written.

    Raises:
        ValueError: If the file is empty or damaged.
        OSError: If it cannot be read.
    """
    import numpy as np

    try:
        return np.lib.format.open_memmap(file, mode="c")
    except OSError:
        raise
    except Exception as error:  # the header is read as Python code, which may fail in any way
        raise ValueError(f"not an npy file: {error}") from None
