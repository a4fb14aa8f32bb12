"""Standard streams that are closed, full, without a reader or too narrow for a character; in processes of their own."""

from __future__ import annotations

import io
import json
import math
import os
import re
import signal
import subprocess
import sys

import pytest
from rich.console import Console

from bertkit.cli import terminal as module
from bertkit.cli.terminal import TerminalProgress
from bertkit.progress import stage, use_progress
from bertkit.recipe import find_recipe
from tests.conftest import LEARN, toy_rows, write_csv
from tests.kills import TRAINING_STEP, slow_unless


def shell(folder, line: str, **environment) -> subprocess.CompletedProcess[str]:
    """Run a line of bash, in which `bertkit` is the command; its exit code is that of the first command of a pipe."""
    function = f'bertkit() {{ "{sys.executable}" -m bertkit "$@"; }}; '
    return subprocess.run(
        ["bash", "-c", function + line + "; exit ${PIPESTATUS[0]}"],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def training(tiny_model, tmp_path_factory) -> list[str]:
    """A short training."""
    folder = tmp_path_factory.mktemp("rows")
    write_csv(folder / "train.csv", toy_rows(48, seed=1))
    write_csv(folder / "validation.csv", toy_rows(20, seed=2))
    command = ["finetune", "classify", "--model", tiny_model, "--data", folder, "--output", "run", "--epochs", 1]
    return [str(argument) for argument in [*command, *LEARN]]


def status_of(folder) -> str:
    return json.loads((folder / "run" / "run.json").read_text())["status"]


PIPES = {"bertkit recipes show cola | head -c 4": "name", "bertkit encoders 2>&1 | true": ""}


@pytest.mark.parametrize("line", slow_unless([*PIPES][:1], PIPES))
def test_a_pipe_whose_reader_leaves_does_not_fail_a_command(tmp_path, line):
    ended = shell(tmp_path, line)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, PIPES[line], "")


@pytest.mark.parametrize("closed", slow_unless(["<&- >&- 2>&-"], [">&-", "2>&-", "<&- >&- 2>&-"]))
def test_what_is_printed_on_a_closed_descriptor_reaches_no_file(tmp_path, closed):
    ended = shell(tmp_path, f"bertkit recipes copy cola mine.yaml {closed}")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (ended.stdout == "") == (">&-" in closed.split())
    assert (tmp_path / "mine.yaml").read_text() == find_recipe("cola").read_text()


def test_a_closed_stdin_has_no_rows(tmp_path, trained):
    ended = shell(tmp_path, f"bertkit predict classify - --model {trained} <&-")
    assert (ended.returncode, ended.stderr.count("\n"), "the file is empty" in ended.stderr) == (3, 1, True), (
        ended.stderr
    )


@pytest.mark.parametrize("streams", slow_unless(["--json 2>&1 | true"], [">&- 2>&-", "--json 2>&1 | true"]))
def test_an_error_keeps_its_exit_code_where_nothing_can_be_printed(tmp_path, streams):
    assert shell(tmp_path, f"bertkit recipes show nosuch {streams}").returncode == 2


def test_a_full_disk_under_stdout_is_an_error_since_somebody_wanted_it(tmp_path):
    ended = shell(tmp_path, "bertkit encoders > /dev/full")
    assert (ended.returncode, ended.stderr) == (6, "error: stdout cannot be written: No space left on device\n")


ENVIRONMENTS = [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C"}, {"PYTHONUTF8": "0"}]


@pytest.mark.parametrize("environment", slow_unless(ENVIRONMENTS[:1], ENVIRONMENTS), ids=str)
def test_characters_that_an_encoding_lacks_are_escaped_so_that_json_stays_json(tmp_path, environment):
    ended = shell(tmp_path, "bertkit recipes show cola --set 'about=café €' --json", **environment)
    assert json.loads(ended.stdout)["recipe"]["about"] == "café €", ended.stderr


STREAMS = ["closed", "pipe without a reader", "terminal that is gone"]


@pytest.mark.parametrize("stream", slow_unless(STREAMS[:2], STREAMS))
def test_a_training_that_nobody_watches_ends_as_any_other(zygote, training, tmp_path, stream):
    (code,) = zygote.answer(tmp_path, training, out=stream, err=stream)
    assert (code, status_of(tmp_path)) == (0, "finished")


def test_a_training_goes_on_where_its_log_is_on_a_full_disk(zygote, training, tmp_path):
    (code,) = zygote.answer(tmp_path, training, out=str(tmp_path / "out"), err="/dev/full")
    assert (code, status_of(tmp_path)) == (0, "finished")
    assert "accuracy" in (tmp_path / "out").read_text()


def test_a_stopped_training_says_so_in_its_record_where_nobody_watches(zygote, training, tmp_path):
    fault = {"function": TRAINING_STEP, "call": 2, "signal": "SIGTERM"}
    (code,) = zygote.answer(tmp_path, training, out="closed", err="pipe without a reader", fault=fault)
    assert (code, status_of(tmp_path)) == (143, "stopped")


def test_predictions_stop_when_the_reader_has_enough(zygote, trained, tmp_path):
    (tmp_path / "many.txt").write_text("the film is good\n" * 9000)
    command = [
        "predict",
        str(trained / "recipe.yaml"),
        "many.txt",
        "--model",
        str(trained),
        "--set",
        "data.format=lines",
    ]
    fault = {
        "function": "bertkit.workflows.predict.answer_rows",
        "call": 2,
        "signal": "SIGKILL",
    }  # of the second chunk
    (code,) = zygote.answer(tmp_path, command, out="pipe without a reader", err=str(tmp_path / "err"), fault=fault)
    assert (code, (tmp_path / "err").read_text().count("error")) == (0, 0)
    (code,) = zygote.answer(tmp_path, command, out=str(tmp_path / "out"), err=str(tmp_path / "err"), fault=fault)
    assert code == -signal.SIGKILL


@pytest.mark.slow
def test_nohup_keeps_a_training_alive(training, tmp_path):
    line = " ".join(f"'{argument}'" for argument in training)
    start = (
        f'nohup "{sys.executable}" -m bertkit {line} > out & p=$!; while [ ! -e run/run.json ]; do sleep 0.1; done; '
    )
    ended = shell(tmp_path, start + "while kill -HUP $p 2> /dev/null; do sleep 0.1; done; wait $p")
    assert (ended.returncode, status_of(tmp_path)) == (0, "finished"), ended.stderr


# --- Progress ---


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests set."""
    now = [100.0]
    monkeypatch.setattr(
        "bertkit.hardware.process._MONITOR_SECONDS", math.inf
    )  # whatever else takes the cores of the tests
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
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
