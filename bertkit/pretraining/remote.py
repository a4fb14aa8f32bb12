"""Files at an address, such as ``s3://bucket/text/*.jsonl.zst``: fsspec reads them, and the cache keeps copies."""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from pathlib import Path

from bertkit.errors import BertkitError, DataError, UnavailableError, message_of
from bertkit.progress import stage
from bertkit.storage import files
from bertkit.storage.cache import cache_folder, lock_folder, sweep

_COPIED = ".copied.json"  # name of a copy -> what its file was when it was copied


def is_remote(source: str) -> bool:
    """Tell whether a source is an address with a protocol."""
    return "://" in source


def copy_remote(address: str) -> Path:
    """Copy a file, the files of a folder, or those that match a pattern, into the cache; return the folder of copies.

    A file is copied again where it has changed. A copy whose file is gone is deleted, and after 30 days without use all
    are.

    Raises:
        DataError: no file is there.
        UnavailableError: the package of this protocol is not installed, or the files cannot be read.
        ResourceError: the disk refuses a copy.
    """
    folder = cache_folder("remote") / hashlib.sha256(address.encode()).hexdigest()[:32]
    with lock_folder(folder):
        folder.mkdir(exist_ok=True)
        try:
            with files.disk_errors(folder):
                _copy_changed(address, folder)
        except BertkitError:
            raise
        except ImportError as error:
            raise UnavailableError(f"{address}: {message_of(error)}", "install that package") from None
        except FileNotFoundError:
            remedy = "check the address, and that it can be reached"
            raise DataError("no file is there", remedy, file=address) from None
        except Exception as error:  # of the client of this protocol: no access, no answer, or no such protocol
            raise UnavailableError(f"{address}: {message_of(error)}", "check the address and your access") from None
    sweep(folder.parent)
    return folder


def _copy_changed(address: str, folder: Path) -> None:
    """Make a folder hold the files that are at an address now.

    Raises:
        FileNotFoundError: there are none.
    """
    import fsspec

    system, path = fsspec.core.url_to_fs(address)
    wildcard = re.search(r"[*?\[]", path)
    names = [name for name in (system.glob(path) if wildcard else system.find(path)) if system.isfile(name)]
    if not names:
        raise FileNotFoundError(address)
    # the folder that is copied: those below it keep their names, which may be those of splits
    root = path if names != [path] else path.rpartition("/")[0]
    if wildcard:
        root = path[: wildcard.start()].rpartition("/")[0]
    states = {name.removeprefix(root).lstrip("/"): (name, system.ukey(name)) for name in sorted(names)}
    if any(".." in Path(copy).parts for copy in states):
        raise ValueError("a name with '..' in it would be copied elsewhere")
    record = folder / _COPIED
    before: dict[str, str] = {}
    with suppress(OSError, ValueError, RecursionError):  # without it, or a damaged one, all is copied
        before = json.loads(record.read_text(encoding="utf-8"))
    for gone in before.keys() - states.keys():
        (folder / gone).unlink(missing_ok=True)
    copied = {
        copy: state for copy, (_, state) in states.items() if before.get(copy) == state and (folder / copy).is_file()
    }
    changed = states.keys() - copied.keys()
    with stage(f"copying {address}", len(changed)) as tick:
        for copy in sorted(changed):
            (folder / copy).parent.mkdir(parents=True, exist_ok=True)
            with files.replacing(folder / copy) as temporary:
                system.get_file(states[copy][0], str(temporary))
            copied[copy] = states[copy][1]
            files.write_json(record, copied)
            tick(1)
    files.write_json(record, copied)
