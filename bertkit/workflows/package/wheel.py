"""Wheels of packages: a ZIP file whose last entry lists the others with their checksums (PEP 427)."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from bertkit.errors import UsageError
from bertkit.storage.fingerprints import feed_file

_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*((a|b|rc)[0-9]+)?(\.post[0-9]+)?(\.dev[0-9]+)?")
_PYTHON = ">=3.11"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # so that equal contents make equal wheels


def check_version(version: str) -> None:
    """Check that a wheel may have a version.

    Raises:
        UsageError: it is not one of PEP 440.
    """
    if not _VERSION.fullmatch(version):
        raise UsageError(f"{version!r} is no version of a wheel", "write it like 1.0 or 1.2.3")


def write_wheel(folder: Path, name: str, version: str, requirements: Sequence[str]) -> Path:
    """Write the wheel of a package beside it, and return the file.

    Args:
        folder: has the package, README.md and LICENSE.
        name: of the package.
        version: of the wheel.
        requirements: what it needs.
    """
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {name}",
        f"Version: {version}",
        f"Requires-Python: {_PYTHON}",
        *(f"Requires-Dist: {line}" for line in requirements),
        "License-File: LICENSE",
        "Description-Content-Type: text/markdown",
    ]
    heads = {
        f"{info}/METADATA": ("\n".join(lines) + "\n\n") + (folder / "README.md").read_text(encoding="utf-8"),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: bertkit\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/licenses/LICENSE": (folder / "LICENSE").read_text(encoding="utf-8"),
    }
    # Sorted, and with one date: equal packages make equal wheels.
    files = sorted(file for file in (folder / name).rglob("*") if file.is_file() and file.suffix != ".pyc")
    with ZipFile(wheel, "w", ZIP_DEFLATED, compresslevel=1) as archive:
        listed = {}
        for file in files:
            path = file.relative_to(folder).as_posix()
            digest = hashlib.sha256()
            feed_file(digest, file)
            with file.open("rb") as source, archive.open(_entry(path), "w", force_zip64=True) as target:
                shutil.copyfileobj(source, target)
            listed[path] = (digest.digest(), file.stat().st_size)
        for path, text in heads.items():
            archive.writestr(_entry(path), text)
            listed[path] = (hashlib.sha256(text.encode()).digest(), len(text.encode()))
        archive.writestr(_entry(f"{info}/RECORD"), _record(listed, f"{info}/RECORD"))
    return wheel


def _entry(path: str) -> ZipInfo:
    entry = ZipInfo(path, _EPOCH)
    entry.compress_type, entry.external_attr = ZIP_DEFLATED, 0o644 << 16
    return entry


def _record(listed: Mapping[str, tuple[bytes, int]], name: str) -> str:
    lines = []
    for path, (digest, size) in listed.items():
        encoded = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        lines.append(f"{path},sha256={encoded},{size}\n")
    return "".join([*lines, f"{name},,\n"])
