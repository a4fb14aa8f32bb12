"""The progress that a terminal, a log file and the other processes of a launch see."""

from __future__ import annotations

import io
import math
import re
import sys

import pytest
from rich.console import Console

from bertkit.cli import progress
from bertkit.cli.progress import TerminalProgress
from bertkit.progress import stage, use_progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests set."""
    now = [100.0]
    monkeypatch.setattr("bertkit.hardware.threads._WINDOW", math.inf)  # whatever else takes the cores of the tests
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


def test_a_name_cannot_speak_to_the_terminal(capsys):
    TerminalProgress().start("writing a\x1b[31m.csv", 0)
    assert capsys.readouterr().err == "writing a\\x1b[31m.csv ...\n"


def test_the_other_processes_of_a_launch_are_silent(capsys, clock, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    shown = TerminalProgress()
    shown.start("training", 10)
    clock[0] += 60
    shown.update(5, {})
    shown.finish()
    assert capsys.readouterr().err == ""


@pytest.fixture
def terminal(monkeypatch):
    """Make stderr a terminal of some columns."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def open_terminal(columns: int = 80) -> Terminal:
        monkeypatch.setattr(sys, "stderr", Terminal())
        for name, value in {"TERM": "xterm", "COLUMNS": str(columns), "LINES": "24", "CI": ""}.items():
            monkeypatch.setenv(name, value)
        return sys.stderr

    return open_terminal


def lines_of(bar) -> list[str]:
    """Return the lines that a bar shows."""
    console = Console(width=bar.console.width, color_system=None)
    with console.capture() as captured:
        console.print(bar.get_renderable())
    return [line.rstrip() for line in captured.get().splitlines()]


FIGURES = {"loss": 0.08606, "matthews_correlation": 0.9322, "rows/s": 1326.4, "tokens/s": 14210.5}


@pytest.mark.parametrize("columns", [40, 60, 80, 120, 200])
def test_count_and_time_left_stay_whatever_the_figures(terminal, columns):
    terminal(columns)
    shown = TerminalProgress()
    shown.start("training", 12000)
    shown.update(5900, FIGURES)
    (line,) = lines_of(shown.bar)
    shown.start("scoring validation", 50000)
    shown.update(10, {})
    both = lines_of(shown.bar)
    shown.finish()
    shown.finish()
    assert len(line) <= columns
    assert line.startswith("training ")
    assert "5,900/12,000" in line
    assert "eta " in line
    shown_figures = [f"{name} " in line for name in FIGURES]
    assert shown_figures == sorted(shown_figures, reverse=True)  # the first ones stay longest
    assert sum(shown_figures) == {40: 0, 60: 1, 80: 2, 120: 4, 200: 4}[columns]
    assert not line.endswith("…")
    for text, count in zip(both, ("5,900/12,000", "10/50,000"), strict=True):
        assert len(text) <= columns
        assert count in text


def test_work_of_unknown_length_is_announced(terminal, capsys):
    with use_progress(TerminalProgress()), stage("loading torch"):
        assert capsys.readouterr().err == "loading torch ...\n"
    with use_progress(TerminalProgress()), stage("reading the data", total=1):
        pass
    assert capsys.readouterr().err == ""
    terminal()
    shown = TerminalProgress()
    with use_progress(shown), stage("loading torch"):
        assert lines_of(shown.bar)[0].startswith("loading torch ")
        assert not re.search(r"\d|eta", lines_of(shown.bar)[0])
    assert shown.bar is None


def test_a_stage_that_fails_takes_its_bar_away(terminal):
    screen = terminal()
    shown = TerminalProgress()
    with pytest.raises(ValueError, match="x"), use_progress(shown), stage("work", 3):
        raise ValueError("x")
    assert shown.bar is None
    assert screen.getvalue().rindex("\x1b[?25h") > screen.getvalue().rindex("\x1b[?25l")  # the cursor is back


@pytest.mark.parametrize(("name", "value"), [("TERM", "dumb"), ("CI", "true")])
def test_a_dumb_terminal_and_one_that_a_runner_records_have_lines_without_escapes(
    terminal, monkeypatch, clock, name, value
):
    screen = terminal()
    monkeypatch.setenv(name, value)
    shown = TerminalProgress()
    with use_progress(shown), stage("training", 10):
        clock[0] += 20
        shown.update(5, FIGURES)
    assert screen.getvalue().startswith("training: 5/10  loss 0.08606")
    assert "\x1b" not in screen.getvalue()


def test_a_terminal_has_one_bar_for_nested_stages(terminal):
    terminal()
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
