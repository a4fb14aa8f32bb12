"""Folders of seeds and of sweeps: their runs, their settings and their summaries."""

from __future__ import annotations

import json

import pytest

from bertkit.errors import ResourceError, UsageError
from bertkit.storage import runs
from bertkit.storage.run_sets import (
    SEEDS,
    check_space,
    find_trials,
    is_seeds_folder,
    list_members,
    parse_run_index,
    read_seeds,
    read_settings,
    seed_folders,
    write_settings,
    write_space,
    write_summary,
)


def test_seeds_are_found_in_the_order_of_their_numbers(tmp_path):
    for name in ("seed-10", "seed-2", "seed-02", "seed-x", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "seed-3").touch()
    assert [run.name for run in seed_folders(tmp_path)] == ["seed-2", "seed-10"] and parse_run_index("seed-10") == 10
    assert is_seeds_folder(tmp_path) and not is_seeds_folder(tmp_path / "seed-2")
    (tmp_path / runs.RECORD).touch()
    assert not is_seeds_folder(tmp_path)


def test_a_summary_comes_back_as_it_was_written_and_a_change_is_noticed(tmp_path):
    assert read_seeds(tmp_path) is None
    write_summary(tmp_path / SEEDS, {"runs": [{"seed": 1}], "mean": float("nan")})
    summary = read_seeds(tmp_path)
    assert list(summary)[:3] == ["schema_version", "command", "finished"]
    assert (summary["schema_version"], summary["runs"], summary["mean"]) == (1, [{"seed": 1}], None)
    file = tmp_path / SEEDS
    for damaged in (file.read_text().replace('"seed": 1', '"seed": 2'), "[]", "{"):
        file.write_text(damaged)
        with pytest.raises(ResourceError, match="the summary of the seeds is damaged"):
            read_seeds(tmp_path)


def test_members_are_the_runs_that_have_not_failed():
    names = ["seed-1", "seed-2", "seed-3"]
    ends = [("finished", None), ("finished", "It gives every row the same answer."), ("diverged", "the loss is nan")]
    entries = [{"folder": name, "status": s, "failure": f} for name, (s, f) in zip(names, ends, strict=True)]
    assert list_members({"runs": entries}) == ["seed-1", "seed-2"]  # all that are finished
    good = {"folder": "seed-4", "status": "finished", "failure": None}
    assert list_members({"runs": [*entries, good]}) == ["seed-1", "seed-4"]


PLAN = {"search": "grid", "space": {"training.epochs": "2,3"}, "seed": 1}


def test_settings_come_back_as_they_were_written_and_a_change_is_noticed(tmp_path):
    assert read_settings(tmp_path, "trial-0001") is None
    for number in (10, 2):
        write_settings(tmp_path, f"trial-{number:04}", {"training.epochs": number})
    (tmp_path / "trial-0003").mkdir()
    assert find_trials(tmp_path) == ["trial-0002", "trial-0010"] and parse_run_index("trial-0010") == 10
    assert read_settings(tmp_path, "trial-0010") == {"training.epochs": 10}
    write_summary(tmp_path / "sweep.json", {"best": None, "score": float("nan")})
    summary = json.loads((tmp_path / "sweep.json").read_text())
    assert {"schema_version": 1, "best": None, "score": None}.items() <= summary.items()
    file = tmp_path / "trial-0002.json"
    for damaged in (file.read_text().replace("2\n", "3\n"), "[]", "{"):
        file.write_text(damaged)
        with pytest.raises(ResourceError, match="a file of the sweep is damaged"):
            read_settings(tmp_path, "trial-0002")


def test_another_space_is_refused(tmp_path):
    check_space(tmp_path, PLAN)
    write_space(tmp_path, PLAN)
    check_space(tmp_path, PLAN)
    other = {**PLAN, "seed": 2, "space": {"training.epochs": "2,4"}}
    write_space(tmp_path, other)  # the first one stays
    with pytest.raises(
        UsageError, match=r"another sweep \(seed: 1 there, 2 requested; .*epochs: 2,3 there, 2,4 requested\)"
    ):
        check_space(tmp_path, other)
