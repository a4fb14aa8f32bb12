"""Attack bertkit as a stranger would: kill its commands, damage its files, and feed it nonsense.

    PYTHONPATH=. python tools/attack.py kills --count 300 --seed 1 --output kills.json
    PYTHONPATH=. python tools/attack.py damage --count 500
    PYTHONPATH=. python tools/attack.py fuzz --count 20000

Every command that writes is killed at a random moment, or at a random file operation (faults.c), and repeated. Every
kind of file that a command reads back is damaged: what a finished command made, what it keeps in the cache, and what a
killed one left for the next. Each prints what was wrong, and how often each command was tried; exit code 1 where
anything was. All is done by tiny models in a temporary folder, on one core.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pkgutil
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

import typer

import bertkit
from bertkit.cli.main import app
from tests.conftest import toy_rows, write_csv, write_jsonl
from tests.faults import COUNT, KILL, _names, build
from tests.kills import Zygote
from tests.workflows.test_killed_outputs import find_writing
from tools.fuzz import REFUSED, Tally, find_crash, fuzz

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
    "explained.html": "explain run --text 'the good film' --integration-steps 16 -o explained.html",
    "attention.html": "attention show 'the good film' --model demo -o attention.html",
    "heads.html": "attention heads rows.csv --model demo -o heads.html",
    "importance.html": "attention importance run --data data --rows 4 -o importance.html",
    "probe.html": "probe classify --model demo --data data --limit 40 --seeds 1 --precision fp32 -o probe.html",
    "rank.html": "rank classify --models demo pretrained --data data --rows 40 -o rank.html",
    "table.csv": "runs table run distilled -o table.csv",
    "mine.yaml": "recipes copy cola mine.yaml",
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

READ = {
    "run": (
        "eval run --data data",
        "predict run rows.csv -o result.csv",
        "errors run",
        "compare run again",
        "explain run --mistakes 1 --integration-steps 8",
        "runs show run",
        "runs table run distilled",
        "calibrate run --data data",
        "embed rows.csv --model run --precision fp32 -o result.npy",
        f"finetune classify --model run --data data {TRAIN} -o result",
        f"distill classify --teacher run --student-layers 1 --data data {TRAIN} -o result",
        MADE["run"],
    ),
    "calibrated": ("predict calibrated rows.csv -o result.csv", "eval calibrated --data data"),
    "seeds": ("predict seeds rows.csv -o result.csv", "runs show seeds", MADE["seeds"]),
    "sweep": (MADE["sweep"], "runs list sweep"),
    "glue": (MADE["glue"],),
    "pretrained": (f"finetune classify --model pretrained --data data {TRAIN} -o result", "runs show pretrained"),
    "exported": ("predict exported rows.csv -o result.csv", "eval exported --data data", "package exported -o result"),
    "quantized": ("predict quantized rows.csv -o result.csv",),
    "packaged": ("python -m run_model --check 'the good film'",),
    "index": ("search query index --file queries.jsonl -k 3 --verify", "search add index more.csv"),
    "topics": ("cluster rows.csv --vectors vectors.npy --assign topics -o result.csv",),
    "tokenizer": (f"pretrain mlm --tokenizer tokenizer --size tiny {TEXT} -o result",),
    "scores": ("compare scores run",),
    "predicted.jsonl": ("search passages predicted.jsonl --model demo -o result.jsonl",),
    "predicted.parquet": ("dedup predicted.parquet -o result.csv",),
    "vectors.npy": ("cluster rows.csv --vectors vectors.npy --clusters 3 -o result.csv",),
    "vectors.parquet": ("dedup rows.csv --vectors vectors.parquet --threshold 0.9 -o result.csv",),
    "rows.csv": ("errors run --by label", "predict run rows.csv -o result.csv"),
}
"""What is damaged -> commands that read it."""
UNCHECKED = {
    "scores",
    "tokenizer",
    "predicted.jsonl",
    "predicted.parquet",
    "vectors.npy",
    "vectors.parquet",
    "rows.csv",
}
"""Files of the user, of which nobody has a checksum: they may be read as they are."""
KEEPS = ("run", "distilled", "pretrained", "probe.html", "rank.html", "heads.html", "map.html", "ablation")
RESUMES = ("run", "seeds", "sweep", "pretrained", "vectors.npy", "vectors.parquet", "index", "distilled", "glue")

SLOW = ("export ", "quantize ", "package ", "python ")
"""Commands that are tried a few times only: each exports a model."""

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

IN_PLACE = {"calibrate", "recipes copy", "runs rm", "runs trim", "search add", "search delete"}
STOPPED = {-2, -9, -15, 130, 143}


class Yard:
    """A folder with all that the commands make, and a place to run them in.

    Args:
        folder: a temporary one.
        zygote: forks a child per command.
    """

    def __init__(self, folder: Path, zygote: Zygote) -> None:
        self.store, self.trial, self.zygote = folder / "store", folder / "trial", zygote
        self.out, self.log = folder / "out", folder / "operations.log"
        self.varying: set[str] = set()
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
        made = set(re.findall(r"(?:-o|--save|--sample|--report|--picture|--fix) (\S+)", command))
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
        code, out, err = self.run(command, None if is_package else self.at(0, COUNT))
        if code:
            raise RuntimeError(f"{command}: undisturbed, it ends with {code}: {err}")
        seconds = time.perf_counter() - began
        operations = 0 if is_package else len(self.log.read_text().splitlines())
        contents = self.contents()
        made = [name for name in contents if command in MADE.values() and (self.store / name).is_file()]
        varying = {name for name in made if contents[name] != _content(self.store / name)}
        self.varying |= varying
        return Reference(contents, varying, _without_times(out), _names(self.trial), seconds, operations)

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
        litter = sorted(_names(self.trial) - expected.names)
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
    return {str(file.relative_to(folder)): _content(file) for file in files}


def _without_times(text: str) -> str:
    return re.sub(r"[\d.,]+ (s|ms|min|MB|GB|times)\b|[\d.,]+ (rows|texts)/s", "*", text)


def _content(file: Path) -> Any:
    """Return what is compared of a file: no times, and of a run's record what does not depend on how often it began."""
    data = file.read_bytes()
    try:
        if file.name == "run.json":
            record = json.loads(data)
            return [record.get(key) for key in ("status", "best_step", "steps", "recipe", "labels", "error")]
        if file.suffix == ".json":
            return _untimed(json.loads(data))
        if file.suffix == ".jsonl":
            return [_untimed(json.loads(line)) for line in data.split(b"\n") if line]
        if file.suffix in (".md", ".html"):
            return _without_times(data.decode())
    except ValueError:
        pass
    return data


def _untimed(content: Any) -> Any:
    if isinstance(content, dict):
        times = re.compile("time|second|flos|started|finished|latency|size|sha256")
        return {key: _untimed(value) for key, value in content.items() if not times.search(key)}
    return list(map(_untimed, content)) if isinstance(content, list) else content


def kill(yard: Yard, limits: Limits, rng: random.Random, tally: Tally) -> None:
    """Kill every command that writes, repeat it, and compare what it leaves with what an undisturbed one does."""
    commands = MADE | CHANGED
    writing = {*find_writing(typer.main.get_command(app)), *IN_PLACE}
    missing = {name for name in writing if not any(f"{one} ".startswith(f"{name} ") for one in commands.values())}
    missing -= {"pretrain recipe", "bench"}  # the first has the name of a recipe; the other takes minutes
    assert not missing, f"commands that write, but are not attacked: {missing}"
    for number, (name, command) in repeat(commands.items(), limits):
        expected = yard.reference(command)
        if number % 2:
            operation = rng.randint(1, expected.operations)
            fault, how = yard.at(operation), f"SIGKILL at operation {operation}"
        else:
            sent = rng.choice(["SIGKILL", "SIGKILL", "SIGTERM", "SIGINT"])
            fault = {"seconds": rng.uniform(0, expected.seconds), "signal": sent}
            how = f"{sent} after {fault['seconds']:.2f} s"
        yard.begin(command)
        code, _, err = yard.run(command, fault)
        is_killed = code in STOPPED
        wrong = "a traceback" if "Traceback" in err else None if is_killed else find_crash(code, err)
        code, _, err = yard.run(command)
        difference = yard.find_difference(expected)
        if code == 0 or (code in REFUSED and not difference):  # all was written before, and nothing is overwritten
            wrong = wrong or difference
        else:
            wrong = wrong or f"the same command ends with {code}: {err.strip()[-400:]}"
        tally.add(name, how, "killed" if is_killed else "ended before", wrong)


class Limits(NamedTuple):
    """How much is tried, and until when."""

    count: int
    deadline: float


def repeat(cases: Collection[tuple[str, ...]], limits: Limits) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield numbers and cases, over and over; those with a slow command, their last part, in the second round only."""
    numbers = iter(range(limits.count))
    for round_number in itertools.count():
        for case in cases:
            if round_number != 1 and case[-1].startswith(SLOW):
                continue
            number = next(numbers, None)
            if number is None or time.monotonic() > limits.deadline:
                return
            yield number + round_number, case


DAMAGES = ("flip", "half", "empty", "version", "other")


def damage(file: Path, kind: str, others: list[Path], rng: random.Random) -> None:
    """Damage a file: flip a bit, cut it in half, empty it, change its version, or put another's content there."""
    data = bytearray(file.read_bytes())
    if kind == "flip" and data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "half":
        data = data[: len(data) // 2]
    elif kind == "version":
        text = re.sub(rb'(version"?: *"?)(\d)', rb"\g<1>9\2", bytes(data), count=1)
        data = bytearray(text if text != data else bytes(byte ^ 0x41 for byte in data[:8]) + data[8:])
    elif kind == "other":
        alike = [other for other in others if other.suffix == file.suffix and other.read_bytes() != data]
        data = bytearray(rng.choice(alike or others).read_bytes())
    else:
        data = bytearray()
    file.unlink()  # it may be mapped, or linked
    file.write_bytes(data)


def strike(yard: Yard, limits: Limits, rng: random.Random, tally: Tally) -> None:
    """Damage what a command reads back, run the command, and check that it says so or answers as undisturbed."""
    cases = [("made", name, command) for name, all_of in READ.items() for command in all_of]
    cases += [("cached", name, MADE[name]) for name in KEEPS]
    cases += [("left by a kill", name, MADE[name]) for name in RESUMES]
    others = [path for path in yard.store.rglob("*") if path.is_file()]
    for _, (state, name, command) in repeat(cases, limits):
        try:
            files = prepare(yard, state, name, command, rng)
        except RuntimeError as error:
            tally.add(f"{state}: {command}", "", "not tried", str(error))
            continue
        if not files:
            tally.add(f"{state}: {command}", "", "nothing to damage")
            continue
        file, kind = rng.choice(files), rng.choice(DAMAGES)
        damage(file, kind, others, rng)
        damaged = file.read_bytes()
        relative = str(file.relative_to(yard.trial))
        code, out, err = yard.run(command)
        wrong = find_crash(code, err) if not command.startswith("python ") else find_package_crash(code, err)
        if not wrong and code == 0 and name not in UNCHECKED:
            expected = yard.reference(command, *([name] if state == "made" else []))
            wrong = yard.find_difference(expected, relative if state == "made" else "")
            if not wrong and state == "made" and _without_times(out) != expected.out:
                wrong = f"prints something else: {out[-300:]}"
        if code and state != "made" and not wrong:
            wrong = f"does not go on: {err.strip()[-300:]}"
        if code and state == "made" and (not file.exists() or file.read_bytes() != damaged) and not wrong:
            wrong = "the damaged file was changed by a command that refused it"
        outcome = "refused" if code else "as undisturbed"
        tally.add(f"{state}: {command}", f"{kind} {relative}", outcome, wrong)


def prepare(yard: Yard, state: str, name: str, command: str, rng: random.Random) -> list[Path]:
    """Put a command's files in place, and return those that may be damaged."""
    if state == "made":
        yard.reference(command, name)
        yard.begin(command, name)
        whole = yard.trial / name
        return [whole] if whole.is_file() else [path for path in sorted(whole.rglob("*")) if is_read(path)]
    yard.reference(command)
    if state == "cached":
        yard.begin(command)
        yard.run(command)
        for path in yard.trial.iterdir():
            if path.name not in yard.needs(command) | {"cache", "tmp"}:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    else:
        operations = yard.reference(command).operations
        yard.begin(command)
        yard.run(command, yard.at(rng.randint(operations // 4, operations)))
    return [
        path
        for path in sorted(yard.trial.rglob("*"))
        if is_read(path) and path.relative_to(yard.trial).parts[0] not in yard.needs(command)
    ]


def is_read(path: Path) -> bool:
    """Tell whether a path is a file that a command may read: no lock."""
    return path.is_file() and not path.is_symlink() and not path.name.endswith(".lock")


def find_package_crash(code: int, err: str) -> str | None:
    """Say what is wrong with how a packaged module ended; it has no exit codes of its own."""
    return f"a traceback: {err[-300:]}" if "Traceback" in err else None


def main() -> None:
    """Attack, print what was wrong, and exit with 1 if anything was."""
    parser = argparse.ArgumentParser(description="Attack bertkit.")
    parser.add_argument("what", choices=["kills", "damage", "fuzz"])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing after so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="write what was tried and what was wrong to this .json file")
    parser.add_argument("--folder", type=Path, help="keep here what is made, and take what is there")
    chosen = parser.parse_args()
    rng = random.Random(chosen.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = chosen.folder or Path(name)
        folder.mkdir(exist_ok=True)
        modules = [module.name for module in pkgutil.walk_packages(bertkit.__path__, "bertkit.")]
        zygote = Zygote(folder / "cache", preload=build(folder), modules=[*modules[1:], *LIBRARIES])
        yard = Yard(folder, zygote)
        yard.make(MADE if chosen.what != "fuzz" else ["run"])
        tally, limits = Tally(), Limits(chosen.count, time.monotonic() + 60 * chosen.minutes)
        if chosen.what == "fuzz":
            yard.begin("")
            fuzz(yard, chosen.count, rng, tally)
        else:
            {"kills": kill, "damage": strike}[chosen.what](yard, limits, rng, tally)
        zygote.close()
    sys.exit(tally.write(chosen.output))


if __name__ == "__main__":
    main()
