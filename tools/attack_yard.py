"""A place to run bertkit's commands in, with all that they make (see attack.py)."""

from __future__ import annotations

import json
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import bertkit
from tests.conftest import toy_rows, write_csv, write_jsonl
from tests.faults import COUNT, KILL, build
from tests.faults import _names as names_in
from tests.kills import Zygote

TRAIN = "--set training.steps=2 --set training.batch_size=8 --set training.precision=fp32"
TRAIN += " --set training.evaluate_every=1"
FEW = f"--model demo --data data {TRAIN}"
TEXT = "--data demo --limit 120 --steps 2 --batch-size 4 --max-length 32 --set training.precision=fp32"
SPACE = "--space training.learning_rate=1e-4,1e-3"
MADE = {
    "run": f"finetune classify {FEW} -o run",
    "again": f"finetune classify {FEW} --seed 7 -o again",
    "seeds": f"finetune classify {FEW} --seeds 2 -o seeds",
    "sweep": f"sweep classify {FEW} {SPACE} -o sweep",
    "glue": f"glue --model demo --data demo --tasks cola,rte --limit 24 {TRAIN} -o glue",
    "distilled": f"distill classify --teacher run --student-layers 1 --data data {TRAIN} -o distilled",
    "repeated": "rerun run -o repeated",
    "tokenizer": "pretrain tokenizer --data demo --vocabulary-size 300 --limit 200 -o tokenizer",
    "pretrained": f"pretrain mlm --model demo {TEXT} --set training.evaluate_every=1 -o pretrained",
    "ablation": "ablate mlm --space objective=mlm,clm --then 'cola data.limit=24 training.steps=2 data.source=demo' "
    "--data demo --tokenizer tokenizer --steps 2 --seeds 1 --set data.limit=120 --set training.max_length=32 "
    "--set training.batch_size=4 --set model_options.num_hidden_layers=1 --set model_options.hidden_size=32 "
    "--set model_options.num_attention_heads=2 --set model_options.intermediate_size=64 -o ablation",
    "pruned": "prune run --data data --layers 1 --rows 8 -o pruned",
    "exported": "export run --data data -o exported",
    "quantized": "quantize run --data data --rows 8 --margin 0.9 -o quantized",
    "packaged": "package run -o packaged",
    "scores": "eval run --data data -o scores",
    "predicted.jsonl": "predict run rows.csv -o predicted.jsonl",
    "predicted.parquet": "predict run rows.csv -o predicted.parquet",
    "vectors.npy": "embed rows.csv --model demo --precision fp32 -o vectors.npy",
    "vectors.parquet": "embed rows.csv --model demo --precision fp32 -o vectors.parquet",
    "index": "search build rows.csv --model demo --precision fp32 -o index",
    "topics": "cluster rows.csv --vectors vectors.npy --clusters 3 --save topics -o clustered.csv",
    "sample.csv": "dedup rows.csv --vectors vectors.npy --sample sample.csv --report report.csv",
    "kept.csv": "dedup rows.csv --vectors vectors.npy --threshold 0.95 -o kept.csv",
    "fixed": "check classify --data data --fix fixed",
    "map.html": "map rows.csv --model demo --precision fp32 --picture map.svg -o map.html",
    "found.jsonl": "search query index --file queries.jsonl -k 3 -o found.jsonl",
    "passages.jsonl": "search passages rows.csv --model demo -o passages.jsonl",
    "similar.csv": "similar pairs.csv --model demo -o similar.csv",
    "compared.html": "compare run again -o compared.html",
    "errors.html": "errors run -o errors.html",
    "tests.xml": "test run --limit 8 --report tests.xml",
    "explained.html": "explain run --text 'the good film' --integration-steps 16 -o explained.html",
    "attention.html": "attention show 'the good film' --model demo -o attention.html",
    "heads.html": "attention heads rows.csv --model demo -o heads.html",
    "importance.html": "attention importance run --data data --rows 4 -o importance.html",
    "probe.html": "probe classify --model demo --data data --limit 40 --seeds 1 --precision fp32 -o probe.html",
    "rank.html": "rank classify --models demo pretrained --data data --rows 40 -o rank.html",
    "table.csv": "runs table run distilled -o table.csv",
    "mine.yaml": "recipes copy cola mine.yaml",
    "guessed.yaml": "recipes guess rows.csv --output guessed.yaml",
}
"""What is made, in this order -> the command that makes it."""

COPIES = {"spare": "again", "calibrated": "run", "larger": "index", "smaller": "index"}
CHANGED = {
    "calibrated": "calibrate calibrated --data data",
    "spare": "runs trim spare",
    "spare gone": "runs rm spare --yes",
    "larger": "search add larger more.csv",
    "smaller": "search delete smaller --id 3 --id 8",
}
"""A copy of something made -> the command that changes it in place."""

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
    *("onnxruntime", "onnxscript", "onnx", "openvino", "torch.onnx", "torch.export", "faiss", "bm25s", "evaluate"),
)
"""What commands import when they need it; here it is imported once."""


REFUSED = {2, 3, 4, 5, 6}
"""Exit codes of what a user can cause."""


class Tally:
    """What was tried and what was wrong, by command."""

    def __init__(self) -> None:
        self.tried: dict[str, Counter[str]] = {}
        self.wrong: list[dict[str, str]] = []
        self.count = 0

    def add(self, name: str, how: str, outcome: str, fault: str | None = None) -> None:
        """Count a trial by how it ended, and keep what was wrong with it."""
        self.tried.setdefault(name, Counter())[outcome] += 1
        self.count += 1
        if self.count % 20 == 0:
            print(f"{self.count:,} tried, {len(self.wrong)} wrong", file=sys.stderr)
        if fault:
            self.wrong.append({"name": name, "how": how, "fault": fault})
            print(f"{name}, {how}: {fault}", flush=True)

    def write(self, attack: str, output: Path | None) -> int:
        """Print the sums, write all of it beside what a file has of other attacks, and return the exit code."""
        sums = dict(sum(self.tried.values(), Counter[str]()).most_common())
        print(f"{sum(sums.values()):,} tried, {len(self.wrong)} wrong: {sums}")
        if output:
            content = json.loads(output.read_text(encoding="utf-8")) if output.exists() else {}
            content[attack] = {"sums": sums, "tried": self.tried, "wrong": self.wrong}
            output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        return 1 if self.wrong else 0


def find_crash(code: int, err: str) -> str | None:
    """Say what is wrong with how a command ended and what it printed to stderr; None if it is 0 or one line."""
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    if "Traceback" in err or code == 1:
        return f"a traceback, or exit code 1: {err.strip()[-400:]}"
    if code == 0:
        return f"exit code 0 with an error: {errors[0]}" if errors else None
    if code not in REFUSED or len(errors) != 1:
        return f"exit code {code} with {len(errors)} lines of error: {err.strip()[-400:]}"
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
        self.out, self.log = folder / "out", folder / "operations.log"
        self.store.mkdir(exist_ok=True)
        for name, count, seed in (("rows", 40, 3), ("more", 3, 9), ("data/train", 48, 1), ("data/validation", 24, 2)):
            write_csv(self.store / f"{name}.csv", toy_rows(count, seed))
        write_csv(
            self.store / "pairs.csv", [{"text": "a good film", "text_pair": row["text"]} for row in toy_rows(9, 4)]
        )
        write_jsonl(self.store / "queries.jsonl", [{"text": row["text"]} for row in toy_rows(5, 5)])
        self.inputs = {"rows.csv", "more.csv", "data", "pairs.csv", "queries.jsonl"}

    def make(self, names: Collection[str]) -> None:
        """Make things once."""
        for name in names:
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
        for name, source in COPIES.items() if len(names) > 1 else ():
            shutil.copytree(self.store / source, self.store / name, dirs_exist_ok=True)

    def needs(self, command: str) -> set[str]:
        """Return what a command reads or changes: every name in it that is in the store, but not what it makes."""
        words = set(re.split(r"[\s=']", command))
        made = {name for name, making in MADE.items() if making == command}
        made |= set(re.findall(r"(?:-o|--save|--sample|--report|--picture|--fix) (\S+)", command))
        return self.inputs | ({path.name for path in self.store.iterdir()} & words - made)

    def begin(self, command: str, *more: str) -> None:
        """Empty the place and put there what a command needs."""
        shutil.rmtree(self.trial, ignore_errors=True)
        for folder in ("cache", "tmp"):
            (self.trial / folder).mkdir(parents=True)
        for name in {*self.needs(command), *more}:
            source = self.store / name
            (shutil.copytree if source.is_dir() else shutil.copy2)(source, self.trial / name)

    def run(self, command: str, fault: dict[str, Any] | None = None) -> tuple[int, str, str]:
        """Return how a command ended, and what it printed to stdout and stderr; it is killed after ten minutes."""
        out, err = self.out.with_suffix(".out"), self.out.with_suffix(".err")
        for file in (out, err):
            file.write_text("")
        if command.startswith("python "):
            return self.run_package(command)
        environment = {"BERTKIT_CACHE": str(self.trial / "cache"), "TMPDIR": str(self.trial / "tmp")}
        fault = fault or {"seconds": 600}
        (code,) = self.zygote.answer(
            self.trial, shlex.split(command), out=str(out), err=str(err), fault=fault, environment=environment
        )
        return code, out.read_text(), err.read_text()

    def run_package(self, command: str) -> tuple[int, str, str]:
        """Return how a packaged module ended in a process of its own, and what it printed."""
        environment = {**os.environ, "PYTHONPATH": str(self.trial / "packaged"), "PYTHONDONTWRITEBYTECODE": "1"}
        arguments = [sys.executable, *shlex.split(command)[1:]]
        ended = subprocess.run(arguments, cwd=self.trial, env=environment, capture_output=True, text=True, check=False)
        return ended.returncode, ended.stdout, ended.stderr

    def contents(self) -> dict[str, Any]:
        """Return the files of the place: JSON without what it says of the time, other files as they are."""
        return contents_of(self.trial)

    @cache  # noqa: B019 - there is one yard
    def reference(self, command: str, *more: str) -> Reference:
        """Run a command whole and return what it leaves; what differs from the first time is not compared."""
        self.begin(command, *more)
        began = time.perf_counter()
        is_package = command.startswith("python ")
        self.log.unlink(missing_ok=True)  # it is appended to
        code, out, err = self.run(command, None if is_package else self.at(0, COUNT))
        if code:
            raise RuntimeError(f"{command}: undisturbed, it ends with {code}: {err}")
        seconds = time.perf_counter() - began
        operations = 0 if is_package else len(self.log.read_text().splitlines())
        contents = self.contents()
        made = [name for name in contents if command in MADE.values() and (self.store / name).is_file()]
        varying = {name for name in made if contents[name] != content_of(self.store / name)}
        return Reference(contents, varying, without_times(out), names_in(self.trial), seconds, operations)

    def at(self, operation: int, error: int = KILL) -> dict[str, Any]:
        """Return the fault that strikes at a file operation."""
        log = str(self.log) if error == COUNT else ""
        return {"operation": operation, "error": error, "folder": str(self.trial), "except": "", "log": log}

    def find_difference(self, expected: Reference, ignored: str = "") -> str | None:
        """Say what is not as after an undisturbed command; None if nothing is."""
        found = self.contents()
        changed = [
            name
            for name, content in expected.contents.items()
            if not name.startswith("cache/") and name != ignored and name not in expected.varying
            if found.get(name) != content
        ]
        litter = sorted(names_in(self.trial) - expected.names)
        if changed:
            return f"differs: {changed[:4]}"
        return f"litter: {litter[:4]}" if litter else None


class Reference(NamedTuple):
    """What an undisturbed command leaves and prints, and how long it takes."""

    contents: dict[str, Any]
    varying: set[str]
    out: str
    names: set[str]
    seconds: float
    operations: int


def contents_of(folder: Path) -> dict[str, Any]:
    """Return the files in a folder: JSON without what it says of the time, other files as they are; no locks."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and not file.name.endswith(".lock")]
    return {str(file.relative_to(folder)): content_of(file) for file in files}


def without_times(text: str) -> str:
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
