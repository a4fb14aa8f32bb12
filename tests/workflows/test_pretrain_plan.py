"""A dry run of pretraining: what it will take, from some steps of each length."""

from __future__ import annotations

import json
import re
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

from bertkit.training.timing import TimedStep
from tests.workflows.test_pretrain import arguments


def test_a_dry_run_tells_speed_and_memory_and_keeps_nothing(run):
    ended = run(*arguments("--dry-run"))
    assert ended.code == 0, ended.err
    assert "tokens/s" in ended.out
    assert "steps    12" in ended.out
    assert re.search(r"^disk +\d+ MB in runs/mlm$|^disk +\d+ MB in run$", ended.out, re.MULTILINE)
    assert not Path("run").exists()
    ended = run(*arguments("--dry-run", "--budget", "2h", "--json"))
    estimate = json.loads(ended.out)
    assert estimate["steps"] is None
    assert estimate["seconds"] == pytest.approx(7200)
    assert estimate["tokens"] == pytest.approx(7200 * estimate["tokens_per_second"], rel=1e-3)


def test_a_dry_run_refuses_a_disk_that_is_too_small(run, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 0, 10**5))
    ended = run(*arguments("--dry-run"))
    assert ended.code == 6
    assert "the disk is too small: 0.1 MB are free" in ended.last


def test_a_dry_run_times_each_length_of_blocks(run, monkeypatch):
    timed = []

    def seconds_of(job, training, machine, *, steps):
        batches = job.train_batches
        lengths = [len(feature["input_ids"]) for feature in batches.__getitems__([batches.make_key(0)])]
        timed.append(lengths)
        return [TimedStep(sum(lengths) / (100 if max(lengths) <= 16 else 50), len(lengths), lengths, 0)]

    monkeypatch.setattr("bertkit.training.timing.time_steps", seconds_of)
    settings = ["training.short_length=16", "training.short_fraction=0.75"]
    ended = run(
        *arguments(*(word for setting in settings for word in ("--set", setting)), "--dry-run", "--json", steps=8)
    )
    estimate = json.loads(ended.out)
    assert sorted(max(lengths) for lengths in timed) == [16, 32]
    long, short = (8 * len(lengths) * np.mean(lengths) for lengths in sorted(timed, key=max, reverse=True))
    assert estimate["tokens"] == pytest.approx(0.25 * long + 0.75 * short, rel=0.1)
    assert estimate["seconds"] == pytest.approx(0.25 * long / 50 + 0.75 * short / 100, rel=0.1)
    budget = ["--budget", "8s", "--dry-run", "--json"]
    estimate = json.loads(run(*arguments(*(word for setting in settings for word in ("--set", setting)), *budget)).out)
    assert (estimate["seconds"], estimate["tokens"]) == (pytest.approx(8), pytest.approx(2 * 50 + 6 * 100))
