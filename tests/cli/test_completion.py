"""What the shell completes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bertkit.cli.completion import complete_column, complete_run, complete_split
from bertkit.storage.runs import new_record, write_record
from tests.conftest import write_csv, write_jsonl


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the records of two runs, of which one is in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "rows.csv", [{"text": "a", "label": "b", "source": "web"}])
    for name in ("runs/cola", "old/stsb"):
        (tmp_path / name).mkdir(parents=True)
        write_record(tmp_path / name, new_record({}, rows={"train": 9, "validation": 1}))
        (tmp_path / name / "recipe.yaml").write_text("extends: classify\ndata: {source: rows.csv}\n")
    return tmp_path


def test_runs_come_before_recipes(folder):
    assert complete_run("")[0] == "runs/cola" and "cola" in complete_run("")
    assert complete_run("co") == ["cola"]
    assert complete_run("old/") == ["old/stsb"]


@pytest.mark.parametrize("params", [{"run": "runs/cola"}, {"runs": ["runs/cola", "old/stsb"]}])
def test_splits_and_columns_of_a_run(folder, params):
    context = SimpleNamespace(params=params)
    assert complete_split(context, "") == ["train", "validation"]
    assert complete_split(context, "v") == ["validation"]
    assert complete_column(context, "") == ["text", "label", "source"]


def test_columns_of_a_file(folder):
    write_jsonl(folder / "rows.jsonl", [{"body": "a", "stars": 1}])
    assert complete_column(SimpleNamespace(params={"file": "rows.jsonl"}), "s") == ["stars"]


@pytest.mark.parametrize("params", [{}, {"run": "runs/none"}, {"file": "none.csv"}, {"file": "broken.jsonl"}])
def test_what_cannot_be_read_completes_to_nothing(folder, params):
    (folder / "broken.jsonl").write_text("{")
    context = SimpleNamespace(params=params)
    assert complete_split(context, "") == [] == complete_column(context, "")
