"""Rows that a model was trained on: known to its run, and never scored in silence."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from bertkit.data.checks import format_fraction
from bertkit.data.rows import Split
from bertkit.errors import DataError, UsageError
from bertkit.evaluation.splits import digest_training_rows, find_training_rows, resolve_overlap, write_training_rows
from tests.conftest import toy_rows, write_csv


def rows_of(numbers) -> list[dict]:
    return [{"text": f"text {number}", "label": "a"} for number in numbers]


def split_of(numbers, name: str = "validation", **facts) -> Split:
    rows = rows_of(numbers)
    return Split(name, "rows.csv", rows, list(range(2, len(rows) + 2)), **facts)


def saved(folder, record=None):
    """A checkpoint whose run was trained on the texts from 0 to 99."""
    write_training_rows(folder, digest_training_rows(rows_of(range(100)), "label"))
    task = SimpleNamespace(COLUMNS=SimpleNamespace(gold="label"))
    return SimpleNamespace(folder=folder, task=task, record=record or {})


@pytest.mark.parametrize(
    ("split", "seen"),
    [
        (split_of(range(99, 120), is_held_out=True), 1),
        (split_of(range(99, 120), "all"), 1),
        (split_of(range(99, 120), "train"), 1),
        (split_of(range(97, 118), "test"), 3),
        (split_of(range(100)), 100),
    ],
)
def test_training_rows_are_refused_dropped_or_kept(tmp_path, split, seen, caplog):
    caplog.set_level(logging.INFO, "bertkit")
    checkpoint, splits = saved(tmp_path), {split.name: split}
    with pytest.raises(DataError, match=rf"^{seen} of {len(split.rows)} .* rows to score are training rows") as refused:
        resolve_overlap(checkpoint, splits, "error")
    assert (refused.value.row, "(--on-overlap drop)" in refused.value.remedy) == (2, seen < len(split.rows))
    kept = resolve_overlap(checkpoint, splits, "mark")[split.name]
    assert (kept.rows, len(kept.training_rows)) == (split.rows, seen)
    if seen == len(split.rows):
        with pytest.raises(DataError, match="rows to score are training rows of the model"):
            resolve_overlap(checkpoint, splits, "drop")
        return
    fresh = resolve_overlap(checkpoint, splits, "drop")[split.name]
    assert (fresh.rows, fresh.lines[0], fresh.training_rows) == (split.rows[seen:], 2 + seen, frozenset())
    assert "are training rows of the model: they are left out" in caplog.text


@pytest.mark.parametrize("plain", [0, 4])
def test_training_rows_in_other_case_and_white_space_are_told_so_and_treated_alike(tmp_path, plain, caplog):
    caplog.set_level(logging.INFO, "bertkit")
    rows = [{"text": f" TEXT  {number}" if number >= plain else f"text {number}", "label": "a"} for number in range(20)]
    split = Split("all", "rows.csv", [*rows, *rows_of([200])], list(range(2, 23)))
    told = f"20 of 21 (95.2%) rows to score are training rows of the model ({'16 of them ' * (plain > 0)}if case"
    with pytest.raises(DataError, match=re.escape(told)):
        resolve_overlap(saved(tmp_path), {"all": split}, "error")
    assert len(resolve_overlap(saved(tmp_path), {"all": split}, "mark")["all"].training_rows) == 20
    assert told in caplog.text
    assert resolve_overlap(saved(tmp_path), {"all": split}, "drop")["all"].rows == rows_of([200])


def test_texts_that_recur_in_a_test_split_are_scored_and_marked(tmp_path):
    judged = resolve_overlap(saved(tmp_path), {"test": split_of(range(98, 118), "test")}, "error")["test"]
    assert (len(judged.rows), judged.training_rows) == (20, {0, 1})


def test_what_a_run_was_validated_on_is_scored_as_in_training_and_marked(tmp_path):
    split = split_of(range(100), "all")
    checkpoint = saved(tmp_path, {"identity": {"data": {"validation": split.fingerprint()}}})
    assert len(resolve_overlap(checkpoint, {"all": split}, "error")["all"].training_rows) == 100
    checkpoint.record["identity"]["data"] = {"train": split.fingerprint()}
    with pytest.raises(DataError, match="are training rows of the model"):
        resolve_overlap(checkpoint, {"all": split}, "error")


def test_a_run_without_digests_says_so_and_other_models_do_not(tmp_path, caplog):
    caplog.set_level(logging.INFO, "bertkit")
    splits = {"all": split_of(range(100), "all")}
    for record in ({}, {"status": "finished"}):
        checkpoint = saved(tmp_path, record)
        (tmp_path / "training_rows.npy").unlink()
        assert resolve_overlap(checkpoint, splits, "error") == splits
        assert ("without its training rows" in caplog.text) == bool(record)
    with pytest.raises(UsageError, match="on_overlap is 'kep'"):
        resolve_overlap(checkpoint, splits, "kep")


def test_rows_of_the_models_that_a_run_starts_or_learns_from_are_known_too(tmp_path):
    saved(tmp_path)
    splits = {"train": split_of(range(90, 150), "train"), "validation": split_of(range(80, 95))}
    marked, trained, warnings = find_training_rows(splits, "label", {tmp_path / "none": "demo", tmp_path: "old"})
    assert warnings == [
        "10 of 15 (66.7%) validation rows are rows that old was trained on, such as rows.csv:2. Scores may be too high."
    ]
    assert (len(trained), len(marked["validation"].training_rows)) == (150, 15)
    assert marked["validation"].fingerprint() == splits["validation"].fingerprint()


def test_a_run_from_a_run_warns_of_what_that_was_trained_on(run, tiny_model, tmp_path):
    file = write_csv(tmp_path / "all.csv", toy_rows(80, seed=6))
    command = ("finetune", "classify", "--data", file, "--epochs", 1)
    assert run(*command, "--model", tiny_model, "--output", "first").code == 0
    ended = run(*command, "--model", "first", "--output", "second", "--set", "data.validation_fraction=0.3", "--json")
    result = json.loads(ended.out)["results"][0]
    seen, count = result["training_rows"], result["rows"]
    assert 5 < seen < count < 40
    warning = f"{format_fraction(seen, count)} validation rows are rows that first was trained on"
    assert warning in ended.err
    assert json.loads(Path("second/eval_results.json").read_text())["eval_training_rows"] == seen
    for page in ("report.html", "README.md"):
        assert warning in Path("second", page).read_text()
