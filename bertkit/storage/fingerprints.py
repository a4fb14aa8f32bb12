"""SHA-256 fingerprints of files, tokenizers and JSON values, and JSON files that contain their own."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePath
from typing import Any

import bertkit
from bertkit.errors import BertkitError
from bertkit.storage import files

_DIGEST = hashlib.sha256().digest_size
_SMALL = 1 << 20  # bytes, which are read in a millisecond
_SETTLED = 5.0  # seconds


def file_fingerprint(file: Path) -> str:
    """Compute the SHA-256 of a file's bytes; for a folder, of the names and bytes of its files."""
    digest = hashlib.sha256()
    for part in sorted(filter(Path.is_file, file.rglob("*"))) if file.is_dir() else [file]:
        # In a folder, a renamed file changes the content. The name of a single file does not, so that its copies are
        # equal.
        digest.update(part.relative_to(file).as_posix().encode() if part != file else b"")
        feed_file(digest, part)
    return digest.hexdigest()


def cached_checksum(file: Path) -> str:
    """Return a file's SHA-256 from the cache, unless the file's size, times or inode have changed.

    Small files are not cached, nor are files that have just changed: a second change could have the same time on the
    clock of the file system.
    """
    # Imported late, because `bertkit --help` imports this module.
    from bertkit.storage.cache import atomic_cache_write, cache_folder, touch

    status = file.stat()
    changed = max(status.st_mtime, status.st_ctime)  # A copy can keep the time of its content.
    if status.st_size < _SMALL or time.time() - changed < _SETTLED:
        return file_fingerprint(file)
    name = hashlib.sha256(os.fsencode(file.resolve())).hexdigest()
    memory = cache_folder("fingerprints") / name[:2] / f"{name}.json"
    # The inode shows that another file has the name now, even if it has the same size and times.
    stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    with suppress(OSError, ValueError):
        if (cached := json.loads(memory.read_text(encoding="utf-8")))[1:] == stamp:
            touch(memory)
            return str(cached[0])
    fingerprint = file_fingerprint(file)
    with suppress(OSError), atomic_cache_write(memory) as temporary:
        temporary.write_text(json.dumps([fingerprint, *stamp]), encoding="utf-8", newline="\n")
    return fingerprint


def describe_file(file: Path) -> dict[str, Any]:
    """Return the size of a file and its SHA-256."""
    return {"size": file.stat().st_size, "sha256": file_fingerprint(file)}


def sync_file(file: Path) -> None:
    """Flush a file to disk. Windows flushes only files that are open for writing."""
    with file.open("r+b") as stream:
        os.fsync(stream.fileno())


def list_files(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Flush files of a folder to disk, and return the size and SHA-256 of each."""
    listed = {}
    for name in sorted(names):
        file = folder / name
        sync_file(file)
        listed[name] = describe_file(file)
    return listed


def leaves_folder(name: str) -> bool:
    """Return whether a file name from an untrusted source leads out of its folder."""
    path = PurePath(name)
    # On Windows, `C:x` and `/x` have an anchor but are not absolute.
    return bool(path.anchor) or ".." in path.parts


def is_complete(file: Path, entry: Mapping[str, Any] | None) -> bool:
    """Return whether a file exists and matches its entry of `list_files`; without an entry, it is not compared."""
    return file.is_file() and entry in (None, describe_file(file))


def feed_file(digest: Any, file: Path, start: int = 0, size: int = sys.maxsize) -> None:
    """Update a digest with `size` bytes of a file from `start`, in blocks of one mebibyte."""
    with file.open("rb") as stream:
        stream.seek(start)
        while block := stream.read(min(size, 1 << 20)):
            digest.update(block)
            size -= len(block)


def with_digest(content: bytes) -> bytes:
    """Append the SHA-256 of bytes to them."""
    return content + hashlib.sha256(content).digest()


def without_digest(content: Any) -> Any | None:
    """Return the content of the result of `with_digest`, a slice of the same type, or None if it is damaged."""
    body, digest = content[:-_DIGEST], content[-_DIGEST:]
    return body if hashlib.sha256(body).digest() == bytes(digest) else None


def json_fingerprint(values: object) -> str:
    """Compute the SHA-256 of values after a round trip through JSON: keys are text, and NaN and infinity are null."""
    read_back = json.loads(json.dumps(values, default=str), parse_constant=lambda _: None)
    return hashlib.sha256(json.dumps(read_back, sort_keys=True).encode()).hexdigest()


@cache
def package_fingerprint() -> str:
    """Compute the SHA-256 of bertkit's code, because results can change with it even within a version."""
    folder = Path(bertkit.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(file.relative_to(folder).as_posix().encode())
        feed_file(digest, file)
    return digest.hexdigest()


def tokenizer_content(tokenizer: Any) -> list[Any]:
    """Return the content that defines a fast tokenizer, without truncation and padding, which each call can change."""
    # The JSON starts with the version, truncation and padding. From `added_tokens` on, it has all that defines tokens.
    model = tokenizer.backend_tokenizer.to_str()
    return [
        type(tokenizer).__name__,
        hashlib.sha256(model[model.index('"added_tokens"') :].encode()).hexdigest(),
        *(tokenizer.model_max_length, tokenizer.truncation_side, tokenizer.padding_side),
        *(tokenizer.model_input_names, tokenizer.pad_token_type_id),
        {name: str(value) for name, value in tokenizer.special_tokens_map.items()},
    ]


# --- JSON objects that contain their own checksum ---

CHECKSUM = "sha256"
"""Key of an object's checksum of itself."""


def read_object(file: Path, damaged: BertkitError) -> dict[str, Any] | None:
    """Read a JSON object, or return None if the file does not exist.

    Raises:
        BertkitError: `damaged`, if the file is anything else.
    """
    try:
        # NaN is read as null, because bertkit writes null and a checksum is the same for both.
        content = json.loads(file.read_text(encoding="utf-8"), parse_constant=lambda _: None)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError):
        raise damaged from None
    if not isinstance(content, dict):
        raise damaged
    return content


def read_with_checksum(file: Path, damaged: BertkitError, form: tuple[str, int] | None = None) -> dict[str, Any] | None:
    """Read an object that `write_with_checksum` wrote, or return None if the file does not exist.

    Args:
        file: JSON file.
        damaged: Error to raise if the file is anything else; all errors have its class.
        form: Content of such a file in words, and the number of its ``format`` if it has one.

    Raises:
        BertkitError: `damaged`, or that the file has another format.
    """
    content = read_object(file, damaged)
    # The format is compared first, so that a file of another version is not reported as damaged.
    if content and form and content.get("format", form[1]) != form[1]:
        message = f"{form[0]} of format {content['format']}, where this bertkit reads {form[1]}"
        raise type(damaged)(message, f"use the bertkit that wrote it, or {damaged.remedy}", file=file.parent)
    if content is not None and content.pop(CHECKSUM, None) != json_fingerprint(content):
        raise damaged
    return content


def write_with_checksum(file: Path, content: Mapping[str, Any]) -> None:
    """Write an object with a checksum of itself atomically; it replaces an earlier file."""
    # The checksum covers the object that will be read: JSON turns tuples into lists and keys into text.
    as_read = json.loads(files.to_json(content))
    as_read.pop(CHECKSUM, None)
    files.write_json(file, {**as_read, CHECKSUM: json_fingerprint(as_read)})
