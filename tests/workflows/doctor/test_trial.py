"""The trial of `--deep`: a real run that is killed, and what is said where it fails."""

from __future__ import annotations

import sys

import pytest

from bertkit.errors import BertkitError
from bertkit.workflows.doctor import Diagnosis, trial


def test_a_run_that_fails_or_ends_too_soon_is_a_fault(monkeypatch):
    monkeypatch.setattr(trial, "_command", lambda folder: [sys.executable, "-c", "raise SystemExit('no room')"])
    (finding,) = trial.try_resume()
    assert (finding.level, finding.text.startswith("a tiny run fails: no room - ")) == ("fail", True)
    assert type(Diagnosis("", [finding]).error) is BertkitError
    monkeypatch.setattr(trial, "_command", lambda folder: [sys.executable, "-c", ""])
    (finding,) = trial.try_resume()
    assert "it ended before it could be killed" in finding.text


def write_weights(folder, broken):
    """Return a command that writes a checkpoint, waits to be killed once, and then writes weights."""
    script = f"""
import pathlib, time
folder = pathlib.Path({str(folder)!r})
is_resumed = (folder / "checkpoint-1").is_dir()
(folder / "checkpoint-1").mkdir(parents=True, exist_ok=True)
from bertkit.storage.checkpoints import commit
commit(folder / "checkpoint-1", {{}})
if folder.name == "broken" and not is_resumed:
    time.sleep(60)
(folder / "model.safetensors").write_text({broken!r} if folder.name == "broken" else "weights")
"""
    return [sys.executable, "-c", script]


@pytest.mark.parametrize(("weights", "level"), [("weights", "good"), ("others", "fail")])
def test_weights_of_a_killed_run_are_compared_with_those_of_an_unbroken_one(monkeypatch, weights, level):
    monkeypatch.setattr(trial, "_command", lambda folder: write_weights(folder, weights))
    (finding,) = trial.try_resume()
    assert finding.level == level
    assert "killed after checkpoint-1" in finding.text


@pytest.mark.slow
def test_a_real_run_is_killed_and_resumed_to_the_same_weights():
    (finding,) = trial.try_resume()
    assert finding.level == "good", finding.text
