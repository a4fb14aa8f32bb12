"""Two runs are scored on the rows of a file that neither was trained on, beside transformers alone."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from sklearn.metrics import accuracy_score
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from bertkit.errors import DataError, UsageError
from bertkit.recipe import load_recipe
from bertkit.workflows.compare import compare
from bertkit.workflows.finetune import finetune
from tests.conftest import rewrite_predictions, toy_rows, write_csv

FRESH = toy_rows(30, seed=9)


@pytest.fixture(scope="module")
def weeks(tmp_path_factory, trained):
    """Last week's run, one that was trained on added rows with a third label, and a file with the rows of both."""
    folder = tmp_path_factory.mktemp("weeks")
    shutil.copytree(trained, folder / "old")
    added = [{**row, "label": "odd" if number % 5 == 0 else row["label"]} for number, row in enumerate(toy_rows(40, 7))]
    write_csv(folder / "data" / "train.csv", added)
    write_csv(folder / "data" / "validation.csv", toy_rows(10, seed=8))
    changes = {
        "model": str(folder / "old"),
        "data.source": str(folder / "data"),
        "training.epochs": 1,
        "training.precision": "fp32",
    }
    finetune(load_recipe("classify", changes), output=folder / "new")
    odd = {**toy_rows(1, seed=10)[0], "label": "odd"}
    write_csv(folder / "new.csv", [*toy_rows(400, seed=3)[:50], *added, *FRESH, odd])
    return folder


@torch.no_grad()
def answer(folder, texts):
    """What transformers predicts, one text at a time."""
    model, tokenizer = (auto.from_pretrained(folder) for auto in (AutoModelForSequenceClassification, AutoTokenizer))
    logits = [model.eval()(**tokenizer(text, return_tensors="pt")).logits[0] for text in texts]
    return [model.config.id2label[int(row.argmax())] for row in logits]


def test_rows_that_neither_was_trained_on_are_scored_with_both(weeks):
    found = compare([weeks / "old", weeks / "new"], data=str(weeks / "new.csv"))
    known = {row["text"] for row in [*toy_rows(400, seed=3), *toy_rows(40, seed=7)]}
    rows = [row for row in FRESH if row["text"] not in known]
    texts, gold = [row["text"] for row in rows], [row["label"] for row in rows]
    texts.append(toy_rows(1, seed=10)[0]["text"])
    gold.append("odd")
    assert found.rows == len(texts) > 20
    assert found.split == str(weeks / "new.csv")
    for system in found.systems:
        expected = accuracy_score(gold, answer(weeks / system.name, texts))
        assert system.scores["accuracy"] == pytest.approx(expected), system.name
    assert found.notes[0].startswith(f"left out of {weeks / 'new.csv'}: {121 - len(texts)} of 121 rows")
    assert found.notes[1] == f"{weeks / 'old'} was not trained on odd: rows with these labels count as wrong."
    assert found.settings[0] == {"setting": "texts trained on", "old": "400", "new": "440, 400 of them old's"}


def test_slices_are_by_columns_of_the_file(weeks):
    rows = [{**row, "week": "23"} for row in FRESH]
    write_csv(weeks / "week.csv", rows)
    found = compare([weeks / "old", weeks / "new"], by="week", data=str(weeks / "week.csv"))
    assert [(one.value, one.rows) for one in found.changes["new"].slices if one.by == "week"] == [("23", found.rows)]


def test_what_has_no_rows_or_no_model_is_refused(weeks, tmp_path):
    runs = [weeks / "old", weeks / "new"]
    with pytest.raises(DataError, match=r"all 400 rows are training rows .*: --data FILE"):
        compare(runs, data=str(write_csv(tmp_path / "seen.csv", toy_rows(400, seed=3))))
    with pytest.raises(UsageError, match="a file of predictions has no model"):
        compare([weeks / "old", weeks / "new" / "predictions.jsonl"], data=str(weeks / "new.csv"))
    with pytest.raises(DataError, match="label 'other' is not one of the 3 labels"):
        compare(runs, data=str(write_csv(tmp_path / "more.csv", [{"text": "a film", "label": "other"}])))


def test_runs_of_other_rows_are_told_how_to_be_compared(weeks, run):
    shutil.copytree(weeks / "old", weeks / "copy")
    rewrite_predictions(weeks / "copy", (weeks / "copy" / "predictions.jsonl").read_text().splitlines()[1:])
    ended = run("compare", weeks / "old", weeks / "copy")
    assert ended.code == 3 and "`bertkit compare RUN RUN --data FILE`" in ended.last
    file = write_csv(weeks / "fresh.csv", FRESH)
    ended = run("compare", weeks / "old", weeks / "copy", "--data", file, "--json")
    assert (ended.code, json.loads(ended.out)["differences"]["copy"]["accuracy"]["difference"]) == (0, 0.0)
