"""Seeds that train at the same time: how their processes end, and what a signal or a kill leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bertkit.errors import BertkitError, DataError, DivergedError, ResourceError
from bertkit.workflows import seed_jobs
from bertkit.workflows.seed_jobs import SeedJob, run_jobs
from tests.conftest import toy_rows, write_csv
from tests.kills import check_equal

# a process that ends as the folder of its job says, without the imports of a real one
STAND_IN = """
import json, os, pickle, sys, time, types
sys.modules["torch"] = None
module = sys.modules["bertkit.workflows.seed_jobs"] = types.ModuleType("seed_jobs")
module.SeedJob = type("SeedJob", (), {})
job = pickle.load(sys.stdin.buffer)
how = job.folder.name
open(job.folder.with_suffix(".began"), "w").close()
if how.startswith("slow"):
    time.sleep(60)
if how.startswith("killed"):
    os.kill(os.getpid(), 9)
if how == "crash":
    sys.exit("a bug")
if how.isdecimal():
    sys.stderr.write("trouble\\n")
    from bertkit.errors import DataError, DivergedError

    error = {3: DataError, 7: DivergedError}[int(how)]("of seed", "do", file="a.csv", row=3)
    sys.stdout.buffer.write(pickle.dumps(error))
    sys.exit(int(how))
"""


def jobs_in(folder: Path, *ends: str) -> list[SeedJob]:
    return [SeedJob(seed, None, folder / end, {"threads": 1}, []) for seed, end in enumerate(ends, start=1)]


@pytest.fixture
def stand_in(monkeypatch):
    monkeypatch.setattr(seed_jobs, "_ENTRY", STAND_IN)
    monkeypatch.setattr(seed_jobs, "_PAUSE", 0.01)


def test_a_seed_that_diverges_does_not_end_the_others(tmp_path, stand_in):
    found = run_jobs(jobs_in(tmp_path, "7", "good"), 1)
    assert list(found) == [1] and isinstance(found[1], DivergedError)
    assert str(found[1]) == "of seed (a.csv:3) - do"
    assert (tmp_path / "good.began").exists()


@pytest.mark.parametrize(
    ("end", "error", "message"),
    [
        pytest.param("3", DataError, "of seed (a.csv:3) - do", marks=pytest.mark.slow),
        ("killed", ResourceError, "the process of seed 1 was ended by signal 9"),
        pytest.param("crash", BertkitError, "seed 1 failed: a bug", marks=pytest.mark.slow),
    ],
)
def test_another_error_stops_the_others(tmp_path, stand_in, end, error, message):
    began = time.monotonic()
    with pytest.raises(error) as raised:
        run_jobs(jobs_in(tmp_path, end, "slow", "later"), 2)
    assert message in str(raised.value) and time.monotonic() - began < 50
    assert not (tmp_path / "later.began").exists()


ARGUMENTS = ["--batch-size", "16", "--epochs", "3", "--learning-rate", "1e-3", "--seeds", "3", "--output", "run"]
SETTINGS = ["training.evaluate_every=5", "training.log_every=2", "training.precision=fp32"]


def start(folder: Path, model: Path, *options: str, threads: int = 2) -> subprocess.Popen:
    command = ["finetune", "classify", "--model", str(model), "--data", str(folder.parent / "data"), *ARGUMENTS]
    command += [part for setting in SETTINGS for part in ("--set", setting)]
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen(
        [sys.executable, "-m", "bertkit", *command, *options],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_an_interrupted_command_goes_on_and_ends_as_one_run_at_a_time(tmp_path, tiny_model, name):
    (tmp_path / "data").mkdir()
    write_csv(tmp_path / "data" / "train.csv", toy_rows(960, seed=1))
    write_csv(tmp_path / "data" / "validation.csv", toy_rows(40, seed=2))
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    process = start(broken, tiny_model, "--jobs", "2")
    deadline = time.monotonic() + 300
    while not list(broken.glob("run/seed-*/checkpoint-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(getattr(signal, name))
    out, _ = process.communicate(timeout=300)
    assert process.returncode == {"SIGTERM": 143, "SIGKILL": -9}[name], out
    if name == "SIGTERM":
        assert "the same command resumes" in out.splitlines()[-1]
    for _ in range(20):  # killed with it, its children save and end by themselves
        process = start(broken, tiny_model, "--jobs", "2")
        out, _ = process.communicate(timeout=600)
        if "is writing this run" not in out:
            break
        time.sleep(1)
    assert process.returncode == 0, out
    assert json.loads((broken / "run" / "seeds.json").read_text())["best_seed"] in (1, 2, 3)
    process = start(whole, tiny_model, threads=1)  # as many as each of two runs on two threads has
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0, out
    for seed in (1, 2, 3):
        check_equal(broken / "run" / f"seed-{seed}", whole / "run" / f"seed-{seed}")
