"""Attack bertkit as an outside tester would: break its commands off, damage its files, and feed it nonsense.

    python tools/attack.py soak --minutes 120 --seed 1
    python tools/attack.py fuzz --minutes 40

`soak` takes every command in turn (attack_commands.py) and lets something happen to it, at random: a signal to its
processes, a disk that is full, fails or becomes read-only (faults.c), the same command beside it, or a damaged file
among those that it reads. It must end in one line with its exit code, and the same command must then end as one that
nothing has happened to: same files, same bytes, and nothing else. `fuzz` is in attack_fuzz.py.

What is wrong is printed with the command that repeats it: `--trial N` does what the N-th trial of that seed did. Exit
code 1 says that anything was. All is done by tiny models in a temporary folder, on one core.
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
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.faults import FAULTS, KILL
from tools.attack_commands import KEEPS, MADE, READ, RESUMES, SHOWS, SLOW, UNCHECKED, list_commands
from tools.attack_fuzz import fuzz
from tools.attack_tally import Tally
from tools.attack_yard import LIMIT, Reference, Yard, find_crash, without_times

STOPPED = {-1, -2, -9, -15, 129, 130, 143}
DISKS = {name: error for name, error in FAULTS.items() if error != KILL}
KINDS = ("kill", "kill", "signal", *DISKS, "twice", "damage", "damage", "damage")
DAMAGES = ("flip", "half", "empty", "version", "other")
NOT_READ = (".lock", ".gitignore", "metrics.jsonl", "baselines.json")
"""Endings of files whose damage is allowed: files for Git, a log that is appended to, and baselines (a warning)."""
PACKAGE_CODE = "run_model"
"""The folder of a package's code, which Python reads before bertkit's."""


class Outcome(NamedTuple):
    """How a trial ended."""

    outcome: str
    how: str = ""
    fault: str | None = None


def numbered_trials(seed: int, only: list[int] | None) -> Iterator[tuple[int, str, str, random.Random]]:
    """Yield numbers, commands, kinds of faults and random draws, each command once per round; or only some."""
    commands = list_commands()
    for number in only or itertools.count():
        round_number, at = divmod(number, len(commands))
        command = random.Random(f"{seed} {round_number}").sample(commands, len(commands))[at]
        rng = random.Random(f"{seed} {number}")
        if round_number % 10 != 1 and command.startswith(SLOW) and not only:
            continue
        yield number, command, rng.choice(KINDS), rng


def soak(yard: Yard, tally: Tally, deadline: float, only: list[int] | None) -> None:
    """Let something happen to one command after the other."""
    for number, command, kind, rng in numbered_trials(tally.seed, only):
        if time.monotonic() > deadline:
            return
        try:
            happened = let_happen(yard, command, kind, rng)
        except RuntimeError as error:
            happened = "nothing", Outcome("failed", fault=str(error))
        if happened:
            tally.add(number, command, happened[0], *happened[1])


def let_happen(yard: Yard, command: str, kind: str, rng: random.Random) -> tuple[str, Outcome] | None:
    """Let something of this kind happen to a command, or what can; None where nothing can."""
    if kind == "damage" and (cases := damaged_by(command)):
        struck = strike_file(yard, command, *rng.choice(cases), rng)
        return struck and ("damage", struck)
    expected = yard.reference(command)
    if kind == "twice":
        return kind, run_twice(yard, command, expected)
    kind = "kill" if kind == "damage" or (kind in DISKS and not expected.operations) else kind
    return kind, break_off(yard, command, kind, expected, rng)


def break_off(yard: Yard, command: str, kind: str, expected: Reference, rng: random.Random) -> Outcome:
    """Break a command off, repeat it, and compare what it leaves with what an undisturbed one does."""
    may_stay = False
    if kind == "signal" or not expected.operations or (kind == "kill" and rng.random() < 0.5):
        sent = rng.choice(["SIGTERM", "SIGINT", "SIGHUP"]) if kind == "signal" else "SIGKILL"
        fault = {"seconds": rng.uniform(0, expected.seconds), "signal": sent}
        how = f"{sent} after {fault['seconds']:.2f} s"
    else:
        operation = rng.randint(1, len(expected.operations))
        name = expected.operations[operation - 1]
        fault, how = yard.at(operation, FAULTS[kind]), f"at operation {operation}, {name}"
        may_stay = kind in DISKS and name.startswith(("unlink", "rmdir"))  # what the disk refuses to delete
    yard.begin(command)
    ended = yard.run(command, fault)
    is_broken = ended.code in STOPPED if kind in ("kill", "signal") else ended.code == 6
    fault_of = None if is_broken and ended.code < 0 else find_crash(command, ended.code, ended.err)
    if is_broken and ended.code > 6:  # stopped by a signal, in one line
        fault_of = "a traceback" if "Traceback" in ended.err else None
    if kind in DISKS and ended.code == 0:  # a lock may be there still, which the next command deletes
        fault_of = fault_of or yard.find_difference(expected, litter=False)
    again = yard.run(command)
    difference = yard.find_difference(expected, litter=not may_stay)
    is_refused = not find_crash(command, again.code, again.err) and not difference  # all was there before
    if again.code and not is_refused:
        fault_of = fault_of or f"the same command ends with {again.code}: {again.err.strip()[-400:]}"
    if expected.out and not command.startswith(SHOWS) and without_times(again.out) != expected.out:
        difference = difference or f"prints something else: {again.out[-300:]}"
    return Outcome("broken off" if is_broken else "ended", how, fault_of or difference)


def run_twice(yard: Yard, command: str, expected: Reference) -> Outcome:
    """Run a command twice at once: one of them at least must end well, and both leave what one does."""
    yard.begin(command)
    both = yard.run_copies(command, 2, {"seconds": LIMIT})
    faults = [find_crash(command, ended.code, ended.err) for ended in both]
    codes = sorted(ended.code for ended in both)
    if codes[0]:
        faults.append(f"both end with {codes}: {both[0].err.strip()[-200:]}")
    return Outcome(
        "one refused" if codes[1] else "both ended", "", next(filter(None, faults), yard.find_difference(expected))
    )


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


def damaged_by(command: str) -> list[tuple[str, str]]:
    """Return what may be damaged for a command, and its name: what it reads, or what it goes on with."""
    cases = [("made", name) for name, commands in READ.items() if command in commands]
    names = [name for name, making in MADE.items() if making == command]
    cases += [("cached", name) for name in names if name in KEEPS]
    return cases + [("left by a kill", name) for name in names if name in RESUMES]


def strike_file(yard: Yard, command: str, state: str, name: str, rng: random.Random) -> Outcome | None:
    """Damage what a command reads back, run the command, and check that it says so or answers as undisturbed."""
    files = prepare(yard, state, name, command, rng)
    if not files:
        return None
    others = [path for path in sorted(yard.store.rglob("*")) if path.is_file()]
    file, kind = rng.choice(files), rng.choice(DAMAGES)
    damage(file, kind, others, rng)
    damaged, relative = file.read_bytes(), str(file.relative_to(yard.trial))
    code, out, err = yard.run(command)
    wrong = find_crash(command, code, err)
    if not wrong and code == 0 and name not in UNCHECKED:
        expected = yard.reference(command, *([name] if state == "made" else []))
        wrong = yard.find_difference(expected, relative if state == "made" else "")
        # without its baselines, or the rows that a damaged recipe names, a command says so and prints less
        is_said = f"{file.name} is not as its run wrote it" in err or "the training rows are not there" in out
        if not wrong and state == "made" and not command.startswith(SHOWS) and expected.out and not is_said:
            wrong = None if without_times(out) == expected.out else f"prints something else: {out[-300:]}"
    if code and state != "made" and "--fresh" not in err and not wrong:
        wrong = f"does not go on: {err.strip()[-300:]}"
    if code and state == "made" and (not file.exists() or file.read_bytes() != damaged) and not wrong:
        wrong = "the damaged file was changed by a command that refused it"
    return Outcome("refused" if code else "as undisturbed", f"{state}: {kind} {relative}", wrong)


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
        yard.run(command, yard.at(rng.randint(len(expected.operations) // 4, len(expected.operations)), KILL))
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
    """Tell whether a path is a file that a command may read: no lock, nothing that is for Git alone, and no code."""
    is_code = path.suffix == ".py" and PACKAGE_CODE in path.parts
    return path.is_file() and not path.is_symlink() and not path.name.endswith(NOT_READ) and not is_code


def main() -> None:
    """Attack, print what was wrong, and exit with 1 if anything was."""
    parser = argparse.ArgumentParser(description="Attack bertkit.")
    parser.add_argument("attack", choices=["soak", "fuzz"])
    parser.add_argument("--minutes", type=float, default=120, help="begin nothing after so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trial", type=int, nargs="+", help="repeat these trials of the seed alone")
    parser.add_argument("--output", type=Path, help="write what was tried and what was wrong to this .json file")
    parser.add_argument("--folder", type=Path, help="keep here what is made, and take what is there")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = chosen.folder or Path(name)
        folder.mkdir(exist_ok=True)
        yard = Yard(folder)
        yard.make()
        tally = Tally(chosen.attack, chosen.seed)
        try:
            attack = {"soak": soak, "fuzz": fuzz}[chosen.attack]
            attack(yard, tally, time.monotonic() + 60 * chosen.minutes, chosen.trial)
            yard.zygote.close()
        finally:
            code = tally.write(chosen.output)
    sys.exit(code)


if __name__ == "__main__":
    main()
