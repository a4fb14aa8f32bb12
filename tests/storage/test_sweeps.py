"""Folders of sweeps: what is searched, and the settings of the trials."""

from __future__ import annotations

import json

import pytest

from bertkit.errors import ResourceError, UsageError
from bertkit.storage.sweeps import (
    check_space,
    find_trials,
    read_settings,
    trial_of,
    write_settings,
    write_space,
    write_summary,
)

PLAN = {"search": "grid", "space": {"training.epochs": "2,3"}, "seed": 1}


def test_settings_come_back_as_they_were_written_and_a_change_is_noticed(tmp_path):
    assert read_settings(tmp_path, 1) is None
    for number in (10, 2):
        write_settings(tmp_path, number, {"training.epochs": number})
    (tmp_path / "trial-0003").mkdir()
    assert find_trials(tmp_path) == [2, 10] and trial_of("trial-0010") == 10
    assert read_settings(tmp_path, 10) == {"training.epochs": 10}
    write_summary(tmp_path, {"best": None, "score": float("nan")})
    summary = json.loads((tmp_path / "sweep.json").read_text())
    assert {**summary, "sha256": ""} == {"schema_version": 1, "best": None, "score": None, "sha256": ""}
    file = tmp_path / "trial-0002.json"
    for damaged in (file.read_text().replace("2\n", "3\n"), "[]", "{"):
        file.write_text(damaged)
        with pytest.raises(ResourceError, match="a file of the sweep is damaged"):
            read_settings(tmp_path, 2)


def test_another_space_is_refused(tmp_path):
    check_space(tmp_path, PLAN)
    write_space(tmp_path, PLAN)
    check_space(tmp_path, PLAN)
    other = {**PLAN, "seed": 2, "space": {"training.epochs": "2,4"}}
    write_space(tmp_path, other)  # the first one stays
    with pytest.raises(UsageError, match=r"another sweep \(seed: 1 there, 2 asked; .*epochs: 2,3 there, 2,4 asked\)"):
        check_space(tmp_path, other)
