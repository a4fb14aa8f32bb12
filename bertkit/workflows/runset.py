"""Several training runs in one folder: seeds, trials of a sweep, tasks of GLUE, encoders of an ablation.

runs/cola-seeds/
├── .lock                held by the command that starts or repeats the set
├── .choosing.lock       held while a process takes a run or writes the summary
├── .seed-1.lock ...     held by the process that trains this run
└── seed-1/ ...          ordinary run folders

The run folders store all state: a finished run is kept, an unfinished run is resumed, and no process takes a run that
another process is training. So any number of processes can share a set: the workers of `--jobs`, and commands with
`--worker`, also on other machines with access to the folder.
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
# A control character, with which no line of a log starts.
_TITLE_MARK = "\x1e"
_CHOICE_LOCK = ".choosing.lock"


@dataclass
class RunSet:
    """Set of the runs of one command. Subclasses define how a run is trained; workers receive a pickled copy of a set.

    Args:
        folder: Folder of the set.
        names: Run folders in the folder of the set, in the order in which they are trained.
    """

    folder: Path
    names: list[str]
    earlier_runs: list[str] = field(default_factory=list, init=False)
    """Runs that other processes were already training when this process took its run."""

    folder_kind: ClassVar[str]
    """Kind of folder, for error messages, such as "a sweep"."""
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

    def list_unfinished(self) -> list[str]:
        """List the runs that have not ended."""
        return [name for name in self.names if not self.has_ended(name)]

    def find_machine(self, is_alike: Callable[[Mapping[str, Any]], bool] = bool) -> dict[str, Any] | None:
        """Return the machine of the first run whose record satisfies `is_alike`, or None if no record does.

        All runs use the machine of the first run (device, precision, threads), so that only settings or seeds differ.
        The first run can choose its precision by timing a few steps, and the result can differ between processes. So
        this method waits for the records of runs that were taken earlier and have not chosen yet. Runs are taken one
        after the other, so no two processes wait for each other.
        """
        while True:
            # Read the locks before the records, because an earlier run can end in between.
            taken_runs = set(self.list_taken_runs())
            machine = runs.find_machine(map(self.folder.joinpath, runs.list_runs(self.folder)), is_alike)
            earlier_records = (self.record(run) or {} for run in self.earlier_runs if run in taken_runs)
            if machine is not None or all("machine" in record for record in earlier_records):
                return machine
            time.sleep(_PAUSE)

    def list_taken_runs(self) -> list[str]:
        """List the runs that any process is training."""
        locks = [lock for lock in self.folder.glob(".?*.lock") if lock.name != _CHOICE_LOCK and files.is_locked(lock)]
        return [lock.stem.removeprefix(".") for lock in locks]

    def run_lock(self, name: str) -> Path:
        """Return the lock file of a run. It is outside the run folder, which a run creates after reading its rows."""
        folder = self.folder / name
        return folder.with_name(f".{folder.name}.lock")

    def lock_choice(self) -> AbstractContextManager[None]:
        """Hold the lock under which a process takes a run or writes the summary; wait for other processes first."""
        return files.hold_lock(self.folder / _CHOICE_LOCK)

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
            raise UsageError("--restart and --worker are both given", "--restart starts over, --worker shares the runs")
        runs.check_writable(self.folder, runs.SEVERAL)
        if (self.folder / runs.RECORD).is_file():
            raise UsageError("the folder holds a single run", "choose another --output", file=self.folder)
        is_begun = self.is_begun()
        # A command that was killed leaves locks and temporary files.
        entries = [] if is_begun or not self.folder.is_dir() else list(self.folder.iterdir())
        if not all(entry.name.endswith((".lock", ".held", ".tmp")) for entry in entries):
            message = f"the folder has other files and is not {self.folder_kind}"
            raise UsageError(message, "choose another --output", file=self.folder)
        if worker and not is_begun:
            raise UsageError("there are no runs to join", "leave out --worker to start them", file=self.folder)
        if not worker and (holder := files.get_lock_holder(self.folder / runs.LOCK)):
            raise self._lock_error(holder)

    @contextmanager
    def lock(self, *, restart: bool = False, worker: bool = False) -> Iterator[None]:
        """Create the folder and hold its lock; with `worker`, another command holds the lock.

        With `restart`, an earlier set in the folder is moved aside.

        Raises:
            BertkitError: If `check` raises it, or if another process still trains a run of the earlier set.
        """
        self.check(restart=restart, worker=worker)
        if worker:
            yield
            return
        if restart and self.is_begun():
            with ExitStack() as locks:
                locks.enter_context(self._lock())
                locks.enter_context(self.lock_choice())
                if taken_runs := self.list_taken_runs():
                    message = f"another process still trains {self.title(taken_runs[0])}"
                    raise ResourceError(message, "wait until it has ended", file=self.folder)
                runs.move_aside(self.folder, locks)
        with runs.folder_errors(self.folder, runs.SEVERAL):
            self.folder.mkdir(parents=True, exist_ok=True)
        with self._lock():
            yield

    def _lock(self) -> AbstractContextManager[None]:
        return files.hold_lock(self.folder / runs.LOCK, make_error=self._lock_error)

    def _lock_error(self, holder: str) -> ResourceError:
        remedy = "wait until it ends, choose another --output, or share seeds and trials with --worker"
        return ResourceError(f"{holder} is using this folder", remedy, file=self.folder)


# --- Training ---


def train_all(runset: RunSet, *, jobs: int = 1, worker: bool = False) -> Failures:
    """Train all runs of a set that have not ended, up to `jobs` of them at the same time.

    A command with `worker` returns when no run is left to take. Otherwise, the command waits for the runs of other
    processes, and takes over interrupted runs.

    Returns:
        Errors of the runs that diverged in this command, or that failed if the set keeps going.

    Raises:
        StoppedError: If a signal stops the command. Each run has saved a checkpoint, and the same command resumes.
        BertkitError: If a run fails and the set does not keep going. Other runs are stopped first.
    """
    # 1. Mark the runs that diverged in an earlier command as stopped, so that they are trained again. Runs that diverge
    #    in this command stay marked as diverged, so that no other process of the command tries them too.
    for name in runset.names if runset.retries_diverged and not worker else ():
        record = runset.record(name)
        if record is not None and record["status"] == "diverged":
            runs.write_record(runset.folder / name, {**record, "status": "stopped"})

    # 2. Train in worker processes if there are several. Then train the remaining runs in this process: without workers,
    #    these are all runs; otherwise, the interrupted runs of other commands.
    num_workers = _count_workers(jobs, len(runset.list_unfinished()))
    failures = _train_in_workers(runset, num_workers) if num_workers > 1 else {}
    tried_runs = {name for name in runset.names if runset.title(name) in failures}
    return failures | _train_in_turn(runset, tried_runs, waits=not worker)


@contextmanager
def continue_on_error(title: str, failures: Failures, kinds: Kinds = BertkitError, fatal: Kinds = ()) -> Iterator[None]:
    """Log errors of these `kinds` and add them to the failures; raise `fatal` errors, and the error of a signal."""
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


def _count_workers(jobs: int, num_unfinished: int) -> int:
    """Return the number of runs to train at the same time: on a CPU, at most the number of threads."""
    num_workers, threads = min(jobs, num_unfinished), available_threads().number
    if num_workers > threads and find_device().is_cpu:
        log.info(f"runs at a time: {threads}, because this machine has no more threads to use")
        return threads
    return num_workers


def _train_in_turn(
    runset: RunSet, tried_runs: set[str], *, waits: bool, announce: Callable[[str], object] | None = None
) -> Failures:
    """Train one run after the other until no run is left to take.

    Args:
        runset: Runs to train.
        tried_runs: Runs to leave out; runs that this process trains are added.
        waits: Whether to wait for the runs of other processes.
        announce: Function to call with the title of each run before it is trained.
    """
    failures, is_waiting = Failures(), False
    kinds = BertkitError if runset.keeps_going else DivergedError
    while True:
        # 1. Take and train run after run; `locks` has the lock of the current run.
        with ExitStack() as locks:
            while (name := _take_run(runset, tried_runs, locks)) is not None:
                tried_runs.add(name)
                if announce is not None:
                    announce(runset.title(name))
                with continue_on_error(runset.title(name), failures, kinds):
                    runset.train(name)
                locks.close()
        # 2. Wait for the runs of other processes. If a process is killed, its lock is released, and the next round
        #    takes its run.
        other_runs = [runset.title(name) for name in runset.list_unfinished() if name not in tried_runs]
        if not (waits and other_runs):
            return failures
        if not is_waiting:
            log.info(f"waiting for other processes: {', '.join(other_runs)}")
        is_waiting = True
        time.sleep(_PAUSE)


def _take_run(runset: RunSet, tried_runs: set[str], locks: ExitStack) -> str | None:
    """Take the first run that has not ended and that no other process has taken; its lock is added to `locks`.

    The system releases the lock when the process ends, even if the process is killed. So no run stays taken.
    """
    with runset.lock_choice():
        runset.earlier_runs = runset.list_taken_runs()
        for name in runset.names:
            if name in tried_runs:
                continue
            lock_file = runset.run_lock(name)
            lock_file.parent.mkdir(exist_ok=True)
            with ExitStack() as run_lock:
                try:
                    run_lock.enter_context(files.hold_lock(lock_file, make_error=ResourceError))
                except ResourceError:
                    continue
                # Read the record under the lock, because the run may have ended a moment ago.
                if not runset.has_ended(name):
                    locks.push(run_lock.pop_all())
                    return name
    return None


# --- Workers ---


def _train_in_workers(runset: RunSet, num_workers: int) -> Failures:
    """Start processes that take and train runs until no run is left, and wait for them."""
    # All runs use the number of threads of the first run, also if they are resumed.
    machine = runs.find_machine(map(runset.folder.joinpath, runs.list_runs(runset.folder)))
    threads = machine["threads"] if machine else max(1, available_threads().number // num_workers)
    log.info(f"{num_workers} runs at a time; threads of each: {threads}")
    failures, fatal_error, is_stopping = Failures(), None, False
    with stage("training"), handle_signals() as stop:
        workers = [_Worker(runset, threads) for _ in range(num_workers)]
        while workers:
            time.sleep(_PAUSE)
            for worker in [worker for worker in workers if worker.poll() is not None]:
                workers.remove(worker)
                try:
                    failures |= worker.read_failures()
                except BertkitError as error:
                    # Workers that were stopped end with an error, too.
                    fatal_error = fatal_error or (None if is_stopping else error)
            # Stop workers only once: a second signal would end their runs before they have saved.
            if (stop.signal or fatal_error) and not is_stopping:
                is_stopping = True
                for worker in workers:
                    worker.stop()
    if stop.signal:
        raise stop.error()
    if fatal_error is not None:
        raise fatal_error
    return failures


class _Worker(subprocess.Popen[bytes]):
    """Process that trains runs of a set. Its stderr is logged, and its stdin is closed when this process ends.

    The process is a new interpreter, because a process of `multiprocessing` would import the program that called
    bertkit: a program without `if __name__ == "__main__"` would start itself again.
    """

    def __init__(self, runset: RunSet, threads: int) -> None:
        super().__init__(
            [sys.executable, "-c", _ENTRY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # OpenMP reads the number of threads when torch is loaded.
            env={**os.environ, "OMP_NUM_THREADS": str(threads), DEVICE: requested_device()},
            # Make Ctrl-C reach the worker only through this process; on Windows, the flags have this effect.
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        assert self.stdin is not None
        # If the worker has ended already, `read_failures` raises the reason.
        with suppress(BrokenPipeError):
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
        with suppress(OSError):  # The worker may have ended already.
            self.stdin.close()
        self.stdin = None  # so that `communicate` does not write to the closed pipe

    def read_failures(self) -> Failures:
        """Return the errors of single runs, or raise the error that ended the worker."""
        self.reader.join()
        content, _ = self.communicate()
        if self.returncode < 0:
            message = f"the process of {self.title} was ended by signal {-self.returncode}"
            raise ResourceError(message, "the same command resumes the run; use fewer --jobs if memory is short")
        try:
            outcome: Failures | BertkitError = pickle.loads(content)
        except (EOFError, pickle.UnpicklingError):
            raise BertkitError(f"{self.title} failed: {self.last_line}") from None
        if isinstance(outcome, BertkitError):
            raise outcome
        return outcome


def work() -> NoReturn:
    """Train runs of the set that is pickled on stdin, in a process that `_Worker` has started."""
    # Send only the outcome to the pipe, because lines that a library prints would damage it.
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

    The system closes stdin when the parent process ends, even if the parent was killed.
    """
    while os.read(0, 1):
        pass
    # On Windows, `os.kill` would end the process before the run has saved.
    signal.raise_signal(signal.SIGTERM)
