"""The rows of a run, read before anything is trained; of a stream, the first window."""

from __future__ import annotations

import shlex

from tests.conftest import toy_rows, write_csv
from tests.workflows.test_streaming import arguments


def test_a_dry_run_reads_the_first_window_only(run, tiny_model, toy_data):
    rows = [*toy_rows(100, seed=1), {"text": "", "label": ""}]
    write_csv(toy_data / "train.csv", rows)
    ended = run(*arguments(tiny_model, toy_data), "--dry-run")
    assert ended.code == 0, ended.err
    assert "rows     train streamed, validation 40" in ended.out
    assert "steps    110" in ended.out
    assert "training rows are streamed: the baseline knows only the first 100 of them" in ended.err
    rows[99] = {"text": "", "label": "good"}
    write_csv(toy_data / "train.csv", rows)
    assert "train.csv:101, column 'text'" in run(*arguments(tiny_model, toy_data), "--dry-run").last


def test_rows_that_lie_sorted_are_noticed(run, tiny_model, toy_data):
    write_csv(toy_data / "train.csv", sorted(toy_rows(400, seed=1), key=lambda row: row["label"]))
    ended = run(*arguments(tiny_model, toy_data), "--dry-run")
    assert ended.code == 0
    assert "all of these have the label 'bad': rows are read in order, so shuffle them on disk" in ended.err


def test_a_file_alone_has_no_rows_to_validate_on_and_says_how_to_name_them(run, tiny_model, toy_data):
    command = arguments(tiny_model, toy_data / "train.csv")
    ended = run(*command, "--dry-run")
    assert ended.code == 3
    assert "nothing is held out from a stream" in ended.last
    remedy = ended.last.rpartition(" - ")[2].replace("FILE", str(toy_data / "validation.csv"))
    assert run(*command, *shlex.split(remedy), "--dry-run").code == 0
