"""Attack bertkit as an outside tester would: kill its commands, damage its files, and feed it nonsense.

    python tools/attack.py kills --count 300 --seed 1 --output kills.json
    python tools/attack.py damage --count 500
    python tools/attack.py fuzz --count 20000

Every command that writes is killed at a random moment, or at a random file operation (faults.c), and repeated. Every
kind of file that a command reads back is damaged: what a finished command made, what it keeps in the cache, and what a
killed one left for the next. Each prints what was wrong, and how often each command was tried; exit code 1 where
anything was. All is done by tiny models in a temporary folder, on one core.
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

import typer

from bertkit.cli.main import app
from tests.workflows.test_killed_outputs import find_writing
from tools.attack_fuzz import REFUSED, Tally, find_crash, fuzz
from tools.attack_yard import CHANGED, MADE, TEXT, TRAIN, Yard, without_times

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

IN_PLACE = {"calibrate", "recipes copy", "runs rm", "runs trim", "search add", "search delete"}
STOPPED = {-2, -9, -15, 130, 143}


class Limits(NamedTuple):
    """How much is tried, and until when."""

    count: int
    deadline: float


def repeat(
    cases: Collection[tuple[str, ...]], limits: Limits, rng: random.Random
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield numbers and cases in rounds, each in another order; slow commands are in the second round only."""
    numbers = iter(range(limits.count))
    for round_number in itertools.count():
        for case in rng.sample(list(cases), len(cases)):
            if round_number != 1 and case[-1].startswith(SLOW):
                continue
            number = next(numbers, None)
            if number is None or time.monotonic() > limits.deadline:
                return
            yield number + round_number, case


def kill(yard: Yard, limits: Limits, rng: random.Random, tally: Tally) -> None:
    """Kill every command that writes, repeat it, and compare what it leaves with what an undisturbed one does."""
    commands = MADE | CHANGED
    writing = {*find_writing(typer.main.get_command(app)), *IN_PLACE}
    missing = {name for name in writing if not any(f"{one} ".startswith(f"{name} ") for one in commands.values())}
    missing -= {"pretrain recipe", "bench"}  # the first has the name of a recipe; the other takes minutes
    assert not missing, f"commands that write, but are not attacked: {missing}"
    for number, (name, command) in repeat(commands.items(), limits, rng):
        try:
            expected = yard.reference(command)
        except RuntimeError as error:
            tally.add(name, "", "not tried", str(error))
            continue
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
    for _, (state, name, command) in repeat(cases, limits, rng):
        try:
            files = prepare(yard, state, name, command, rng)
        except RuntimeError as error:
            tally.add(f"{state}: {command}", "", "not tried", str(error))
            continue
        if not files:
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
            is_view = command.startswith("runs ")  # which shows what is there, damage included
            if not wrong and state == "made" and not is_view and without_times(out) != expected.out:
                wrong = f"prints something else: {out[-300:]}"
        if code and state != "made" and "--fresh starts over" not in err and not wrong:
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
    if state == "cached":
        yard.begin(command)
        yard.run(command)
        for path in yard.trial.iterdir():
            if path.name not in yard.needs(command) | {"cache", "tmp"}:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    else:
        expected = yard.reference(command)
        yard.begin(command)
        yard.run(command, yard.at(rng.randint(expected.operations // 4, expected.operations)))
        if not yard.find_difference(expected):  # the kill came after the last file: nothing goes on
            return []
    finished = {
        record.parent for record in yard.trial.rglob("run.json") if '"status": "finished"' in record.read_text()
    }
    return [
        path
        for path in sorted(yard.trial.rglob("*"))
        if is_read(path) and path.relative_to(yard.trial).parts[0] not in yard.needs(command)
        if not finished.intersection(path.parents)  # which is read, and compared, only when it is used
    ]


def is_read(path: Path) -> bool:
    """Tell whether a path is a file that a command may read: no lock, and nothing that is for Git alone."""
    return path.is_file() and not path.is_symlink() and not path.name.endswith((".lock", ".gitignore"))


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
        yard = Yard(folder)
        yard.make(MADE if chosen.what != "fuzz" else ["run"])
        tally, limits = Tally(), Limits(chosen.count, time.monotonic() + 60 * chosen.minutes)
        try:
            if chosen.what == "fuzz":
                fuzz(yard, *limits, rng, tally)
            else:
                {"kills": kill, "damage": strike}[chosen.what](yard, limits, rng, tally)
            yard.zygote.close()
        finally:
            code = tally.write(chosen.what, chosen.output)
    sys.exit(code)


if __name__ == "__main__":
    main()
