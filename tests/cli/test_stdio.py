"""Standard streams that are closed, full, without a reader or too narrow for a character; in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

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
