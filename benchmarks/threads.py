"""A fine-tuning on a machine that it has for itself, and on one that it shares: as chosen, on one thread, and before.

    python -m benchmarks.threads --before FOLDER --data DIR --models minilm=DIR:640 bert-base=DIR:64 [--loads ...]

`--before` is a folder with an older bertkit. A number after a model is that of rows of CoLA, trained for one epoch. A
plain Trainer runs beside, with torch's number of threads. Each case is a whole command, one line of the output file;
one that is there already is not repeated. A quota needs control groups (version 1) that this user may make.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path

from benchmarks.cases import Case, make_case
from benchmarks.harness import RESULTS, ROOT, Report, measure_once, read_options, run_program, table
from benchmarks.load import machine

_GROUPS = Path("/sys/fs/cgroup/cpu")
_PERIOD = 100_000  # microseconds
_SIDES = {"trainer": "Trainer", "before": "before", "one": "one thread", "now": "as chosen"}
PEER = "hf-dynamic"
"""A Trainer with its defaults, whose batches are padded to their longest row."""


@contextmanager
def _two_loops() -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@contextmanager
def _one_core() -> Iterator[None]:
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(every)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, every)


@contextmanager
def _quota(cpus: float) -> Iterator[None]:
    """Let this process, and what it starts, have so many CPUs."""
    group = _GROUPS / f"benchmark-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text(str(_PERIOD))
        (group / "cpu.cfs_quota_us").write_text(str(int(cpus * _PERIOD)))
        (group / "cpu.shares").write_text("20480")  # the quota is measured, and not what else runs
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        (_GROUPS / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


@contextmanager
def _quiet() -> Iterator[None]:
    yield


LOADS: dict[str, tuple[str, Callable[[], object]]] = {
    "quiet": ("nothing else", _quiet),
    "loops": ("two busy loops", _two_loops),
    "core": ("one core (`taskset -c 0`)", _one_core),
    "quota1": ("a quota of 1 CPU", lambda: _quota(1.0)),
    "quota1.5": ("a quota of 1.5 CPUs", lambda: _quota(1.5)),
}


def measure(case: Case, load: str, side: str, before: Path) -> Report:
    """Fine-tune under a load, and return the seconds, and how many threads it took."""
    with tempfile.TemporaryDirectory() as folder, LOADS[load][1]():  # type: ignore[attr-defined]
        run, file = Path(folder, "run"), Path(folder, "case.json")
        if side == "trainer":
            file.write_text(case.as_json(), encoding="utf-8")
            ran = run_program("benchmarks.peers", PEER, file, run, threads=None, folder=Path(folder))
            chosen = len(os.sched_getaffinity(0))  # which torch takes, whatever the quota
        else:
            root = str(before if side == "before" else ROOT)
            command = ["bertkit", "finetune", case.recipe, *case.options(), "--output", run, "--json"]
            threads = 1 if side == "one" else None
            ran = run_program(*command, threads=threads, folder=Path(folder), PYTHONPATH=root)
            chosen = json.loads((run / "run.json").read_text(encoding="utf-8"))["machine"]["threads"]
    facts = machine(chosen)
    return {
        **{name: ran[name] for name in ("seconds", "cpu_seconds", "foreign")},
        **{name: facts[name] for name in ("threads", "cpu", "cores", "versions", "commit", "date")},
    }


def threads_part(lines: Sequence[Report]) -> str:
    """Build a table of seconds: a row for each model and load, a column for each side."""
    cases: dict[tuple[str, str], dict[str, Report]] = {}
    for line in lines:
        name = f"{line['model']}, {line['rows']} rows"
        cases.setdefault((name, line["load"]), {})[line["side"]] = line

    def show(sides: Mapping[str, Report], side: str) -> str:
        if side not in sides:
            return ""
        count = sides[side]["threads"]
        return f"{sides[side]['seconds']:.0f}" + ("" if side == "one" else f" ({count})")

    rows = [[model, LOADS[load][0], *(show(sides, side) for side in _SIDES)] for (model, load), sides in cases.items()]
    last = max(lines, key=lambda line: str(line["date"]))
    versions = ", ".join(f"{name} {number}" for name, number in last["versions"].items())
    where = f"{last['cpu']}, {last['cores']} cores; {versions}; measured on {last['date']}."
    return f"{table(['model', 'beside it', *_SIDES.values()], rows, 'llrrrr')}\n\n{where}"


def main() -> None:
    own = {"loads": LOADS, "sides": _SIDES, "output": RESULTS / "threads.jsonl"}
    asked = read_options(__doc__, "data", before=(Path, "folder of an older bertkit"), models=["minilm=DIR:640"], **own)
    lines = []
    for load, named, side in product(asked.loads, asked.models, asked.sides):
        name, _, model = named.partition("=")
        model, _, rows = model.partition(":")
        identity = {"model": name, "rows": rows, "load": load, "side": side}
        case = make_case("cola", model, asked.data, limit=int(rows), epochs=1)
        lines.append(measure_once(asked.output, identity, partial(measure, case, load, side, asked.before.resolve())))
    print(threads_part(lines))


if __name__ == "__main__":
    main()
