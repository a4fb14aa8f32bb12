"""Where the lines about the work go."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

import bertkit
from bertkit.cli import terminal

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ "


@pytest.fixture(autouse=True)
def _as_before():
    """Put the log back as it was."""
    logger = logging.getLogger("bertkit")
    handlers, level, propagate = logger.handlers, logger.level, logger.propagate
    yield
    for handler in logger.handlers:
        handler.close()
    logger.handlers, logger.propagate = handlers, propagate
    logger.setLevel(level)  # not the attribute: what it lets through is cached


@pytest.mark.parametrize("first", [True, False])
def test_quiet_leaves_results_and_errors(run, first):
    words = ["fill-mask", "The [MASK] sleeps", "--model", "demo"]
    ended = run("--quiet", *words) if first else run(*words, "-q")
    assert (ended.code, ended.err) == (0, "") and ended.out
    failed = run("fill-mask", "The [MASK] sleeps", "--model", "nowhere/here", "-q")
    assert failed.code != 0 and failed.err.startswith("error: ") and len(failed.err.splitlines()) == 1


def test_verbose_lines_have_times(run):
    ended = run("fill-mask", "The [MASK] sleeps", "--model", "demo", "-v")
    assert ended.code == 0 and re.search(TIME, ended.err)
    assert run("-q", "-v", "encoders").last == "error: --quiet and --verbose exclude each other - leave one of them out"


def test_a_file_gets_the_lines_with_times(run):
    for _ in range(2):
        assert run("fill-mask", "no mask", "--model", "demo", "--log-file", "work.log").code == 3
    terminal.log_to_stderr()
    lines = Path("work.log").read_text().splitlines()
    assert len([line for line in lines if re.match(TIME + "error: ", line)]) == 2
    refused = run("encoders", "--log-file", "nowhere/work.log")
    assert refused.code == 6 and "--log-file: No such file or directory" in refused.last


def test_the_version(run):
    assert run("--version").out == f"bertkit {bertkit.__version__}\n"


def test_only_the_first_process_writes_a_file(monkeypatch, tmp_path):
    monkeypatch.setenv("RANK", "1")
    terminal.configure_log(False, False, str(tmp_path / "work.log"))
    assert not (tmp_path / "work.log").exists()
