"""`bertkit glue`: one run per task, kept, resumed or failed by itself, and files equal to those of a plain loop."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from bertkit.errors import DataError, ResourceError, StoppedError, UsageError
from bertkit.evaluation.glue import TASKS
from bertkit.storage import runs
from bertkit.workflows import glue as workflow
from bertkit.workflows.glue import glue
from tests.conftest import LEARN, toy_rows, write_csv


def write_task(folder: Path, rows: int = 48) -> list[str]:
    """Write rows like those of CoLA, with 0 and 1 as labels; return the texts of the test rows."""
    folder.mkdir(parents=True)
    for seed, split in enumerate(("train", "validation", "test")):
        found = [
            {"sentence": row["text"], "label": -1 if split == "test" else int(row["label"] == "good"), "idx": number}
            for number, row in enumerate(toy_rows(rows, seed))
        ]
        write_csv(folder / f"{split}.csv", found)
    return [row["sentence"] for row in found]


@pytest.fixture
def few_test_rows(monkeypatch):
    monkeypatch.setitem(TASKS, "cola", replace(TASKS["cola"], files=(replace(TASKS["cola"].files[0], rows=48),)))


def plain_predictions(folder: Path, texts: list[str]) -> list[str]:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    lines = ["index\tprediction"]
    for number, text in enumerate(texts):
        with torch.no_grad():
            logits = model(**tokenizer(text, return_tensors="pt")).logits[0]
        lines.append(f"{number}\t{logits.argmax().item()}")
    return lines


@pytest.mark.usefixtures("few_test_rows")
def test_finished_tasks_are_kept_and_a_failing_one_loses_no_other(run, trained, tmp_path, monkeypatch):
    texts = write_task(tmp_path / "data" / "cola")
    (tmp_path / "data" / "rte").mkdir()
    command = ["glue", "--model", trained, "--data", tmp_path / "data", "--epochs", 4, *LEARN]
    ended = run(*command, "--json")
    printed = json.loads(ended.out)
    assert (ended.code, printed["status"], printed["error"]["code"]) == (3, "error", 3)
    assert "rte: no train" in ended.last
    statuses = {entry["task"]: entry["status"] for entry in printed["runs"]}
    assert (statuses.pop("cola"), statuses.pop("rte"), set(statuses.values())) == ("finished", "failed", {"missing"})
    folder = Path("runs/glue")
    expected = plain_predictions(folder / "cola", texts)
    assert (folder / "submission" / "CoLA.tsv").read_text().splitlines() == expected
    assert len({line.split("\t")[1] for line in expected[1:]}) == 2
    with zipfile.ZipFile(folder / "submission.zip") as archive:
        assert archive.namelist() == ["CoLA.tsv"]
    assert json.loads((folder / "glue.json").read_text())["scores"] == printed["scores"]
    record = runs.read_record(folder / "cola")
    assert printed["scores"][0]["score"] == record["results"][0]["scores"]["matthews_correlation"]

    monkeypatch.setattr(workflow, "finetune_rows", lambda *_, **__: pytest.fail("trained again"))
    monkeypatch.setattr("bertkit.workflows.glue.answer", lambda *_, **__: pytest.fail("predicted again"))
    again = run(*command, "--json")
    assert json.loads(again.out)["submission"] == printed["submission"] and "cola: finished on" in again.err
    other = run(*command, "--max-length", 9)
    assert other.code == 2 and "holds another run (recipe.training.max_length: 128 there, 9 requested)" in other.last


def test_tasks_end_one_by_one(tmp_path, monkeypatch):
    trained = []

    def train(inputs, **_):
        name = inputs.recipe.name
        trained.append(name)
        if name == "rte":
            raise ResourceError("no space", "make room")
        if name == "wnli":
            raise StoppedError("stopped", signal=15)
        return []

    monkeypatch.setattr(workflow, "finetune_rows", train)
    arguments = {"changes": {"data.source": "demo", "data.limit": 40}}
    summary, error = glue("demo", tasks=["rte", "cola"], output=tmp_path / "glue", **arguments)
    assert trained == ["cola", "rte"] and summary["submission"] is None
    assert (str(error), error.exit_code) == ("rte: no space - make room", 6)
    with pytest.raises(StoppedError):
        glue("demo", tasks=["wnli"], output=tmp_path / "glue2", **arguments)


def test_fresh_moves_the_runs_aside_once_all_rows_are_read(tmp_path, monkeypatch):
    def train(inputs, **_):
        assert not inputs.plan.folder.exists()
        raise ResourceError("no space", "make room")

    monkeypatch.setattr(workflow, "finetune_rows", train)
    (tmp_path / "glue" / "cola").mkdir(parents=True)
    runs.write_record(tmp_path / "glue" / "cola", {"status": "finished", "identity": {"model": "x"}})
    glue(
        "demo",
        tasks=["cola"],
        output=tmp_path / "glue",
        changes={"data.source": "demo", "data.limit": 40},
        restart=True,
    )
    assert runs.read_record(tmp_path / "glue" / "cola.before")["status"] == "finished"


def test_finished_runs_of_other_tasks_count_if_they_started_from_the_same_model(tmp_path):
    scores = {"matthews_correlation": 0.5, "accuracy": 0.75}
    results = [{"recipe": "a", "model": "m", "split": "validation", "scores": scores, "rows": 9, "seconds": 1.0}]
    for name, status, model in (("cola", "finished", "x"), ("rte", "stopped", "x"), ("wnli", "finished", "y")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.yaml").write_text(f"extends: {name}\nname: {name}\n")
        record = {"status": status, "finished": "today", "identity": {"model": model}, "results": results}
        runs.write_record(tmp_path / name, record)
    job = workflow.GlueRuns(tmp_path, [], {})
    finished = workflow._read_finished(job, "x")
    assert list(finished) == list(job.recipes) == ["cola"]
    assert (finished["cola"].scores, job.recipes["cola"].task) == (scores, "text_classification")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"tasks": ["colla"]}, UsageError, "'colla' - did you mean cola"),
        ({"changes": {"data.source": "gone"}}, DataError, "no such directory"),
        ({"changes": {"data.source": "data"}, "tasks": ["cola", "rte"]}, DataError, "no folder for rte"),
        ({"changes": {"data.source": "none"}}, DataError, "no folder for cola"),
        ({"changes": {"data.source": "data"}, "output": "data"}, UsageError, "a single run"),
        ({"changes": {"data.source": "data"}, "output": "none"}, UsageError, "not a folder of GLUE runs"),
        ({"changes": {"data.source": "data"}, "output": "none/file"}, ResourceError, "there is a file"),
    ],
)
def test_mistakes_are_refused_before_anything_is_read(here, monkeypatch, arguments, error, message):
    (here / "data" / "cola").mkdir(parents=True)
    (here / "data" / "run.json").write_text("{}")
    (here / "none").mkdir()
    (here / "none" / "file").write_text("")
    monkeypatch.setattr(workflow, "read_finetune_data", lambda *_: pytest.fail("read"))
    with pytest.raises(error, match=message):
        glue("demo", **arguments)
