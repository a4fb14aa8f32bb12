"""Several training runs in one folder: seeds, trials of a sweep, tasks of GLUE, encoders of an ablation.

runs/cola-seeds/
├── .lock                held by the command that starts or repeats the set
├── .choosing.lock       held while a process takes a run or writes the summary
├── .seed-1.lock ...     held by the process that trains this run
└── seed-1/ ...          ordinary run folders

The run folders hold the state: a finished run is kept, an unfinished run is resumed, and no process takes a run that
another process trains. Therefore any number of processes can share a set: the workers of `--jobs`, and commands with
`--worker`, also on other machines that see the folder.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar, NoReturn

from bertkit.errors import BertkitError, DivergedError, ResourceError, StoppedError, UsageError
from bertkit.hardware.device import DEVICE, find_device, requested_device
from bertkit.hardware.launch import check_not_launched
from bertkit.hardware.process import available_threads
from bertkit.progress import log, stage
from bertkit.storage import files, runs
from bertkit.storage.runs import RunRecord
from bertkit.training.stopping import handle_signals

Failures = dict[str, BertkitError]
"""Title of a run -> the error that ended it."""

Kinds = type[BertkitError] | tuple[type[BertkitError], ...]

_PAUSE = 0.1  # seconds between two checks of locks, records or workers
_ENTRY = "from bertkit.workflows.runset import work; work()"
_TITLE_MARK = "\x1e"  # a control character, with which no line of a log starts
_CHOOSING = ".choosing.lock"


@dataclass
class RunSet:
    """Set of the runs of one command. A subclass defines how a run is trained; workers receive a pickled copy of it.

    Args:
        folder: Folder of the set.
        names: Run folders in the folder of the set, in the order in which they are trained.
    """

    folder: Path
    names: list[str]
    earlier: list[str] = field(default_factory=list, init=False)
    """Runs that other processes trained when this process took its run."""

    contents: ClassVar[str]
    """Contents of the folder for an error message, such as "a sweep"."""
    keeps_going: ClassVar[bool] = False
    """Whether other runs continue after an error of a run. They always continue after a run that diverges."""
    retries_diverged: ClassVar[bool] = True
    """Whether a repeated command trains the runs that diverged again."""

    def is_begun(self) -> bool:
        """Return whether the folder holds such a set, finished or not."""
        raise NotImplementedError

    def train(self, name: str) -> None:
        """Train a run, or resume it."""
        raise NotImplementedError

    def title(self, name: str) -> str:
        """Return the name of a run for messages."""
        return name

    def record(self, name: str) -> RunRecord | None:
        """Read the record of a run, or return None if it has none."""
        return runs.read_record(self.folder / name)

    def has_ended(self, name: str) -> bool:
        """Return whether a run is finished or has diverged."""
        record = self.record(name)
        return record is not None and record["status"] in ("finished", "diverged")

    def unfinished(self) -> list[str]:
        """List the runs that have not ended."""
        return [name for name in self.names if not self.has_ended(name)]

    def find_machine(self, is_alike: Callable[[Mapping[str, Any]], bool] = bool) -> dict[str, Any] | None:
        """Return the machine of the first run with such a record, or None if this run is the first.

        All runs use the machine of the first run (device, precision, threads), so that only settings or seeds differ.
        The first run can choose its precision by a short trial, whose result can differ from process to process. So a
        run that starts at the same time as an earlier run waits for the record of that run. Runs are taken one after
        the other, so no two processes wait for each other.
        """
        while True:
            # The locks are read before the records, because an earlier run can end in between.
            training = set(self.taken_runs())
            machine = runs.find_machine(map(self.folder.joinpath, runs.list_runs(self.folder)), is_alike)
            waits_for = [run for run in self.earlier if run in training and "machine" not in (self.record(run) or {})]
            if machine is not None or not waits_for:
                return machine
            time.sleep(_PAUSE)

    def taken_runs(self) -> list[str]:
        """List the runs that a process trains."""
        locks = [lock for lock in self.folder.glob(".?*.lock") if lock.name != _CHOOSING and files.is_locked(lock)]
        return [lock.stem.removeprefix(".") for lock in locks]

    def run_lock(self, name: str) -> Path:
        """Return the lock file of a run. It is outside the run folder, which a run creates after reading its rows."""
        folder = self.folder / name
        return folder.with_name(f".{folder.name}.lock")

    def choosing(self) -> AbstractContextManager[None]:
        """Wait until no other process takes a run or writes the summary, and hold the lock for doing so."""
        return files.hold_lock(self.folder / _CHOOSING)

    # --- The folder ---

    def check(self, *, restart: bool = False, jobs: int = 1, worker: bool = False) -> None:
        """Check, without writing, that the folder can hold this set, and that no other command works on it.

        Raises:
            UsageError: If the folder holds a single run or something else, if there is no set to join, if the options
                exclude each other, or if a launcher started this process.
            ResourceError: If the folder cannot be written, is a file, or is locked by another command.
        """
        if jobs < 1:
            raise UsageError(f"--jobs {jobs}", "give the number of runs to train at the same time")
        check_not_launched("several runs under torchrun", "start the command once, or launch its runs one by one")
        if restart and worker:
            raise UsageError(
                "--restart and --worker are both given", "--restart starts over, --worker shares a set of runs"
            )
        runs.check_writable(self.folder, runs.SEVERAL)
        if (self.folder / runs.RECORD).is_file():
            raise UsageError("the folder holds a single run", "choose another --output", file=self.folder)
        is_begun = self.is_begun()
        # A command that was killed leaves locks and temporary files.
        entries = [] if is_begun or not self.folder.is_dir() else list(self.folder.iterdir())
        if not all(entry.name.endswith((".lock", ".held", ".tmp")) for entry in entries):
            message = f"the folder holds something that is not {self.contents}"
            raise UsageError(message, "choose another --output", file=self.folder)
        if worker and not is_begun:
            raise UsageError("there are no runs to join", "leave out --worker to start them", file=self.folder)
        if not worker and (holder := files.get_lock_holder(self.folder / runs.LOCK)):
            raise self._held(holder)

    @contextmanager
    def lock(self, *, restart: bool = False, worker: bool = False) -> Iterator[None]:
        """Create the folder and hold its lock; a command with `join` works next to the command that holds the lock.

        With `restart`, an earlier set in the folder is moved aside.

        Raises:
            BertkitError: If `check` raises it, or if another process still trains a run of the earlier set.
        """
        self.check(restart=restart, worker=worker)
        if worker:
            yield
            return
        if restart and self.is_begun():
            with ExitStack() as held:
                held.enter_context(self._lock())
                held.enter_context(self.choosing())
                if taken := self.taken_runs():
                    message = f"another process still trains {self.title(taken[0])}"
                    raise ResourceError(message, "wait until it has ended", file=self.folder)
                runs.move_aside(self.folder, held)
        with runs.folder_errors(self.folder, runs.SEVERAL):
            self.folder.mkdir(parents=True, exist_ok=True)
        with self._lock():
            yield

    def _lock(self) -> AbstractContextManager[None]:
        return files.hold_lock(self.folder / runs.LOCK, refuse=self._held)

    def _held(self, holder: str) -> ResourceError:
        remedy = "wait for it, choose another --output, or share seeds and trials with --worker"
        return ResourceError(f"{holder} is at work on this folder", remedy, file=self.folder)


# --- Training ---


def train_all(runset: RunSet, *, jobs: int = 1, worker: bool = False) -> Failures:
    """Train all runs of a set that have not ended, up to `jobs` of them at the same time.

    A command that joins returns when no run is left to take. Otherwise, the command waits for the runs of other
    processes, and takes over those that were interrupted.

    Returns:
        Errors of the runs that diverged in this command, or that failed if the set keeps going.

    Raises:
        StoppedError: If a signal stops the command. Each run has saved a checkpoint, and the same command resumes.
        BertkitError: If a run cannot continue and the set does not keep going. Other runs are stopped first.
    """
    # 1. Mark the runs that diverged in an earlier command as stopped, so that they are trained again. Runs that diverge
    #    in this command stay diverged, so that no other process of the command tries them too.
    for name in runset.names if runset.retries_diverged and not worker else ():
        record = runset.record(name)
        if record is not None and record["status"] == "diverged":
            runs.write_record(runset.folder / name, {**record, "status": "stopped"})

    # 2. Train in worker processes if there are several. Then train the remaining runs in this process: all runs without
    #    workers, otherwise the runs of other commands that were interrupted.
    at_once = _count_workers(jobs, len(runset.unfinished()))
    failures = _train_in_workers(runset, at_once) if at_once > 1 else {}
    tried = {name for name in runset.names if runset.title(name) in failures}
    return failures | _train_in_turn(runset, tried, waits=not worker)


@contextmanager
def continue_on_error(title: str, failures: Failures, kinds: Kinds = BertkitError, fatal: Kinds = ()) -> Iterator[None]:
    """Log an error of these `kinds`, and add it to the failures. A signal and `fatal` errors are raised."""
    try:
        yield
    except BertkitError as error:
        if isinstance(error, (StoppedError, fatal)) or not isinstance(error, kinds):
            raise
        log.warning(f"{title} {'diverged' if isinstance(error, DivergedError) else 'failed'}: {error}")
        failures.setdefault(title, error)


def first_failure(failures: Failures) -> BertkitError | None:
    """Return the error of the first run that failed, with the title of the run, or None if no run failed."""
    return next((error.with_prefix(title) for title, error in failures.items()), None)


def _count_workers(jobs: int, unfinished: int) -> int:
    """Return the number of runs to train at the same time: on a CPU, at most the number of threads."""
    at_once, threads = min(jobs, unfinished), available_threads().number
    if at_once > threads and find_device().is_cpu:
        log.info(f"runs at a time: {threads}, because no more threads can be used on this machine")
        return threads
    return at_once


def _train_in_turn(
    runset: RunSet, tried: set[str], *, waits: bool, announce: Callable[[str], object] | None = None
) -> Failures:
    """Train one run after the other until no run is left to take.

    Args:
        runset: Runs to train.
        tried: Runs to leave out; runs that this process trains are added.
        waits: Whether to wait for the runs of other processes.
        announce: Called with the title of each run before it is trained.
    """
    failures, is_waiting = Failures(), False
    kinds = BertkitError if runset.keeps_going else DivergedError
    while True:
        # 1. Take and train run after run; `held` has the lock of the current run.
        with ExitStack() as held:
            while (name := _take_run(runset, tried, held)) is not None:
                tried.add(name)
                if announce is not None:
                    announce(runset.title(name))
                with continue_on_error(runset.title(name), failures, kinds):
                    runset.train(name)
                held.close()
        # 2. Wait for the runs of other processes. If a process is killed, its lock is released, and the next round
        #    takes its run.
        taken = [runset.title(name) for name in runset.unfinished() if name not in tried]
        if not (waits and taken):
            return failures
        if not is_waiting:
            log.info(f"waiting for other processes: {', '.join(taken)}")
        is_waiting = True
        time.sleep(_PAUSE)


def _take_run(runset: RunSet, tried: set[str], held: ExitStack) -> str | None:
    """Take the first run that has not ended and that no other process has; its lock is added to `held`.

    The system releases the lock when the process ends, even if it is killed. So no run stays taken.
    """
    with runset.choosing():
        runset.earlier = runset.taken_runs()
        for name in runset.names:
            if name in tried:
                continue
            lock = runset.run_lock(name)
            lock.parent.mkdir(exist_ok=True)
            with ExitStack() as taken:
                try:
                    taken.enter_context(files.hold_lock(lock, refuse=ResourceError))
                except ResourceError:
                    continue
                # The record is read under the lock, because the run may have ended a moment ago.
                if not runset.has_ended(name):
                    held.push(taken.pop_all())
                    return name
    return None


# --- Workers ---


def _train_in_workers(runset: RunSet, at_once: int) -> Failures:
    """Start `at_once` processes that take and train runs until no run is left, and wait for them."""
    # A run is resumed with the threads that it started with, and all runs compute as the first one.
    machine = runs.find_machine(map(runset.folder.joinpath, runs.list_runs(runset.folder)))
    threads = machine["threads"] if machine else max(1, available_threads().number // at_once)
    log.info(f"{at_once} runs at a time; threads of each: {threads}")
    failures, failed, is_stopping = Failures(), None, False
    with stage("training"), handle_signals() as stop:
        running = [_Worker(runset, threads) for _ in range(at_once)]
        while running:
            time.sleep(_PAUSE)
            for worker in [worker for worker in running if worker.poll() is not None]:
                running.remove(worker)
                try:
                    failures |= worker.read_failures()
                except BertkitError as error:
                    # A stopped worker ends with an error, too.
                    failed = failed or (None if is_stopping else error)
            # Workers get one signal: a second signal would end the runs before they have saved.
            if (stop.signal or failed) and not is_stopping:
                is_stopping = True
                for worker in running:
                    worker.stop()
    if stop.signal:
        raise stop.error()
    if failed is not None:
        raise failed
    return failures


class _Worker(subprocess.Popen[bytes]):
    """Process that trains runs of a set. Its stderr is logged, and its stdin is closed when this process ends.

    It is a new interpreter rather than a process of `multiprocessing`, which would import the program that called
    bertkit: a program without an `if __name__ == "__main__"` would start itself again.
    """

    def __init__(self, runset: RunSet, threads: int) -> None:
        super().__init__(
            [sys.executable, "-c", _ENTRY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # OpenMP reads the number of threads when torch is loaded.
            env={**os.environ, "OMP_NUM_THREADS": str(threads), DEVICE: requested_device()},
            # So Ctrl-C reaches the worker only through this process; the flags have this effect on Windows.
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        assert self.stdin is not None
        with suppress(BrokenPipeError):  # It has ended already; `read_failures` raises the reason.
            self.stdin.write(pickle.dumps((runset, sys.argv)))
            self.stdin.flush()
        self.title, self.last_line = "worker", ""
        self.reader = threading.Thread(target=self._log_lines, args=[self.stderr], daemon=True)
        self.reader.start()

    def _log_lines(self, stream: IO[bytes]) -> None:
        for line in stream:
            text = line.decode(errors="replace").rstrip()
            if text.startswith(_TITLE_MARK):
                self.title = text.removeprefix(_TITLE_MARK)
            else:
                self.last_line = text
                log.info(f"{self.title}: {text}")

    def stop(self) -> None:
        """Make the worker save and stop, by closing its stdin; on Windows, `terminate` would kill it."""
        assert self.stdin is not None
        with suppress(OSError):  # It has ended already.
            self.stdin.close()
        self.stdin = None  # `communicate` would write to it.

    def read_failures(self) -> Failures:
        """Return the errors of single runs, or raise the error that ended the worker."""
        self.reader.join()
        content, _ = self.communicate()
        if self.returncode < 0:
            message = f"the process of {self.title} was ended by signal {-self.returncode}"
            raise ResourceError(message, "the same command resumes it; if memory is short, with fewer --jobs")
        try:
            outcome: Failures | BertkitError = pickle.loads(content)
        except (EOFError, pickle.UnpicklingError):
            raise BertkitError(f"{self.title} failed: {self.last_line}") from None
        if isinstance(outcome, BertkitError):
            raise outcome
        return outcome


def work() -> NoReturn:
    """Train runs of the set that is pickled on stdin, in a process that `_Worker` has started."""
    # Only the outcome goes to the pipe: lines that a library prints would damage it.
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    runset, sys.argv = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    log.handlers, log.propagate = [logging.StreamHandler(sys.stderr)], False
    log.setLevel(logging.INFO)
    try:
        with files.disk_errors(runset.folder):
            outcome: Failures | BertkitError = _train_in_turn(runset, set(), waits=False, announce=_announce)
    except BertkitError as error:
        outcome = error
    with pipe:
        pickle.dump(outcome, pipe)
    sys.exit(0)


def _announce(title: str) -> None:
    sys.stderr.write(f"{_TITLE_MARK}{title}\n")
    sys.stderr.flush()


def _stop_with_parent() -> None:
    """Send SIGTERM to this process when stdin is closed, so that its run saves and stops.

    The system closes stdin when the parent process ends, even if that was killed.
    """
    while os.read(0, 1):
        pass
    signal.raise_signal(signal.SIGTERM)  # On Windows, `os.kill` would end the process before the run has saved.
