"""Faults at every file operation of a command: killed, disk full, quota, I/O error or read-only at the n-th of them.

A first run lists the operations. The command is then broken off at one of them, and repeated without a fault: it must
end as an unbroken run does. faults.c strikes below Python, so that native writers fail as on a real disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.kills import Zygote, everything

COUNT, KILL, FULL, EIO, READ_ONLY, QUOTA, COPY = range(7)
COPIES = 40  # as in faults.c
FAULTS = {"kill": KILL, "full": FULL, "eio": EIO, "read-only": READ_ONLY, "quota": QUOTA}
EXTENT = os.environ.get("BERTKIT_FAULTS", "")
"""Which commands and operations to strike at; CONTRIBUTING.md lists the values."""

_VARYING = {"started", "finished", "seconds", "latency", "size", "sha256"}  # the last two are of files with the others

_RANDOM = re.compile(r"(?<=\.tmp)\w{6}$|\.\d+\.[0-9a-f]{8}(?=\.tmp$)|(?<=checkpoint-)\d+|(?<=\.tok\.)\d+|[0-9a-f]{32}")


def build(folder: Path) -> Path | None:
    """Compile faults.c; None without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None or os.name != "posix":
        return None
    library = folder / "faults.so"
    source = Path(__file__).with_suffix(".c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


class Grid:
    """A command, its file operations, and what it leaves when nothing breaks it.

    Args:
        zygote: runs the command.
        arguments: of the command, which writes into the folder it is run in.
        outcome: reads what a command has left in its folder, to be compared with what an unbroken one leaves.
        make_folder: makes a new folder to run the command in.
    """

    def __init__(
        self,
        zygote: Zygote,
        arguments: list[str],
        outcome: Callable[[Path], object],
        make_folder: Callable[[], Path],
    ) -> None:
        self.zygote, self.arguments, self.outcome, self.make_folder = zygote, arguments, outcome, make_folder
        self.counts: Counter[str] = Counter()
        folder = make_folder()
        code, text = self.run(folder, 0, COUNT)
        assert code == 0, text
        self.operations = folder.with_suffix(".log").read_text().splitlines()
        self.unbroken, self.files = outcome(folder), _names(folder)

    def run(self, folder: Path, operation: int | None = None, error: int = COUNT) -> tuple[int, str]:
        """Run the command in a folder, with a fault where an `operation` is named."""
        fault = None
        if operation is not None:
            log = folder.with_suffix(".log") if error == COUNT else ""
            fault = {"operation": operation, "error": error, "folder": str(folder)}
            fault |= {"except": str(folder / "out.txt"), "log": str(log)}
        return self.zygote.run(folder, self.arguments, fault, BERTKIT_CACHE=str(folder / "cache"))

    def places(self) -> list[int]:
        """Return the operations to strike at, from 1; see `EXTENT`."""
        kinds: dict[str, list[int]] = {}
        for number, operation in enumerate(self.operations, 1):
            kinds.setdefault(_RANDOM.sub("*", operation), []).append(number)
        if EXTENT == "all":
            return list(range(1, len(self.operations) + 1))
        return sorted({number for numbers in kinds.values() for number in (numbers[-1], numbers[0 if EXTENT else -1])})

    def strike(self, operation: int, error: int) -> str | None:
        """Break the command off at an operation, repeat it, and describe what is wrong; None if nothing is."""
        folder = self.make_folder()
        code, text = self.run(folder, operation, error)
        self.counts[f"exit {code}"] += 1
        fault = _find_fault_of_ending(code, text, error) or self._find_fault_after(folder, is_done=code == 0)
        shutil.rmtree(folder)
        return fault and f"{operation} {self.operations[operation - 1]}: {fault}"

    def kill_at_all(self) -> list[str]:
        """Repeat the command on what a kill at each of its operations would leave, and describe what is wrong.

        A run is copied before each operation, which is what a kill there would leave, and takes no run for each. A copy
        with the same bytes as an earlier one is left out.
        """
        wrong, seen = [], set()
        for first in range(1, len(self.operations) + 1, COPIES):
            folder = self.make_folder()
            code, text = self.run(folder, first, COPY)
            assert code == 0, text
            shutil.rmtree(folder)
            for number in range(first, min(first + COPIES, len(self.operations) + 1)):
                copy = folder.with_name(f"{folder.name}.{number}")
                if (digest := _digest(copy)) not in seen:
                    seen.add(digest)
                    self.counts["states"] += 1
                    if fault := self._find_fault_after(copy, is_done=False):
                        wrong.append(f"{number} {self.operations[number - 1]}: {fault}")
                shutil.rmtree(copy)
        return wrong

    def _find_fault_after(self, folder: Path, *, is_done: bool) -> str | None:
        code, text = (0, "") if is_done else self.run(folder)
        # All was written before: nothing is overwritten (2), or the rows to delete are gone (3).
        if code in (2, 3) and self.outcome(folder) == self.unbroken:
            return None
        if code != 0:
            return f"the same command ends with {code}: {text.strip()[-300:]}"
        if self.outcome(folder) != self.unbroken:
            return "it ended with 0 and another result" if is_done else "the same command ends with another result"
        names = _names(folder)
        missing = [name for name in sorted(self.files - names) if not name.startswith("cache/")]  # which a run can lack
        self.counts["leftovers"] += bool(names - self.files)
        return f"these files are missing: {missing}" if missing else None


def _find_fault_of_ending(code: int, text: str, error: int) -> str | None:
    if error == KILL:
        return None if code == -9 else f"not killed, but ended with {code}: {text.strip()[-300:]}"
    last = text.strip().splitlines()[-1] if text.strip() else ""
    if code not in (0, 6):
        return f"ended with {code}: {text.strip()[-300:]}"
    if code == 6 and (not last.startswith("error: ") or "Traceback" in text):
        return f"no message, but {text.strip()[-300:]!r}"
    return None


def _digest(folder: Path) -> bytes:
    """Hash the names and bytes of all files in a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(f"\n{path.relative_to(folder)}\n".encode() + (path.read_bytes() if path.is_file() else b""))
    return digest.digest()


def _names(folder: Path) -> set[str]:
    return {_RANDOM.sub("*", str(file.relative_to(folder))) for file in folder.rglob("*")}


def read_run(folder: Path) -> object:
    """Return all that a run left which its time does not decide."""
    return everything(folder / "run")


def read_folder(folder: Path) -> object:
    """Return the bytes of the files that another command made; a lock says nothing."""
    made = folder / "made"
    files = [file for file in made.rglob("*") if file.is_file() and file.suffix != ".lock"]
    return {str(file.relative_to(made)): file.read_bytes() for file in files}


def read_built(folder: Path) -> object:
    """Return what `read_folder` does, of a model folder: without what its JSON files say of the time."""
    found = read_folder(folder)
    assert isinstance(found, dict)
    return {name: _timeless(json.loads(data)) if name.endswith(".json") else data for name, data in found.items()}


def _timeless(content: object) -> object:
    if isinstance(content, dict):
        return {key: _timeless(value) for key, value in content.items() if key not in _VARYING}
    return list(map(_timeless, content)) if isinstance(content, list) else content
