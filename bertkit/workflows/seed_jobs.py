"""Runs of several seeds at the same time, each in a process of its own that ends with the command that started it."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from bertkit.errors import BertkitError, DivergedError, ResourceError
from bertkit.hardware.device import DEVICE, asked_device
from bertkit.progress import get_progress, log, stage
from bertkit.recipe.records import Recipe
from bertkit.training.stopping import caught_signals
from bertkit.workflows.finetune import finetune_rows
from bertkit.workflows.finetune_data import read_finetune_data

_PAUSE = 0.1  # seconds between two looks at the processes
_ENTRY = "from bertkit.workflows.seed_jobs import work; work()"


@dataclass(frozen=True)
class SeedJob:
    """What a process needs to know to train one seed."""

    seed: int
    recipe: Recipe
    folder: Path
    machine: Mapping[str, Any]
    argv: Sequence[str]
    """The command line, which the record of the run names."""


def run_jobs(jobs: Sequence[SeedJob], at_once: int) -> dict[int, DivergedError]:
    """Train each seed in a process of its own, some of them at once, and return the errors of those that diverged.

    A signal is passed on: each run saves a checkpoint, and the same command resumes all of them.

    Raises:
        StoppedError: a signal asked for it.
        BertkitError: of a run that cannot go on; the others are stopped, and can be resumed.
    """
    waiting, running = list(jobs), list[_Process]()
    diverged: dict[int, DivergedError] = {}
    failed: BertkitError | None = None
    is_told = False
    with stage("training seeds", total=len(jobs)), caught_signals() as stop:
        while running or (waiting and not is_told):
            # A process that has ended frees its place at once: seeds may take different times.
            while waiting and len(running) < at_once and not is_told:
                running.append(_Process(waiting.pop(0)))
            time.sleep(_PAUSE)
            for process in [process for process in running if process.poll() is not None]:
                running.remove(process)
                error = process.error()
                # A seed that diverges is a result. Any other error stops the rest, once.
                if isinstance(error, DivergedError):
                    diverged[process.seed] = error
                elif error is not None and not is_told and not stop.signal:
                    failed = error
                get_progress().update(len(jobs) - len(waiting) - len(running), {})
            # Once only: a second signal would end the runs at once, before they have saved.
            if (stop.signal or failed) and not is_told:
                is_told = True
                for process in running:
                    process.send_signal(stop.signal or signal.SIGTERM)
    if stop.signal:
        raise stop.error()
    if failed is not None:
        raise failed
    return diverged


class _Process(subprocess.Popen[bytes]):
    """A process that trains a seed. What it writes to stderr is logged; its standard input ends with this process."""

    def __init__(self, job: SeedJob) -> None:
        super().__init__(
            [sys.executable, "-c", _ENTRY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": str(job.machine["threads"]), DEVICE: asked_device()},
            start_new_session=True,  # Ctrl-C reaches it once, from here
        )
        assert self.stdin is not None
        with suppress(BrokenPipeError):  # it has ended already; `error` tells why
            self.stdin.write(pickle.dumps(job))
            self.stdin.flush()
        self.seed, self.lines = job.seed, list[str]()
        self.reader = threading.Thread(target=self._log_lines, daemon=True)
        self.reader.start()

    def _log_lines(self) -> None:
        assert self.stderr is not None
        for line in self.stderr:
            self.lines.append(line.decode(errors="replace").rstrip())
            log.info(f"seed {self.seed}: {self.lines[-1]}")

    def error(self) -> BertkitError | None:
        """Return the error that it ended with, and close its streams; None where it has done its work."""
        self.reader.join()
        with suppress(BrokenPipeError), self:  # nobody may read its input any more
            assert self.stdout is not None
            text = self.stdout.read()
        if self.returncode == 0:
            return None
        if self.returncode < 0:
            what = f"the process of seed {self.seed} was ended by signal {-self.returncode}"
            return ResourceError(what, "the same command resumes it; if memory is short, with fewer --jobs")
        try:
            error: BertkitError = pickle.loads(text)
        except (EOFError, pickle.UnpicklingError):
            last = self.lines[-1] if self.lines else f"exit code {self.returncode}"
            return BertkitError(f"seed {self.seed} failed: {last}")
        return error


def work() -> NoReturn:
    """Train the seed that standard input names, in a process that `run_jobs` has started."""
    job: SeedJob = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.argv = list(job.argv)
    log.handlers, log.propagate = [logging.StreamHandler(sys.stderr)], False
    log.setLevel(logging.INFO)
    try:
        finetune_rows(read_finetune_data(job.recipe, job.folder).on(job.machine), fresh=False)
    except BertkitError as error:
        sys.stdout.buffer.write(pickle.dumps(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)


def _end_with_parent() -> None:
    """Ask this process to save and stop once standard input ends, as it does however the other process ends."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
