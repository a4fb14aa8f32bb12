"""A checkpoint beside a copy of itself: equal scores, no difference."""

from __future__ import annotations

import shutil

import pytest

from bertkit.compression.compare_pruned import compare
from bertkit.evaluation.checkpoint import open_checkpoint
from bertkit.hardware.precision import Machine
from tests.compression.measured import load_measured


@pytest.mark.usefixtures("timed_once")
def test_a_copy_differs_in_nothing(trained, tmp_path):
    measured, split, _ = load_measured(trained)
    saved = open_checkpoint(measured.setup.recipe, measured.task, trained)
    copy = shutil.copytree(trained, tmp_path / "copy")
    compared = compare(saved, saved.load(Machine("cpu", "fp32", 1, ""), inference=True), copy, split)
    assert compared.differences["accuracy"].difference == 0 and compared.differences["accuracy"].p == 1
    one, other = compared.describe(0, 5, trained), compared.describe(1, 5, copy)
    assert one.scores == other.scores and one.disk_bytes == other.disk_bytes and one.intervals == other.intervals
