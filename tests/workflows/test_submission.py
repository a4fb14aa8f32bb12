"""A submission to the leaderboard of GLUE: which rows are read, and what is missing is said."""

from __future__ import annotations

import json

import pytest

from bertkit.errors import DataError
from bertkit.evaluation.glue import TASKS
from bertkit.recipe import load_recipe
from bertkit.workflows.glue import _read_origins, _read_rows, make_submission
from tests.conftest import write_csv


def write_mnli(folder):
    (folder / "mnli").mkdir()
    (folder / "ax").mkdir()
    for file in ("mnli/train", "mnli/validation_matched", "mnli/validation_mismatched"):
        write_csv(folder / f"{file}.csv", [{"premise": "a", "hypothesis": "b", "label": 0}])
    for file in ("mnli/test_matched", "mnli/test_mismatched", "ax/test"):
        write_csv(folder / f"{file}.csv", [{"premise": file, "hypothesis": "b", "label": -1, "idx": 0}])
    return load_recipe("mnli", {"data.source": str(folder / "mnli")})


def test_each_file_of_mnli_has_its_rows(tmp_path):
    recipe = write_mnli(tmp_path)
    read = [next(iter(_read_rows(recipe, file)))[1]["premise"] for file in TASKS["mnli"].files]
    assert read == ["mnli/test_matched", "mnli/test_mismatched", "ax/test"]
    (tmp_path / "ax" / "test.csv").unlink()
    (tmp_path / "ax").rmdir()
    (tmp_path / "mnli" / "test_mismatched.csv").unlink()
    for file in TASKS["mnli"].files[1:]:
        with pytest.raises(DataError, match=f"no {file.split} rows in"):
            _read_rows(recipe, file)


def test_the_hub_is_asked_for_the_right_splits(monkeypatch):
    asked = []
    monkeypatch.setattr("bertkit.workflows.glue.read_hub_split", lambda data, split: asked.append((data.config, split)))
    for file in TASKS["mnli"].files:
        _read_rows(load_recipe("mnli"), file)
    assert asked == [("mnli", "test_matched"), ("mnli", "test_mismatched"), ("ax", "test")]


def test_a_wrong_number_of_rows_is_said_before_anything_is_predicted(tmp_path, monkeypatch):
    monkeypatch.setattr("bertkit.workflows.glue.answer", lambda *_: pytest.fail("predicted"))
    (tmp_path / "submission.zip").write_text("of another model")
    made = make_submission(tmp_path, {"mnli": write_mnli(tmp_path)})
    assert made["archive"] is None and not (tmp_path / "submission.zip").exists()
    reasons = {file["name"]: file["missing"] for file in made["files"]}
    assert list(reasons) == [file.name for task in TASKS.values() for file in task.files] and all(reasons.values())
    assert reasons["AX.tsv"].startswith("AX.tsv requires 1,104 rows, got 1")
    assert reasons["CoLA.tsv"] == "no finished run of cola"
    demo = make_submission(tmp_path, {"cola": load_recipe("cola", {"data.source": "demo"})})
    assert "demo data cannot be submitted" in demo["files"][0]["missing"]


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_a_damaged_note_of_what_was_made_is_no_note(tmp_path, content):
    (tmp_path / "submission").mkdir()
    (tmp_path / "submission" / "made.json").write_text(content)
    assert _read_origins(tmp_path) == {}
    (tmp_path / "submission" / "made.json").write_text(json.dumps({"CoLA.tsv": {"model": "a"}}))
    assert _read_origins(tmp_path) == {"CoLA.tsv": {"model": "a"}}
