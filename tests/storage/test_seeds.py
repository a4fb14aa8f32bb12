"""Folders of seeds: what they are, and their summary."""

from __future__ import annotations

import pytest

from bertkit.errors import ResourceError
from bertkit.storage import runs
from bertkit.storage.seeds import (
    SUMMARY,
    find_seeds,
    is_seeds_folder,
    members_of,
    read_seeds,
    seed_of,
    write_seeds,
)


def test_seeds_are_found_in_the_order_of_their_numbers(tmp_path):
    for name in ("seed-10", "seed-2", "seed-02", "seed-x", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "seed-3").touch()
    assert find_seeds(tmp_path) == [2, 10] and seed_of("seed-10") == 10
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
