"""A pruned model next to its original, and the files next to its weights."""

from __future__ import annotations

import json
import shutil

import pytest

from bertkit.compression.choose_units import PruningPlan
from bertkit.compression.pruned_folder import PRUNED_FILE, PruningMetadata, compare, write_pruned_files
from bertkit.compression.target_shape import PruningTarget
from bertkit.evaluation.checkpoint import open_checkpoint
from bertkit.hardware.precision import ComputeConfig
from tests.compression.measured import load_measured


def test_modules_are_copied_and_what_is_left_is_noted(tiny_model, tmp_path):
    source, folder = shutil.copytree(tiny_model, tmp_path / "source"), tmp_path / "new"
    modules = [{"idx": n, "name": str(n), "path": p, "type": f"x.{t}"} for n, p, t in [(0, "", "A"), (1, "1_P", "P")]]
    (source / "modules.json").write_text(json.dumps(modules))
    (source / "sentence_bert_config.json").write_text("{}")
    (source / "1_P").mkdir()
    (source / "1_P" / "config.json").write_text('{"pooling_mode": "mean"}')
    folder.mkdir()
    write_pruned_files(PruningMetadata("model", source, PruningPlan([0]), PruningTarget((0,)), [0, 1, 7], 0.0), folder)
    for name in ("modules.json", "sentence_bert_config.json", "1_P/config.json"):
        assert (folder / name).read_text() == (source / name).read_text()
    facts = json.loads((folder / PRUNED_FILE).read_text())
    assert (facts["layers"], facts["tokens"], facts["neurons"]) == ([0], [0, 1, 7], None)
    assert not (folder / "run.json").exists()


@pytest.mark.usefixtures("timed_once")
def test_a_copy_differs_in_nothing(trained, tmp_path):
    measured, split, _ = load_measured(trained)
    saved = open_checkpoint(measured.context.recipe, measured.task, trained)
    copy = shutil.copytree(trained, tmp_path / "copy")
    compared = compare(saved, saved.load(ComputeConfig("cpu", "fp32", 1, ""), inference=True), copy, split)
    assert compared.differences["accuracy"].difference == 0 and compared.differences["accuracy"].p == 1
    one, other = compared.describe(0, 5, trained), compared.describe(1, 5, copy)
    assert one.scores == other.scores and one.disk_bytes == other.disk_bytes and one.intervals == other.intervals
