"""Teachers beside their student: scores, parameters, bytes, speed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.conftest import distill

pytestmark = pytest.mark.usefixtures("timed_once")


def test_teachers_and_student_stand_side_by_side(run, trained, tiny_model, toy_data):
    options = ("--teacher", trained, "--model", tiny_model, "--epochs", 1, "--output", "student")
    ended = distill(run, trained, toy_data, *options)
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    title = lines.index("  size and speed on this machine")
    head, first, second, student = lines[title + 1 : title + 5]
    assert head.split()[:2] == ["model", "parameters"]
    assert [line.split()[0] for line in (first, second, student)] == ["teacher", "teacher", "student"]
    printed = json.loads(distill(run, trained, toy_data, *options, "--json").out)
    one, _, last = printed["compared_models"]
    assert (one["role"], one["model"], last["model"]) == ("teacher", str(trained), "student")
    assert last["scores"] == printed["results"][0]["scores"]
    apart = last["scores"]["accuracy"] - one["scores"]["accuracy"]
    assert one["difference"]["accuracy"] == pytest.approx(apart)
    low, high = one["difference_intervals"]["accuracy"]
    assert low <= apart <= high
    assert last["difference"] == {}
    assert (
        one["parameters"]
        == last["parameters"]
        == sum(t.numel() for t in load_file("student/model.safetensors").values())
    )
    assert last["disk_bytes"] == Path("student/model.safetensors").stat().st_size
    assert all(model["row_seconds"] > 0 and model["rows_per_second"] > 0 for model in printed["compared_models"])
    assert f"distilled from {trained.name}, {trained.name}" in Path("student/README.md").read_text()
    assert "<dt>Teachers</dt>" in Path("student/report.html").read_text()
