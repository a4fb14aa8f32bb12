"""The progress that a terminal, a log file and the other processes of a launch see."""

from __future__ import annotations

import io
import sys

import pytest

from bertkit.cli import progress
from bertkit.cli.progress import TerminalProgress


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests set."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_line_every_ten_seconds_where_there_is_no_terminal(capsys, clock):
    shown = TerminalProgress()
    shown.start("training", 100)
    for second in range(1, 26):
        clock[0] = 100.0 + second
        shown.update(second, {"loss": 0.51234, "tokens/s": 17530.2})
    shown.finish()
    assert capsys.readouterr().err.splitlines() == [
        "training: 10/100  loss 0.5123  tokens/s 17,530  eta 1 min 30 s",
        "training: 20/100  loss 0.5123  tokens/s 17,530  eta 1 min 20 s",
    ]


def test_the_eta_counts_only_steps_of_this_process(capsys, clock):
    shown = TerminalProgress()
    shown.start("training", 100, done=90)
    clock[0] += 20
    shown.update(95, {})
    assert capsys.readouterr().err == "training: 95/100  eta 20.0 s\n"


def test_the_other_processes_of_a_launch_are_silent(capsys, clock, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    shown = TerminalProgress()
    shown.start("training", 10)
    clock[0] += 60
    shown.update(5, {})
    shown.finish()
    assert capsys.readouterr().err == ""


def test_a_terminal_has_one_bar_for_nested_stages(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    shown = TerminalProgress()
    shown.start("training", 10)
    shown.update(3, {"loss": 0.5})
    bar = shown.bar
    shown.start("evaluation", 4)
    shown.update(1, {})
    assert [(task.description, task.completed) for task in bar.tasks] == [("training", 3), ("evaluation", 1)]
    shown.finish()
    assert [task.description for task in bar.tasks] == ["training"]
    shown.finish()
    assert shown.bar is None
