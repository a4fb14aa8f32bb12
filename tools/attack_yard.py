"""Folder with all files that bertkit's commands make, and a place to run them (see attack.py)."""

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
from tests.faults import _names as list_names
from tests.kills import Zygote
from tools.attack_commands import COPIES, MADE

LIMIT = 240
"""Seconds after which a command is killed; the slowest command takes twenty on an idle core."""
LIBRARIES = (
    *("scipy.stats", "scipy.optimize", "sklearn.linear_model", "sklearn.cluster", "sklearn.metrics"),
    *("sklearn.feature_extraction.text", "sklearn.preprocessing", "sklearn.pipeline", "pyarrow.parquet", "pyarrow.csv"),
    *("pandas", "onnxruntime", "onnxscript", "onnx", "openvino", "torch.onnx", "torch.export", "bm25s", "evaluate"),
)
"""Libraries that commands import on demand; they are imported once, and the commands are forks."""
REFUSED = {2, 3, 4, 5, 6}
"""Exit codes of errors that a user can cause."""


def find_crash(command: str, code: int, err: str) -> str | None:
    """Return the failure of a command, or None if it exits with code 0, or with one line and a code for users."""
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    if "Traceback" in err or code == 1:
        return f"a traceback, or exit code 1: {err.strip()[-1500:]}"
    if command.startswith(("check ", "doctor ")) and not errors:  # They print findings and exit with a code.
        return None
    if code == 0:
        return f"exit code 0 with an error: {errors[0]}" if errors else None
    if code not in REFUSED or len(errors) != 1:
        return f"exit code {code} with {len(errors)} lines of error: {err.strip()[-1500:]}"
    return None


class Yard:
    """Folder with the files of all commands, and a folder for trials.

    Args:
        folder: A temporary folder, or the folder of an earlier yard.
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
        pairs = [{"text": "a good film", "text_pair": row["text"]} for row in toy_rows(9, 4)]
        write_csv(self.store / "pairs.csv", pairs)
        write_jsonl(self.store / "queries.jsonl", [{"text": row["text"]} for row in toy_rows(5, 5)])
        write_jsonl(self.store / "judged.jsonl", [{"query": "a good film", "relevant": str(n)} for n in (3, 8)])
        self.inputs = {"rows.csv", "more.csv", "data", "pairs.csv", "queries.jsonl", "judged.jsonl"}

    def make(self) -> None:
        """Run the command of each missing name in `MADE`."""
        for name, command in MADE.items():
            if (self.store / name).exists():
                continue
            start = time.perf_counter()
            self.prepare(command)
            code, _, err = self.run(command)
            if code:
                raise SystemExit(f"{command}: {err}")
            made = {path.name for path in self.trial.iterdir()} - self.list_inputs(command) - {"cache", "tmp"}
            for path in made:
                (self.trial / path).rename(self.store / path)
            print(f"{name}: made in {time.perf_counter() - start:.1f} s", file=sys.stderr)
        for name, source in COPIES.items():
            shutil.copytree(self.store / source, self.store / name, dirs_exist_ok=True)

    def list_inputs(self, command: str) -> set[str]:
        """Return the names in the store that a command reads or changes, without its outputs."""
        words = set(re.split(r"[\s=']", command))
        made = {name for name, making in MADE.items() if making == command}
        made |= set(re.findall(r"(?:-o|--save|--sample|--report|--svg|--fix) (\S+)", command))
        return self.inputs | ({path.name for path in self.store.iterdir()} & words - made)

    def prepare(self, command: str, *more: str) -> None:
        """Empty the folder for trials, and copy the inputs of a command."""
        shutil.rmtree(self.trial, ignore_errors=True)
        for folder in ("cache", "tmp"):
            (self.trial / folder).mkdir(parents=True)
        for name in {*self.list_inputs(command), *more}:
            source = self.store / name
            (shutil.copytree if source.is_dir() else shutil.copy2)(source, self.trial / name)

    def run(self, command: str, fault: dict[str, Any] | None = None) -> End:
        """Run a command."""
        return self.run_copies(command, 1, {"seconds": LIMIT, **(fault or {})})[0]

    def run_copies(self, command: str, copies: int, fault: dict[str, Any]) -> list[End]:
        """Run several processes of a command in parallel."""
        environment = {"BERTKIT_CACHE": str(self.trial / "cache"), "TMPDIR": str(self.trial / "tmp")}
        environment["HF_HUB_OFFLINE"] = "1"
        printed = [(Path(f"{self.out}{index}"), Path(f"{self.err}{index}")) for index in range(copies)]
        for file in itertools.chain(*printed):
            file.write_text("")
        names = {"out": str(self.out), "err": str(self.err), "fault": fault, "environment": environment}
        codes = self.zygote.answer(self.trial, shlex.split(command), copies=copies, **names)
        return [End(code, out.read_text(), err.read_text()) for code, (out, err) in zip(codes, printed, strict=True)]

    @cache  # noqa: B019 - there is one yard
    def reference(self, command: str, *more: str) -> Reference:
        """Run a command twice without faults, and return its results; differences are not compared later."""
        runs = []
        for _ in range(2):
            self.prepare(command, *more)
            before = read_contents(self.trial)
            start = time.perf_counter()
            self.log.unlink(missing_ok=True)  # The log is appended to.
            code, out, err = self.run(command, self.at(0, COUNT))
            if code:
                raise RuntimeError(f"{command}: undisturbed, it exits with {code}: {err}")
            runs.append((read_contents(self.trial), remove_times(out), time.perf_counter() - start))
        (first, first_out, _), (contents, out, seconds) = runs
        operations = self.log.read_text().splitlines()
        varying = {name for name, content in contents.items() if first.get(name) != content}
        made = {name: content for name, content in contents.items() if not name.startswith(("cache/", "tmp/"))}
        is_view = made == before and first_out == out
        return Reference(contents, varying, out if is_view else "", list_names(self.trial), seconds, operations)

    def at(self, operation: int, error: int) -> dict[str, Any]:
        """Return a fault at a file operation."""
        log = str(self.log) if error == COUNT else ""
        return {"operation": operation, "error": error, "folder": str(self.trial), "except": "", "log": log}

    def find_difference(self, expected: Reference, ignored: str = "", *, litter: bool = True) -> str | None:
        """Return a difference to an undisturbed command, or None if the results are equal."""
        contents = read_contents(self.trial)
        changed = [
            name
            for name, content in expected.contents.items()
            if not name.startswith("cache/") and name != ignored and name not in expected.varying
            if contents.get(name) != content
        ]
        remaining = sorted(list_names(self.trial) - expected.names) if litter else []
        if changed:
            return f"differs: {changed[:4]}"
        return f"left behind: {remaining[:4]}" if remaining else None


class End(NamedTuple):
    """Exit code of a command, and its output."""

    code: int
    out: str
    err: str


class Reference(NamedTuple):
    """Files, output, seconds and file operations of an undisturbed command."""

    contents: dict[str, Any]
    varying: set[str]
    out: str
    """Output without times; empty if the command writes files, because a repetition may print that they exist."""
    names: set[str]
    seconds: float
    operations: list[str]


def read_contents(folder: Path) -> dict[str, Any]:
    """Return the files in a folder without locks; JSON has no times, and other files are bytes."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and not file.name.endswith(".lock")]
    return {str(file.relative_to(folder)): read_content(file) for file in files}


def remove_times(text: str) -> str:
    """Return a text without times, and without the reason for the number of threads."""
    text = re.sub(r"\((OMP_NUM_THREADS|as in another run)\)", "", text)
    return re.sub(r"\d+:\d\d:\d\d|[\d.,]+ (s|ms|min|MB|GB|times)\b|[\d.,]+ (rows|texts)/s", "*", text)


def read_content(file: Path) -> Any:
    """Return the part of a file that does not depend on time or on the number of starts of its run."""
    data = file.read_bytes()
    try:
        if file.name == "run.json":
            record = json.loads(data)
            return [record.get(key) for key in ("status", "best_step", "steps", "recipe", "labels", "error")]
        if file.name == "trainer_state.json":  # Other keys depend on signals that request a checkpoint.
            return _remove_unstable(json.loads(data).get("log_history"))
        if file.suffix == ".json":
            return _remove_unstable(json.loads(data))
        if file.suffix == ".jsonl":
            return [_remove_unstable(json.loads(line)) for line in data.split(b"\n") if line]
        if file.suffix in (".md", ".html"):
            return remove_times(data.decode())
    except ValueError:
        pass
    return data


def _remove_unstable(content: Any) -> Any:
    if isinstance(content, dict):
        times = re.compile("time|second|flos|started|finished|latency|size|sha256")
        return {key: _remove_unstable(value) for key, value in content.items() if not times.search(key)}
    return list(map(_remove_unstable, content)) if isinstance(content, list) else content
