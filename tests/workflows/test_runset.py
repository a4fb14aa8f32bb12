"""Sets of runs: which folders they use, which process trains which run, and what errors, signals and kills leave."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from bertkit.errors import BertkitError, DataError, DivergedError, ResourceError, StoppedError, UsageError
from bertkit.storage import files, runs
from bertkit.workflows import runset
from bertkit.workflows.runset import continue_on_error, first_failure, train_all
from tests.workflows.stand_in_runs import AlwaysGoing, StandIns, wait_until

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(runset, "_PAUSE", 0.01)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "4")


def stand_ins(folder: Path, *names: str) -> StandIns:
    (folder / "set").mkdir(exist_ok=True)
    return StandIns(folder / "set", list(names))


def statuses(folder: Path) -> dict[str, str]:
    return {name: runs.read_record(folder / "set" / name)["status"] for name in runs.list_runs(folder / "set")}


def began(folder: Path, name: str) -> int:
    file = folder / "set" / f"{name}.began"
    return len(file.read_text().splitlines()) if file.exists() else 0


# --- The folder ---


def test_a_folder_is_created_and_one_command_at_a_time_works_on_it(tmp_path):
    both = [StandIns(tmp_path / "a" / "set", ["good-1"]) for _ in range(2)]
    with both[0].lock():
        for call in (both[1].check, both[1].lock().__enter__):
            with pytest.raises(ResourceError, match=r"process \d+ on .* is using this folder .* with --worker"):
                call()
        with pytest.raises(UsageError, match="there are no runs to join"):
            both[1].check(worker=True)
        train_all(both[0])
        with both[1].lock(worker=True):
            pass
    with both[1].lock():
        pass


def test_other_folders_are_refused(tmp_path):
    job = stand_ins(tmp_path, "good-1")
    job.check()
    for leftover in (".lock", ".choosing.lock", ".good-1.lock", ".space.json.tmp", ".lock.held"):
        (job.folder / leftover).touch()
    (job.folder / ".lock.held").unlink()
    job.check()  # what a killed command leaves
    (job.folder / "thesis.txt").touch()
    with pytest.raises(UsageError, match="is not a folder of stand-ins"):
        job.check()
    with pytest.raises(ResourceError, match="there is a file where the folder of the runs should be"):
        StandIns(job.folder / "thesis.txt", []).check()
    train_all(job)
    job.check()  # a note of the user next to the runs
    (job.folder / runs.RECORD).touch()
    with pytest.raises(UsageError, match="holds a single run"):
        job.check()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ResourceError, match="the folder of the runs cannot be written"):
        StandIns(tmp_path / "set", []).check()


def test_fresh_moves_an_earlier_set_aside_unless_a_run_is_being_trained(tmp_path):
    job = stand_ins(tmp_path, "good-1", "good-10")
    train_all(job)
    with (
        files.hold_lock(job.run_lock("good-10")),
        pytest.raises(ResourceError, match="another process still trains good 10"),
    ):
        job.lock(restart=True).__enter__()
    with job.lock(restart=True):
        assert runs.list_runs(job.folder) == []
    assert len(runs.list_runs(tmp_path / "set.before")) == 2


def test_options_that_cannot_be_are_refused(tmp_path, monkeypatch):
    job = stand_ins(tmp_path, "good-1")
    with pytest.raises(UsageError, match="--restart and --worker are both given"):
        job.check(restart=True, worker=True)
    with pytest.raises(UsageError, match="--jobs 0"):
        job.check(jobs=0)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="under torchrun"):
        job.check()


# --- In turn ---


def test_finished_runs_are_kept_and_a_diverged_one_is_tried_once_per_command(tmp_path):
    job = stand_ins(tmp_path, "good-1", "diverged-2", "good-3")
    for count in (1, 2):
        failures = train_all(job)
        assert list(failures) == ["diverged 2"] and isinstance(failures["diverged 2"], DivergedError)
        assert [began(tmp_path, name) for name in job.names] == [1, count, 1]
    assert list(train_all(job, worker=True)) == []
    job.retries_diverged = False
    assert list(train_all(job)) == []
    assert began(tmp_path, "diverged-2") == 2


def test_an_error_ends_the_set_unless_it_keeps_going(tmp_path):
    job = stand_ins(tmp_path, "error-1", "good-2")
    with pytest.raises(DataError, match="no label"):
        train_all(job)
    assert began(tmp_path, "good-2") == 0
    failures = train_all(AlwaysGoing(job.folder, job.names))
    assert began(tmp_path, "good-2") == 1
    assert str(first_failure(failures)) == "error 1: no label (a.csv:3) - fill it in"
    assert first_failure({}) is None


def test_a_signal_and_fatal_errors_are_not_noted():
    failures = {}
    for error, kinds, fatal in [
        (StoppedError("stopped"), BertkitError, ()),
        (UsageError("no"), BertkitError, (UsageError,)),
        (DataError("no"), DivergedError, ()),
    ]:
        with pytest.raises(type(error)), continue_on_error("a", failures, kinds, fatal=fatal):
            raise error
    assert failures == {}


def test_all_runs_compute_as_the_first(tmp_path):
    job = stand_ins(tmp_path, "good-2", "good-10", "good-3")
    train_all(job)
    machines = [job.record(name)["machine"]["first"] for name in job.names]
    assert machines == ["good-2"] * 3
    assert job.find_machine(lambda record: record["status"] == "running") is None


def test_a_run_waits_for_the_machine_of_an_earlier_one_that_starts(tmp_path):
    # The order in which processes take runs counts, not the order of names.
    first, second = (stand_ins(tmp_path, "good-10", "good-9") for _ in range(2))
    with ExitStack() as held:
        assert runset._take_run(first, {"good-10"}, held) == "good-9"
        assert runset._take_run(second, set(), held) == "good-10"
        assert sorted(first.list_taken_runs()) == ["good-10", "good-9"]
        assert first.find_machine() is None  # it waits for none
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(runset.time, "sleep", lambda _: write_machine(first.folder / "good-9"))
            assert second.find_machine() == {"threads": 7}


def write_machine(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    runs.write_record(folder, {"status": "running", "machine": {"threads": 7}})


# --- Workers ---


def test_workers_share_the_runs_and_their_lines_have_the_title_of_the_run(tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("BERTKIT_DEVICE", "cpu")
    job = stand_ins(tmp_path, "good-1", "diverged-2", "good-3")
    with caplog.at_level(logging.INFO, logger="bertkit"):
        failures = train_all(job, jobs=2)
    assert list(failures) == ["diverged 2"] and str(failures["diverged 2"]) == "the loss is nan - lower it"
    assert statuses(tmp_path) == {"diverged-2": "diverged", "good-1": "finished", "good-3": "finished"}
    notes = [(job.folder / f"{name}.began").read_text().split() for name in job.names]
    assert [parts[:2] for parts in notes] == [["2", "cpu"]] * 3  # a half of the threads
    assert str(os.getpid()) not in {parts[2] for parts in notes}
    assert len({job.record(name)["machine"]["first"] for name in job.names}) == 1
    for name in ("good 1", "diverged 2", "good 3"):
        assert f"{name}: trouble" in caplog.text and f"{name}: printed by a library" in caplog.text
    assert began(tmp_path, "diverged-2") == 1
    train_all(job, jobs=3)
    assert [began(tmp_path, name) for name in job.names] == [1, 2, 1]  # one process is enough


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("killed-1", ResourceError, "the process of killed 1 was ended by signal 9 - the same command resumes the run"),
        ("error-1", DataError, "no label (a.csv:3) - fill it in"),
        ("crash-1", BertkitError, "crash 1 failed: ValueError: a bug"),
        ("full-1", ResourceError, "No space left on device"),
    ],
)
def test_an_error_of_a_worker_stops_the_others_which_save(tmp_path, name, error, message):
    job = stand_ins(tmp_path, name, "slow-2", "later-3")
    with pytest.raises(error) as raised:
        train_all(job, jobs=2)
    assert message in str(raised.value) and began(tmp_path, "later-3") == 0
    # The second worker may not have started its run yet.
    assert statuses(tmp_path).get("slow-2", "stopped") == "stopped"


@pytest.mark.parametrize(("jobs", "threads", "found"), [(1, 1, 1), (3, 2, 2), (2, 4, 2), (9, 4, 3)])
def test_no_more_runs_at_a_time_than_threads(monkeypatch, jobs, threads, found):
    import torch

    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert runset._count_workers(jobs, 3) == found


# --- Commands ---


def start(folder: Path, jobs: int, names: str, *options: str) -> subprocess.Popen:
    # A program of a user may have no `if __name__ == "__main__"`.
    program = folder / "program.py"
    # A test runner in the background ignores Ctrl-C, and its programs would too.
    restore = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    program.write_text(f"{restore}from tests.workflows.stand_in_runs import main\nmain()\n")
    command = [sys.executable, program, folder / "set", str(jobs), names, *options]
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for(folder: Path, *names: str) -> None:
    """Wait until slow runs train."""
    wait_until(lambda: all((folder / "set" / f"{name}.ready").exists() for name in names))


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_is_forwarded_once_and_the_same_command_resumes(tmp_path, jobs, name, code):
    process = start(tmp_path, jobs, "slow-1,slow-2,good-3")
    wait_for(tmp_path, *("slow-1", "slow-2")[:jobs])
    process.send_signal(getattr(signal, name))
    out, _ = process.communicate(timeout=60)
    assert process.returncode == code, out
    assert "the same command resumes" in out.splitlines()[-1]
    assert len((tmp_path / "set" / "slow-1.saved").read_text().splitlines()) == 1
    assert set(statuses(tmp_path).values()) == {"stopped"} and began(tmp_path, "good-3") == 0
    (tmp_path / "set" / "go").touch()
    process = start(tmp_path, jobs, "slow-1,slow-2,good-3")
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, set(statuses(tmp_path).values())) == (0, {"finished"}), out


def test_a_second_signal_ends_the_command_at_once_and_its_workers(tmp_path):
    process = start(tmp_path, 2, "slow-1,slow-2")
    wait_for(tmp_path, "slow-1", "slow-2")
    workers = [int((tmp_path / "set" / f"slow-{n}.began").read_text().split()[2]) for n in (1, 2)]
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode in (-signal.SIGINT, -signal.SIGTERM)
    for worker in workers:
        wait_until(lambda worker=worker: has_ended(worker))


def has_ended(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_after_a_kill_the_workers_save_and_the_same_command_waits_for_them(tmp_path):
    process = start(tmp_path, 2, "slow-1,slow-2,good-3")
    wait_for(tmp_path, "slow-1", "slow-2")
    process.kill()
    process.communicate()
    again = start(tmp_path, 2, "slow-1,slow-2,good-3")
    wait_until(lambda: all((tmp_path / "set" / f"slow-{n}.saved").exists() for n in (1, 2)))
    (tmp_path / "set" / "go").touch()
    out, _ = again.communicate(timeout=60)
    assert (again.returncode, set(statuses(tmp_path).values())) == (0, {"finished"}), out


def test_a_second_command_joins_and_what_it_leaves_is_taken_over(tmp_path):
    first = start(tmp_path, 1, "slow-1,slow-2,good-3")
    wait_for(tmp_path, "slow-1")
    second = start(tmp_path, 1, "slow-1,slow-2,good-3", "--worker")
    wait_for(tmp_path, "slow-2")
    third = start(tmp_path, 1, "slow-1,slow-2,good-3", "--worker")
    assert (third.wait(60), statuses(tmp_path)["good-3"]) == (0, "finished")  # and does not wait for the others
    refused = start(tmp_path, 1, "slow-1,slow-2,good-3")
    assert "share seeds and trials with --worker" in refused.communicate(timeout=60)[0] and refused.returncode == 6
    second.kill()
    second.communicate()
    (tmp_path / "set" / "go").touch()
    out, _ = first.communicate(timeout=60)
    assert (first.returncode, set(statuses(tmp_path).values())) == (0, {"finished"}), out
    assert [began(tmp_path, name) for name in ("slow-1", "slow-2", "good-3")] == [1, 2, 1]
    assert len({runs.read_record(tmp_path / "set" / name)["machine"]["first"] for name in statuses(tmp_path)}) == 1
    third.stdout.close()
