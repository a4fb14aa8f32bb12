"""SHA-256 fingerprints of files: of data, weights and checkpoints."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any


def file_fingerprint(file: Path) -> str:
    """Give the SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    feed_file(digest, file)
    return digest.hexdigest()


def feed_file(digest: Any, file: Path) -> None:
    """Feed a file's bytes to a digest, a mebibyte at a time."""
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
