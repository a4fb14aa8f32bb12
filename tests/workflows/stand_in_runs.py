"""Runs that end as their names say, without training; workers import this module."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from bertkit.errors import BertkitError, DataError, DivergedError
from bertkit.hardware.device import DEVICE
from bertkit.storage import runs
from bertkit.training.stopping import handle_signals
from bertkit.workflows.runset import RunSet, train_all


class StandIns(RunSet):
    """Runs such as "good-1", "diverged-2" or "slow-3"."""

    folder_kind = "a folder of stand-ins"

    def is_begun(self) -> bool:
        return bool(runs.list_runs(self.folder))

    def title(self, name: str) -> str:
        return name.replace("-", " ")

    def train(self, name: str) -> None:
        folder, kind = self.folder / name, name.partition("-")[0]
        note(folder, "began", f"{os.environ.get('OMP_NUM_THREADS')} {os.environ.get(DEVICE)} {os.getpid()}")
        sys.stdout.write("printed by a library\n")
        sys.stderr.write("trouble\n")
        machine = self.find_machine() or {"threads": 1, "first": name}
        record = {"status": "running", "machine": machine}
        folder.mkdir(exist_ok=True)
        runs.write_record(folder, record)
        if kind == "slow":
            with handle_signals() as stop:
                note(folder, "ready", "")
                wait_until(lambda: stop.signal or (self.folder / "go").exists())
                if stop.signal:
                    time.sleep(0.3)
                    note(folder, "saved", str(int(stop.signal)))
                    runs.write_record(folder, {**record, "status": "stopped"})
                    raise stop.error()
        if kind == "killed":
            os.kill(os.getpid(), 9)
        if kind == "crash":
            raise ValueError("a bug")
        if kind == "full":
            raise OSError(28, "No space left on device", str(folder))
        if kind == "error":
            raise DataError("no label", "fill it in", file="a.csv", row=3)
        if kind == "diverged":
            runs.write_record(folder, {**record, "status": "diverged", "error": "the loss is nan"})
            raise DivergedError("the loss is nan", "lower it")
        runs.write_record(folder, {**record, "status": "finished"})


class AlwaysGoing(StandIns):
    keeps_going = True


def note(folder: Path, name: str, text: str) -> None:
    """Append a line to a file next to a run folder."""
    with Path(f"{folder}.{name}").open("a") as stream:
        stream.write(f"{text}\n")


def wait_until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def main() -> None:
    """Train the runs of the command line: FOLDER JOBS NAMES [--worker]."""
    folder, jobs, names = sys.argv[1:4]
    runset, worker = StandIns(Path(folder), names.split(",")), "--worker" in sys.argv
    try:
        with runset.lock(worker=worker):
            train_all(runset, jobs=int(jobs), worker=worker)
    except BertkitError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
