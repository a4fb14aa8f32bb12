"""Look at the machine: packages, device, memory, processors, disks, the hub and the cache, each in a second or so."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

from bertkit.checks import Finding
from bertkit.errors import BertkitError, UnavailableError, message_of, pip_install
from bertkit.hardware.device import Device, find_device
from bertkit.hardware.memory import read_memory
from bertkit.hardware.threads import fitting_threads
from bertkit.progress import stage
from bertkit.storage import files, hub, runs
from bertkit.storage.cache import cache_folder
from bertkit.storage.summaries import count_bytes
from bertkit.workflows.doctor import judge

_CVES = "CVE-2026-1839 and CVE-2025-14929"
_MENDED = 5
"""The first major version of transformers without `_CVES`."""
_LIBRARIES = ("accelerate", "datasets", "huggingface-hub", "numpy", "tokenizers", "torch", "transformers")
"""Packages whose versions others depend on too."""
_SHM = Path("/dev/shm")
_GB, _MB = 10**9, 10**6
# the optimizer steps of BERT base take 2 GB, and its run folder up to 4 GB
_MEMORY, _LEAST_MEMORY = 4 * _GB, _GB
_SPACE, _LEAST_SPACE, _LEAST_FILES = 5 * _GB, 200 * _MB, 1000
_LEAST_SHM = 100 * _MB  # Docker gives 64 MiB; loader processes pass batches through it
_SLOW_SYNC = 0.5  # seconds; a checkpoint waits for a dozen
_HUB_SECONDS = 3.0
_SIDE = 64  # of the matrices of the smoke test


def examine_machine() -> list[Finding]:
    """Look at everything that a run needs, and go on after each fault."""
    findings = list[Finding]()
    for look in (look_at_packages, look_at_device, look_at_memory, look_at_disks, look_at_hub):
        with stage(look.__name__.replace("_", " ").replace("look", "looking"), total=1):
            findings += look()
    return findings


def look_at_packages() -> Iterator[Finding]:
    """Compare Python and packages with what bertkit, and what is installed beside it, declare that they need."""
    # of a package that is installed twice, the first one is imported
    packages = {_key(package.metadata["Name"]): package for package in reversed([*metadata.distributions()])}
    versions = {name: package.version for name, package in packages.items()} | {"python": platform.python_version()}
    unmet = {name: [*_list_unmet(package, versions)] for name, package in packages.items()}
    lacks = [line for line, _ in unmet.pop("bertkit", [])]
    text = "; ".join(lacks) or ", ".join(f"{name} {version}" for name, version in runs.versions().items())
    yield judge("packages", "versions", text, fail=pip_install() if lacks else "")
    pairs = [line for lines in unmet.values() for line, needed in lines if needed in _LIBRARIES]
    text = "; ".join(pairs) or "packages that share a library with bertkit agree on its version"
    yield judge("packages", "pairs", text, warn="keep them in another environment" if pairs else "")
    version = versions.get("transformers", "0")
    is_old = int(version.partition(".")[0]) < _MENDED
    text = f"transformers {version} {'has' if is_old else 'is mended of'} {_CVES}"
    yield judge("packages", "vulnerabilities", text, fail=f"pip install 'transformers>={_MENDED}'" if is_old else "")


def _list_unmet(package: metadata.Distribution, versions: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Say what a package needs that is not here or in a version that does not fit, with the name of that."""
    from packaging.requirements import Requirement

    pythons = package.metadata.get_all("Requires-Python", [])
    for line in [*(package.requires or []), *(f"python{version}" for version in pythons)]:
        with suppress(ValueError):  # some packages declare what no tool can read
            needed = Requirement(line)
            here = versions.get(_key(needed.name))
            is_needed = needed.marker is None or needed.marker.evaluate({"extra": ""})
            if is_needed and (here is None or not needed.specifier.contains(here, prereleases=True)):
                text = f"{package.metadata['Name']} needs {needed.name}{needed.specifier}, here is {here or 'none'}"
                yield text, _key(needed.name)


def _key(package: str | None) -> str:
    return str(package).lower().replace("_", "-")


def look_at_device() -> Iterator[Finding]:
    """Compute a small product and its gradient on the device of a run, and try in which precision it would compute."""
    from bertkit.hardware.precision import detect_hardware

    try:
        device = find_device()
        is_right = _multiply(device)
    except (UnavailableError, RuntimeError) as error:  # no such device; of a driver, or a kernel that it has not
        yield judge("device", "device", message_of(error), fail="--device cpu computes without it")
        return
    memory = f", {device.memory / _GB:,.1f} GB" if device.memory else ""
    text = f"{device.name}{memory}: a product and its gradient are {'right' if is_right else 'wrong'}"
    yield judge("device", "device", text, fail="" if is_right else "--device cpu computes without it")
    yield judge("device", "precision", f"of BERT base's sizes, {detect_hardware('auto').reason}")


def _multiply(device: Device) -> bool:
    """Tell whether a product of two matrices, and its gradient, are what they must be."""
    import torch

    ones = torch.ones(_SIDE, _SIDE, device=device.type, requires_grad=True)
    product = ones @ torch.full((_SIDE, _SIDE), 2.0, device=device.type)
    gradient = torch.autograd.grad(product.sum(), ones)[0]
    return all(bool((values == 2 * _SIDE).all()) for values in (product, gradient))


def look_at_memory() -> Iterator[Finding]:
    """Compare memory and processors, as control groups and affinity leave them, with what a run takes."""
    if memory := read_memory():
        total, free = memory
        remedy = "end other programs, raise the container's limit, or take a smaller model or --batch-size"
        fail, warn = (remedy if free < least else "" for least in (_LEAST_MEMORY, _MEMORY))
        text = f"{free / _GB:,.1f} of {total / _GB:,.1f} GB are free"
        yield judge("memory", "memory", text, fail=fail, warn=warn)
    threads, load = fitting_threads(), os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    why = f" ({threads.why})" if threads.why else ""
    text = f"{threads.text}{why}; in the last minute, {load:.1f} threads of all programs wanted a core"
    remedy = "wait until other programs end" if load > (os.cpu_count() or 1) + 1 else ""
    yield judge("memory", "processors", text, warn=remedy)


def look_at_disks() -> Iterator[Finding]:
    """Write, sync and lock a file in the cache and in the working folder, and look at the room that is left."""
    cache = cache_folder("")
    for name, folder in (("cache", cache), ("working folder", Path.cwd())):
        yield from _look_at_folder(name, folder)
    if _SHM.is_dir() and (free := files.free_space(_SHM)[0]) is not None:
        remedy = "docker run --shm-size=1g" if free < _LEAST_SHM else ""
        yield judge("disks", "shared memory", f"{_SHM}: {free / _MB:,.0f} MB are free", warn=remedy)
    yield judge("disks", "cache size", f"cache {cache}: {count_bytes(cache) / _MB:,.0f} MB, which may be deleted")


def _look_at_folder(name: str, folder: Path) -> Iterator[Finding]:
    where, (free, inodes) = f"{name} {folder}", files.free_space(folder)
    if free is not None:
        is_full = free < _LEAST_SPACE or (inodes is not None and inodes < _LEAST_FILES)
        remedy = "delete files" if is_full or free < _SPACE else ""
        more = "any number of" if inodes is None else f"{inodes:,}"
        text = f"{where}: {free / _GB:,.1f} GB are free, and {more} files can be created"
        yield judge("disks", f"space of the {name}", text, fail=remedy if is_full else "", warn=remedy)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        seconds, has_locks = _try_folder(folder)
    except OSError as error:
        remedy = files.REMEDIES.get(error.errno or 0, "use another folder (BERTKIT_CACHE, --output)")
        text = f"{where}: a file cannot be written: {error.strerror}"
        yield judge("disks", f"writing to the {name}", text, fail=remedy)
        return
    text = f"{where}: {'locks' if has_locks else 'no locks'}, and a file is on disk in {1000 * seconds:,.1f} ms"
    remedy = "use a local disk" if seconds > _SLOW_SYNC else ""
    remedy = remedy if has_locks else "use a local disk, or start no two commands at once that write there"
    yield judge("disks", f"writing to the {name}", text, warn=remedy)


def _try_folder(folder: Path) -> tuple[float, bool]:
    """Return how long a file of a mebibyte takes to be on disk, and whether the file system has locks."""
    with TemporaryDirectory(prefix=".bertkit-doctor-", dir=folder) as temporary:
        lock = Path(temporary, ".lock")
        with files.locked(lock):
            start = time.perf_counter()
            files.write_bytes(Path(temporary, "file"), bytes(1 << 20))
            return time.perf_counter() - start, not files.mark_of(lock).exists()


def look_at_hub() -> Iterator[Finding]:
    """Ask the hub for an answer, if anything may be asked of it, and look for a token without showing it."""
    from huggingface_hub import constants, get_token
    from huggingface_hub.utils import get_session

    text, remedy = f"{constants.ENDPOINT} answers", ""
    if hub.is_offline_by_choice():
        text, remedy = "HF_HUB_OFFLINE is set", "unset it to fetch what is not in the cache"
    else:
        try:
            with hub.answering():
                get_session().head(constants.ENDPOINT, timeout=_HUB_SECONDS)
        except BertkitError as error:
            text = f"{constants.ENDPOINT}: {error.what}"
            remedy = "check network, proxy and HF_ENDPOINT, or work offline"
    yield judge("hub", "hub", text, warn=remedy)
    yield judge("hub", "token", "a token is set" if get_token() else "no token, which public models do not need")
