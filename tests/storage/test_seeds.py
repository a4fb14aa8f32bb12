"""Folders of seeds: what they are, who may write them, and their summary."""

from __future__ import annotations

import pytest

from bertkit.errors import ResourceError, UsageError
from bertkit.storage import runs
from bertkit.storage.seeds import (
    SUMMARY,
    check_folder,
    claimed_seeds,
    find_seeds,
    is_seeds_folder,
    members_of,
    read_seeds,
    seed_folder,
    write_seeds,
)


def test_seeds_are_found_in_the_order_of_their_numbers(tmp_path):
    for name in ("seed-10", "seed-2", "seed-02", "seed-x", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "seed-3").touch()
    assert find_seeds(tmp_path) == [2, 10]
    assert is_seeds_folder(tmp_path) and not is_seeds_folder(tmp_path / "seed-2")
    (tmp_path / runs.RECORD).touch()
    assert not is_seeds_folder(tmp_path)


def test_a_summary_comes_back_as_it_was_written_and_a_change_is_noticed(tmp_path):
    assert read_seeds(tmp_path) is None
    write_seeds(tmp_path, {"runs": [{"seed": 1}], "mean": float("nan")})
    assert read_seeds(tmp_path) == {"schema_version": 1, "runs": [{"seed": 1}], "mean": None}
    file = tmp_path / SUMMARY
    for damaged in (file.read_text().replace('"seed": 1', '"seed": 2'), "[]", "{"):
        file.write_text(damaged)
        with pytest.raises(ResourceError, match="the summary of the seeds is damaged"):
            read_seeds(tmp_path)


def test_members_are_the_runs_that_have_not_failed():
    names = ["seed-1", "seed-2", "seed-3"]
    ends = [("finished", None), ("finished", "It gives every row the same answer."), ("diverged", "the loss is nan")]
    entries = [{"folder": name, "status": s, "failure": f} for name, (s, f) in zip(names, ends, strict=True)]
    assert members_of({"runs": entries}) == ["seed-1", "seed-2"]  # all that are finished
    good = {"folder": "seed-4", "status": "finished", "failure": None}
    assert members_of({"runs": [*entries, good]}) == ["seed-1", "seed-4"]


def test_other_folders_are_refused(tmp_path):
    check_folder(tmp_path / "new")
    check_folder(tmp_path)  # empty
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(UsageError, match="not a folder of seeds"):
        check_folder(tmp_path)
    with pytest.raises(ResourceError, match="a file where the folder"):
        check_folder(tmp_path / "thesis.txt")
    seed_folder(tmp_path, 1).mkdir()
    check_folder(tmp_path)  # a note of the user among the runs
    (tmp_path / runs.RECORD).touch()
    with pytest.raises(UsageError, match="holds a single run"):
        check_folder(tmp_path)


def test_fresh_moves_an_earlier_folder_aside_and_one_process_writes(tmp_path):
    folder = tmp_path / "a" / "seeds"
    with claimed_seeds(folder, fresh=False):
        seed_folder(folder, 1).mkdir()
        with pytest.raises(ResourceError, match="is writing this run"), claimed_seeds(folder, fresh=False):
            pass
    with claimed_seeds(folder, fresh=True):
        assert find_seeds(folder) == []
    assert find_seeds(tmp_path / "a" / "seeds.before") == [1]
