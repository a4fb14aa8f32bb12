"""Arrays in files: cached with a checksum of all of them, or of a user and read though anything may be in them."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.progress import log
from bertkit.storage.cache import say_once, touch, writing
from bertkit.storage.fingerprints import with_digest, without_digest


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
    """Cache arrays with a checksum of all of them; where they cannot be written, that is logged."""
    np.savez(content := io.BytesIO(), **arrays)
    try:
        with writing(file) as temporary:
            temporary.write_bytes(with_digest(content.getvalue()))
    except OSError as error:
        say_once(f"numbers are not cached: {error}; set BERTKIT_CACHE to use another folder")


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
