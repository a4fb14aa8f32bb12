"""An opened run: what its record holds when it begins, ends badly, and goes on elsewhere."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from bertkit.errors import DataError
from bertkit.hardware import precision
from bertkit.recipe import load_recipe
from bertkit.storage import runs
from bertkit.workflows.steps.run import RunPlan, open_run


def make_plan(folder: Path) -> RunPlan:
    recipe = load_recipe("classify", {"training.precision": "fp32"})
    return RunPlan(recipe, folder, {"recipe": {"name": "x"}}, {"model": "m"}, "bert")


def test_a_run_goes_on_without_onednn_where_its_products_are_not_exact(tmp_path, monkeypatch, caplog):
    folder = Path(tmp_path, "run")
    monkeypatch.setattr(precision, "_gain", lambda device, dtype: 2.0)
    monkeypatch.setattr(precision, "onednn_is_exact", lambda: True)
    with pytest.raises(DataError), open_run(make_plan(folder), fresh=False) as run:
        assert run.record["machine"]["matmul_backend"] == "onednn"
        (folder / "checkpoint-3").mkdir()
        raise DataError("a bad row", "mend it")
    record = runs.read_record(folder)
    assert (record["status"], record["error"]) == ("failed", "a bad row - mend it")
    monkeypatch.setattr(precision, "onednn_is_exact", lambda: False)
    with caplog.at_level(logging.INFO, "bertkit"), open_run(make_plan(folder), fresh=False) as run:
        assert run.record["machine"]["matmul_backend"] == "torch"
        assert len(run.record["resumed"]) == 1
        assert runs.read_record(folder) == run.record
    assert "not bit-identical to an unbroken run: matmul_backend: onednn there, torch asked" in caplog.text
