"""Attack bertkit: interrupt its commands, damage its files, and send it invalid input.

    python tools/attack.py soak --minutes 120 --seed 1
    python tools/attack.py fuzz --minutes 40

`soak` runs every command (attack_commands.py) with a random fault: a signal, a disk that is full, fails or becomes
read-only (faults.c), a second process with the same command, or a damaged input file. The command must print one line
and exit with the matching code. The same command must then produce the files of an undisturbed command, and nothing
else. `fuzz` is in attack_fuzz.py.

Each failure is printed with the command that repeats it (`--trial N`), and the exit code is 1. The models are tiny.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.faults import FAULTS, KILL
from tools.attack_commands import KEEPS, MADE, READ, RESUMES, SHOWS, SLOW, UNCHECKED, list_commands
from tools.attack_fuzz import fuzz
from tools.attack_yard import LIMIT, Reference, Yard, find_crash, remove_times

STOPPED = {-1, -2, -9, -15, 129, 130, 143}
DISKS = {name: error for name, error in FAULTS.items() if error != KILL}
KINDS = ("kill", "kill", "signal", *DISKS, "twice", "damage", "damage", "damage")
DAMAGES = ("flip", "half", "empty", "version", "other")
NOT_READ = (".lock", ".gitignore", "metrics.jsonl", "baselines.json")
"""Endings of files that may be damaged: files for Git, a log that is appended to, and baselines (a warning)."""
PACKAGE_CODE = "run_model"
"""Folder of a package's code, which Python reads before bertkit."""


class Outcome(NamedTuple):
    """Kind of a trial, how it ended, the details, and the failure if there is one."""

    kind: str
    outcome: str
    how: str = ""
    failure: str | None = None


class Tally:
    """Number of trials per kind and outcome, and the failures; `judged` in the file is written by hand."""

    def __init__(self, attack: str, seed: int) -> None:
        self.attack, self.seed, self.start = attack, seed, time.monotonic()
        self.outcomes: dict[str, Counter[str]] = {}
        self.failures: list[dict[str, str]] = []
        self.names: set[str] = set()

    def add(self, index: int, name: str, outcome: Outcome) -> None:
        """Count a trial, and print its failure."""
        self.outcomes.setdefault(outcome.kind, Counter())[outcome.outcome] += 1
        self.names.add(name)
        if outcome.failure:
            failure = outcome.failure.replace(sys.prefix, "VENV")
            repeat = f"python tools/attack.py {self.attack} --seed {self.seed} --trial {index}"
            entry = {"repeat": repeat, "name": name, "kind": outcome.kind, "how": outcome.how}
            self.failures.append({**entry, "fault": failure, "judged": ""})
            print(f"{repeat}\n    {name}, {outcome.kind} {outcome.how}: {failure}", flush=True)

    def write(self, output: Path | None) -> int:
        """Print the counts, write them next to the results of other attacks, and return the exit code."""
        kinds = {kind: dict(counts.most_common()) for kind, counts in sorted(self.outcomes.items())}
        total = sum(counts.total() for counts in self.outcomes.values())
        if output:
            content = json.loads(output.read_text(encoding="utf-8")) if output.exists() else {}
            figures = {"seed": self.seed, "minutes": round((time.monotonic() - self.start) / 60), "tried": total}
            content[self.attack] = figures | {"names": len(self.names), "kinds": kinds, "wrong": self.failures}
            output.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{total:,} trials, {len(self.failures)} failures: {kinds}")
        return 1 if self.failures else 0


def list_trials(seed: int, only: list[int] | None) -> Iterator[tuple[int, str, str, random.Random]]:
    """Yield indices, commands, kinds of faults and random draws, each command once per round; or only some."""
    commands = list_commands()
    for index in only or itertools.count():
        round_index, position = divmod(index, len(commands))
        command = random.Random(f"{seed} {round_index}").sample(commands, len(commands))[position]
        rng = random.Random(f"{seed} {index}")
        if round_index % 10 != 1 and command.startswith(SLOW) and not only:
            continue
        yield index, command, rng.choice(KINDS), rng


def soak(yard: Yard, tally: Tally, deadline: float, only: list[int] | None) -> None:
    """Run commands with random faults."""
    for index, command, kind, rng in list_trials(tally.seed, only):
        if time.monotonic() > deadline:
            return
        try:
            outcome = run_trial(yard, command, kind, rng)
        except RuntimeError as error:
            outcome = Outcome("nothing", "failed", "", str(error))
        if outcome:
            tally.add(index, command, outcome)


def run_trial(yard: Yard, command: str, kind: str, rng: random.Random) -> Outcome | None:
    """Run a command with a fault of this kind, or of a kind that is possible; return None if no file can be damaged."""
    if kind == "damage" and (cases := list_damages(command)):
        return run_damaged(yard, command, *rng.choice(cases), rng)
    expected = yard.reference(command)
    if kind == "twice":
        return run_twice(yard, command, expected)
    kind = "kill" if kind == "damage" or (kind in DISKS and not expected.operations) else kind
    return run_interrupted(yard, command, kind, expected, rng)


def run_interrupted(yard: Yard, command: str, kind: str, expected: Reference, rng: random.Random) -> Outcome:
    """Interrupt a command, repeat it, and compare its files with an undisturbed command."""
    may_stay = False
    if kind == "signal" or not expected.operations or (kind == "kill" and rng.random() < 0.5):
        name = rng.choice(["SIGTERM", "SIGINT", "SIGHUP"]) if kind == "signal" else "SIGKILL"
        fault = {"seconds": rng.uniform(0, expected.seconds), "signal": name}
        how = f"{name} after {fault['seconds']:.2f} s"
    else:
        operation = rng.randint(1, len(expected.operations))
        name = expected.operations[operation - 1]
        fault, how = yard.at(operation, FAULTS[kind]), f"at operation {operation}, {name}"
        may_stay = kind in DISKS and name.startswith(("unlink", "rmdir"))  # The disk refuses to delete the file.
    yard.prepare(command)
    end = yard.run(command, fault)
    is_stopped = end.code in STOPPED if kind in ("kill", "signal") else end.code == 6
    failure = None if is_stopped and end.code < 0 else find_crash(command, end.code, end.err)
    if is_stopped and end.code > 6:  # A signal stops a command with one line.
        failure = "a traceback" if "Traceback" in end.err else None
    if kind in DISKS and end.code == 0:  # A lock may remain, which the next command deletes.
        failure = failure or yard.find_difference(expected, litter=False)
    repetition = yard.run(command)
    difference = yard.find_difference(expected, litter=not may_stay)
    is_complete = not find_crash(command, repetition.code, repetition.err) and not difference
    if repetition.code and not is_complete:
        failure = failure or f"the same command exits with {repetition.code}: {repetition.err.strip()[-400:]}"
    if expected.out and not command.startswith(SHOWS) and remove_times(repetition.out) != expected.out:
        difference = difference or f"prints another text: {repetition.out[-300:]}"
    return Outcome(kind, "broken off" if is_stopped else "ended", how, failure or difference)


def run_twice(yard: Yard, command: str, expected: Reference) -> Outcome:
    """Run two processes of a command: at least one must succeed, and the files must equal the files of one process."""
    yard.prepare(command)
    ends = yard.run_copies(command, 2, {"seconds": LIMIT})
    failures = [find_crash(command, end.code, end.err) for end in ends]
    codes = sorted(end.code for end in ends)
    if codes[0]:
        failures.append(f"both exit with {codes}: {ends[0].err.strip()[-200:]}")
    outcome = "one refused" if codes[1] else "both ended"
    return Outcome("twice", outcome, "", next(filter(None, failures), yard.find_difference(expected)))


def damage(file: Path, kind: str, files: list[Path], rng: random.Random) -> None:
    """Damage a file: flip a bit, truncate it, empty it, change its version, or write the content of another file."""
    data = bytearray(file.read_bytes())
    if kind == "flip" and data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "half":
        data = data[: len(data) // 2]
    elif kind == "version":
        text = re.sub(rb'(version"?: *"?)(\d)', rb"\g<1>9\2", bytes(data), count=1)
        data = bytearray(text if text != data else bytes(byte ^ 0x41 for byte in data[:8]) + data[8:])
    elif kind == "other":
        same_format = [path for path in files if path.suffix == file.suffix and path.read_bytes() != data]
        data = bytearray(rng.choice(same_format or files).read_bytes())
    else:
        data = bytearray()
    file.unlink()  # It may be mapped or linked.
    file.write_bytes(data)


def list_damages(command: str) -> list[tuple[str, str]]:
    """Return the states and names of files that can be damaged for a command."""
    cases = [("made", name) for name, commands in READ.items() if command in commands]
    names = [name for name, making in MADE.items() if making == command]
    cases += [("cached", name) for name in names if name in KEEPS]
    return cases + [("left by a kill", name) for name in names if name in RESUMES]


def run_damaged(yard: Yard, command: str, state: str, name: str, rng: random.Random) -> Outcome | None:
    """Damage a file that a command reads; it must reject the file or produce the undisturbed result."""
    paths = prepare_files(yard, state, name, command, rng)
    if not paths:
        return None
    files = [path for path in sorted(yard.store.rglob("*")) if path.is_file()]
    file, kind = rng.choice(paths), rng.choice(DAMAGES)
    damage(file, kind, files, rng)
    damaged, relative = file.read_bytes(), str(file.relative_to(yard.trial))
    code, out, err = yard.run(command)
    failure = find_crash(command, code, err)
    if not failure and code == 0 and name not in UNCHECKED:
        expected = yard.reference(command, *([name] if state == "made" else []))
        failure = yard.find_difference(expected, relative if state == "made" else "")
        # A command prints less, and a message, without its baselines or the rows of a damaged recipe.
        is_reported = f"{file.name} is not as its run wrote it" in err or "the training rows are not there" in out
        if not failure and state == "made" and not command.startswith(SHOWS) and expected.out and not is_reported:
            failure = None if remove_times(out) == expected.out else f"prints another text: {out[-300:]}"
    if code and state != "made" and "--restart" not in err and not failure:
        failure = f"does not resume: {err.strip()[-300:]}"
    if code and state == "made" and (not file.exists() or file.read_bytes() != damaged) and not failure:
        failure = "a command that rejected the damaged file changed it"
    return Outcome("damage", "refused" if code else "as undisturbed", f"{state}: {kind} {relative}", failure)


def prepare_files(yard: Yard, state: str, name: str, command: str, rng: random.Random) -> list[Path]:
    """Prepare the files of a command, and return those that can be damaged."""
    if state == "made":
        yard.reference(command, name)
        yard.prepare(command, name)
        made = yard.trial / name
        return [made] if made.is_file() else [path for path in sorted(made.rglob("*")) if is_read(path)]
    if state == "cached":
        yard.prepare(command)
        yard.run(command)
        for path in yard.trial.iterdir():
            if path.name not in yard.list_inputs(command) | {"cache", "tmp"}:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    else:
        expected = yard.reference(command)
        yard.prepare(command)
        yard.run(command, yard.at(rng.randint(len(expected.operations) // 4, len(expected.operations)), KILL))
        if not yard.find_difference(expected):  # The kill came after the last file.
            return []
    records = yard.trial.rglob("run.json")
    # Files of finished runs are checked only when they are used.
    finished = {record.parent for record in records if '"status": "finished"' in record.read_text()}
    return [
        path
        for path in sorted(yard.trial.rglob("*"))
        if is_read(path) and path.relative_to(yard.trial).parts[0] not in yard.list_inputs(command)
        if not finished.intersection(path.parents)
    ]


def is_read(path: Path) -> bool:
    """Return whether a path is a file that a command may read."""
    is_code = path.suffix == ".py" and PACKAGE_CODE in path.parts
    return path.is_file() and not path.is_symlink() and not path.name.endswith(NOT_READ) and not is_code


def main() -> None:
    """Attack, print the failures, and exit with code 1 if there are any."""
    parser = argparse.ArgumentParser(description="Attack bertkit.")
    parser.add_argument("attack", choices=["soak", "fuzz"])
    parser.add_argument("--minutes", type=float, default=120, help="minutes after which no trial starts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trial", type=int, nargs="+", help="repeat only these trials of the seed")
    parser.add_argument("--output", type=Path, help="write the counts and failures to this .json file")
    parser.add_argument("--folder", type=Path, help="keep the prepared files in this folder, and reuse them")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = options.folder or Path(name)
        folder.mkdir(exist_ok=True)
        yard = Yard(folder)
        yard.make()
        tally, deadline = Tally(options.attack, options.seed), time.monotonic() + 60 * options.minutes
        try:
            if options.attack == "soak":
                soak(yard, tally, deadline, options.trial)
            else:
                for trial in fuzz(yard, options.seed, deadline, options.trial):
                    tally.add(trial.index, trial.name, Outcome(*trial[2:]))
            yard.zygote.close()
        finally:
            code = tally.write(options.output)
    sys.exit(code)


if __name__ == "__main__":
    main()
