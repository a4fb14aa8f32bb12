"""What `bertkit doctor` prints, and how it ends."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bertkit.workflows.doctor import judge


@pytest.fixture
def looks(monkeypatch):
    """Let the machine have these findings alone."""

    def set_findings(*findings):
        monkeypatch.setattr("bertkit.workflows.doctor.examine_machine", lambda: list(findings))

    return set_findings


GOOD = judge("memory", "memory", "20 of 32 GB are free")
DOUBT = judge("hub", "hub", "no answer", warn="check the proxy")


def test_findings_stand_under_their_headings_with_a_count(run, looks):
    looks(GOOD, DOUBT)
    ended = run("doctor")
    assert ended.code == 0
    lines = ["this machine", "", "Memory", "  good  20 of 32 GB are free", "", "Hub"]
    lines += ["  warn  no answer - check the proxy", "", "0 fail, 1 warn, 1 good"]
    assert ended.out.splitlines() == lines


@pytest.mark.parametrize(
    ("group", "code"), [("packages", 5), ("device", 5), ("memory", 6), ("disks", 6), ("scores", 1), ("files", 4)]
)
def test_the_exit_code_is_that_of_the_run_that_would_stop(run, looks, group, code):
    looks(DOUBT, judge(group, "fault", "it is broken", fail="mend it"))
    ended = run("doctor")
    assert (ended.code, ended.last) == (code, "error: it is broken - mend it")
    assert "1 fail, 1 warn, 0 good" in ended.out


def test_json_has_each_finding_in_the_shape_of_check(run, looks):
    looks(GOOD, judge("disks", "space", "3 MB are free", fail="free some space"))
    ended = run("doctor", "--json")
    values = json.loads(ended.out)
    assert (ended.code, values["status"], values["error"]["code"], values["subject"]) == (6, "error", 6, "this machine")
    assert values["counts"] == {"good": 1, "warn": 0, "fail": 1}
    expected = {"level": "good", "group": "memory", "name": "memory", "text": "20 of 32 GB are free"}
    assert values["findings"][0] == {**expected, "places": [], "count": 0}


def test_a_run_is_read_in_place_of_the_machine(run, trained, tmp_path):
    ended = run("doctor", trained)
    assert ended.code == 0
    assert ended.out.startswith(f"{trained}\n")
    copied = shutil.copytree(trained, tmp_path / "copied")
    (copied / "model.safetensors").unlink()
    ended = run("doctor", copied, "--json")
    assert (ended.code, json.loads(ended.out)["error"]["code"]) == (4, 4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "no such folder"),
        (["rows.csv"], "a file, not a folder (rows.csv) - name the folder of a run, or check rows: `bertkit check"),
        (["."], "not a run"),
        (["--jsn"], "--json"),
    ],
)
def test_wrong_arguments_end_in_one_line(run, arguments, words):
    Path("rows.csv").touch()
    ended = run("doctor", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert words in ended.last
    assert len(ended.err.splitlines()) == 1
