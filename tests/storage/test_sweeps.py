"""Folders of sweeps: what they are, who may write them, and who has which trial."""

from __future__ import annotations

import json
from contextlib import ExitStack

import pytest

from bertkit.errors import ResourceError, UsageError
from bertkit.storage import runs
from bertkit.storage.sweeps import (
    SPACE,
    check_folder,
    claim_trial,
    claimed_sweep,
    find_trials,
    read_settings,
    write_settings,
    write_summary,
)

PLAN = {"search": "grid", "space": {"training.epochs": "2,3"}, "seed": 1}


def test_settings_come_back_as_they_were_written_and_a_change_is_noticed(tmp_path):
    assert read_settings(tmp_path, 1) is None
    for number in (10, 2):
        write_settings(tmp_path, number, {"training.epochs": number})
    (tmp_path / "trial-0003").mkdir()
    assert find_trials(tmp_path) == [2, 10]
    assert read_settings(tmp_path, 10) == {"training.epochs": 10}
    write_summary(tmp_path, {"best": None, "score": float("nan")})
    summary = json.loads((tmp_path / "sweep.json").read_text())
    assert {**summary, "sha256": ""} == {"schema_version": 1, "best": None, "score": None, "sha256": ""}
    file = tmp_path / "trial-0002.json"
    for damaged in (file.read_text().replace("2\n", "3\n"), "[]", "{"):
        file.write_text(damaged)
        with pytest.raises(ResourceError, match="a file of the sweep is damaged"):
            read_settings(tmp_path, 2)


def test_other_folders_and_other_sweeps_are_refused(tmp_path):
    check_folder(tmp_path / "new", PLAN)
    check_folder(tmp_path, PLAN)  # empty
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(UsageError, match="not a sweep"):
        check_folder(tmp_path, PLAN)
    with pytest.raises(ResourceError, match="a file where the folder"):
        check_folder(tmp_path / "thesis.txt", PLAN)
    folder = tmp_path / "sweep"
    with claimed_sweep(folder, PLAN, fresh=False, join=False):
        pass
    check_folder(folder, PLAN)
    with pytest.raises(UsageError, match=r"another sweep \(seed: 1 there, 2 asked; .*epochs: 2,3 there, 2,4 asked\)"):
        check_folder(folder, {**PLAN, "seed": 2, "space": {"training.epochs": "2,4"}})
    (folder / runs.RECORD).touch()
    with pytest.raises(UsageError, match="holds a single run"):
        check_folder(folder, PLAN)


def test_a_second_process_joins_and_no_two_have_one_trial(tmp_path):
    folder = tmp_path / "a" / "sweep"
    with pytest.raises(UsageError, match="no sweep to join"), claimed_sweep(folder, PLAN, fresh=False, join=True):
        pass
    with claimed_sweep(folder, PLAN, fresh=False, join=False), ExitStack() as first:
        with pytest.raises(ResourceError, match=r"at work on this sweep .* --join shares the work"):
            claimed_sweep(folder, PLAN, fresh=False, join=False).__enter__()
        assert claim_trial(folder, 1, first)
        with claimed_sweep(folder, PLAN, fresh=False, join=True), ExitStack() as second:
            assert not claim_trial(folder, 1, second) and claim_trial(folder, 2, second)
        assert claim_trial(folder, 2, first)


def test_fresh_moves_an_earlier_sweep_aside_unless_a_trial_is_being_trained(tmp_path):
    folder = tmp_path / "sweep"
    with claimed_sweep(folder, PLAN, fresh=False, join=False):
        write_settings(folder, 1, {"training.epochs": 2})
    other = {**PLAN, "seed": 2}
    with ExitStack() as held:
        assert claim_trial(folder, 1, held)
        with pytest.raises(ResourceError, match="another process trains a trial"):
            claimed_sweep(folder, other, fresh=True, join=False).__enter__()
    with claimed_sweep(folder, other, fresh=True, join=False):
        assert find_trials(folder) == []
    assert find_trials(tmp_path / "sweep.before") == [1] and (tmp_path / "sweep.before" / SPACE).is_file()
