"""A place to run bertkit's commands in, with all that they make (see attack.py)."""

from __future__ import annotations

import itertools
import json
import pkgutil
import re
import shlex
import shutil
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import bertkit
from tests.conftest import toy_rows, write_csv, write_jsonl
from tests.faults import COUNT, build
from tests.faults import _names as names_in
from tests.kills import Zygote
from tools.attack_commands import COPIES, MADE

LIMIT = 240
"""Seconds after which a command hangs, and is killed; the slowest takes twenty on an idle core."""

LIBRARIES = (
    *(
        "scipy.stats",
        "scipy.optimize",
        "sklearn.linear_model",
        "sklearn.cluster",
        "sklearn.metrics",
        "sklearn.pipeline",
    ),
    *("sklearn.feature_extraction.text", "sklearn.preprocessing", "pyarrow.parquet", "pyarrow.csv", "pandas"),
    *("onnxruntime", "onnxscript", "onnx", "openvino", "torch.onnx", "torch.export", "bm25s", "evaluate"),
)
"""What commands import when they need it; here it is imported once."""


REFUSED = {2, 3, 4, 5, 6}
"""Exit codes of what a user can cause."""


def find_crash(command: str, code: int, err: str) -> str | None:
    """Say what is wrong with how a command ended and what it printed to stderr; None if it is 0 or one line."""
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    if "Traceback" in err or code == 1:
        return f"a traceback, or exit code 1: {err.strip()[-1500:]}"
    if command.startswith(("check ", "doctor ")) and not errors:  # which print what they find
        return None
    if code == 0:
        return f"exit code 0 with an error: {errors[0]}" if errors else None
    if code not in REFUSED or len(errors) != 1:
        return f"exit code {code} with {len(errors)} lines of error: {err.strip()[-1500:]}"
    return None


class Yard:
    """A folder with all that the commands make, and a place to run them in.

    Args:
        folder: a temporary one, or one that has been a yard before.
    """

    def __init__(self, folder: Path) -> None:
        modules = [module.name for module in pkgutil.walk_packages(bertkit.__path__, "bertkit.")]
        (folder / "cache").mkdir(exist_ok=True)
        self.zygote = Zygote(folder / "cache", preload=build(folder), modules=[*modules, *LIBRARIES])
        self.store, self.trial = folder / "store", folder / "trial"
        self.out, self.err, self.log = folder / "out", folder / "err", folder / "operations.log"
        self.store.mkdir(exist_ok=True)
        for name, count, seed in (("rows", 40, 3), ("more", 3, 9), ("data/train", 48, 1), ("data/validation", 24, 2)):
            write_csv(self.store / f"{name}.csv", toy_rows(count, seed))
        write_csv(
            self.store / "pairs.csv", [{"text": "a good film", "text_pair": row["text"]} for row in toy_rows(9, 4)]
        )
        write_jsonl(self.store / "queries.jsonl", [{"text": row["text"]} for row in toy_rows(5, 5)])
        write_jsonl(self.store / "judged.jsonl", [{"query": "a good film", "relevant": str(n)} for n in (3, 8)])
        self.inputs = {"rows.csv", "more.csv", "data", "pairs.csv", "queries.jsonl", "judged.jsonl"}

    def make(self) -> None:
        """Make everything once."""
        for name in MADE:
            command = MADE[name]
            if (self.store / name).exists():
                continue
            began = time.perf_counter()
            self.begin(command)
            code, _, err = self.run(command)
            if code:
                raise SystemExit(f"{command}: {err}")
            made = {path.name for path in self.trial.iterdir()} - self.needs(command) - {"cache", "tmp"}
            for path in made:
                (self.trial / path).rename(self.store / path)
            print(f"{name}: made in {time.perf_counter() - began:.1f} s", file=sys.stderr)
        for name, source in COPIES.items():
            shutil.copytree(self.store / source, self.store / name, dirs_exist_ok=True)

    def needs(self, command: str) -> set[str]:
        """Return what a command reads or changes: every name in it that is in the store, but not what it makes."""
        words = set(re.split(r"[\s=']", command))
        made = {name for name, making in MADE.items() if making == command}
        made |= set(re.findall(r"(?:-o|--save|--sample|--report|--svg|--fix) (\S+)", command))
        return self.inputs | ({path.name for path in self.store.iterdir()} & words - made)

    def begin(self, command: str, *more: str) -> None:
        """Empty the place and put there what a command needs."""
        shutil.rmtree(self.trial, ignore_errors=True)
        for folder in ("cache", "tmp"):
            (self.trial / folder).mkdir(parents=True)
        for name in {*self.needs(command), *more}:
            source = self.store / name
            (shutil.copytree if source.is_dir() else shutil.copy2)(source, self.trial / name)

    def run(self, command: str, fault: dict[str, Any] | None = None) -> Ended:
        """Run a command, and return how it ended."""
        return self.run_copies(command, 1, {"seconds": LIMIT, **(fault or {})})[0]

    def run_copies(self, command: str, copies: int, fault: dict[str, Any]) -> list[Ended]:
        """Run a command so many times at once, and return how each ended."""
        environment = {"BERTKIT_CACHE": str(self.trial / "cache"), "TMPDIR": str(self.trial / "tmp")}
        environment["HF_HUB_OFFLINE"] = "1"
        printed = [(Path(f"{self.out}{number}"), Path(f"{self.err}{number}")) for number in range(copies)]
        for file in itertools.chain(*printed):
            file.write_text("")
        names = {"out": str(self.out), "err": str(self.err), "fault": fault, "environment": environment}
        codes = self.zygote.answer(self.trial, shlex.split(command), copies=copies, **names)
        return [Ended(code, out.read_text(), err.read_text()) for code, (out, err) in zip(codes, printed, strict=True)]

    @cache  # noqa: B019 - there is one yard
    def reference(self, command: str, *more: str) -> Reference:
        """Run a command whole, twice, and return what it leaves; what differs from the first time is not compared."""
        runs = []
        for _ in range(2):
            self.begin(command, *more)
            before = contents_of(self.trial)
            began = time.perf_counter()
            self.log.unlink(missing_ok=True)  # it is appended to
            code, out, err = self.run(command, self.at(0, COUNT))
            if code:
                raise RuntimeError(f"{command}: undisturbed, it ends with {code}: {err}")
            runs.append((contents_of(self.trial), without_times(out), time.perf_counter() - began))
        (first, said, _), (contents, out, seconds) = runs
        operations = self.log.read_text().splitlines()
        varying = {name for name, content in contents.items() if first.get(name) != content}
        made = {name: content for name, content in contents.items() if not name.startswith(("cache/", "tmp/"))}
        is_view = made == before and said == out
        return Reference(contents, varying, out if is_view else "", names_in(self.trial), seconds, operations)

    def at(self, operation: int, error: int) -> dict[str, Any]:
        """Return the fault that strikes at a file operation."""
        log = str(self.log) if error == COUNT else ""
        return {"operation": operation, "error": error, "folder": str(self.trial), "except": "", "log": log}

    def find_difference(self, expected: Reference, ignored: str = "", *, litter: bool = True) -> str | None:
        """Say what is not as after an undisturbed command; None if nothing is."""
        found = contents_of(self.trial)
        changed = [
            name
            for name, content in expected.contents.items()
            if not name.startswith("cache/") and name != ignored and name not in expected.varying
            if found.get(name) != content
        ]
        left = sorted(names_in(self.trial) - expected.names) if litter else []
        if changed:
            return f"differs: {changed[:4]}"
        return f"left behind: {left[:4]}" if left else None


class Ended(NamedTuple):
    """How a command ended, and what it printed to stdout and stderr."""

    code: int
    out: str
    err: str


class Reference(NamedTuple):
    """What an undisturbed command leaves and prints, and how long it takes."""

    contents: dict[str, Any]
    varying: set[str]
    out: str
    """Without times; empty where the command writes or changes a file, since it may then say that it was done."""
    names: set[str]
    seconds: float
    operations: list[str]


def contents_of(folder: Path) -> dict[str, Any]:
    """Return the files in a folder: JSON without what it says of the time, other files as they are; no locks."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and not file.name.endswith(".lock")]
    return {str(file.relative_to(folder)): content_of(file) for file in files}


def without_times(text: str) -> str:
    """Return a text without times, and without why so many threads compute."""
    text = re.sub(r"\((OMP_NUM_THREADS|as in another run)\)", "", text)
    return re.sub(r"\d+:\d\d:\d\d|[\d.,]+ (s|ms|min|MB|GB|times)\b|[\d.,]+ (rows|texts)/s", "*", text)


def content_of(file: Path) -> Any:
    """Return what is compared of a file: no times, and of a run's record what does not depend on how often it began."""
    data = file.read_bytes()
    try:
        if file.name == "run.json":
            record = json.loads(data)
            return [record.get(key) for key in ("status", "best_step", "steps", "recipe", "labels", "error")]
        if file.name == "trainer_state.json":  # the rest tells whether a signal has asked for this checkpoint
            return _untimed(json.loads(data).get("log_history"))
        if file.suffix == ".json":
            return _untimed(json.loads(data))
        if file.suffix == ".jsonl":
            return [_untimed(json.loads(line)) for line in data.split(b"\n") if line]
        if file.suffix in (".md", ".html"):
            return without_times(data.decode())
    except ValueError:
        pass
    return data


def _untimed(content: Any) -> Any:
    if isinstance(content, dict):
        times = re.compile("time|second|flos|started|finished|latency|size|sha256")
        return {key: _untimed(value) for key, value in content.items() if not times.search(key)}
    return list(map(_untimed, content)) if isinstance(content, list) else content
