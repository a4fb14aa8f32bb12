"""A checkpoint to score: its labels are matched by name, and an unfinished or foreign one is refused or explained."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from bertkit.evaluation.checkpoint import CheckpointInfo, open_trained
from bertkit.recipe import load_recipe
from bertkit.runtime.tokenizer import PlainTokenizer
from bertkit.storage import runs
from bertkit.tasks import load_task
from tests.conftest import toy_rows, write_csv
from tests.workflows.test_evaluate import scores

COLA = ["--set", "labels=[bad, good]", "--set", "data.columns={text: text, label: label}"]


@pytest.fixture
def rows(tmp_path) -> Path:
    return write_csv(tmp_path / "rows.csv", toy_rows(60, seed=4))


@pytest.fixture
def foreign(trained, tmp_path) -> Path:
    """The trained checkpoint as somebody else would have saved it: no record, no names for labels."""
    folder = tmp_path / "foreign"
    model = AutoModelForSequenceClassification.from_pretrained(trained)
    model.config.id2label = {0: "LABEL_0", 1: "LABEL_1"}
    model.config.label2id = {"LABEL_0": 0, "LABEL_1": 1}
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(trained).save_pretrained(folder)
    return folder


def test_labels_are_matched_by_name_whatever_their_order(run, trained, rows):
    options = ["--data", rows, "--json", "--set", "labels=[GOOD, BAD]"]
    write_csv(rows, [{**row, "label": row["label"].upper()} for row in toy_rows(60, seed=4)])
    assert scores(run("eval", "classify", "--model", trained, *options))["scores"]["accuracy"] > 0.9


def test_names_that_cannot_be_matched_are_refused_with_both_lists(run, foreign, rows):
    ended = run("eval", "classify", "--model", foreign, "--data", rows, *COLA)
    assert ended.code == 4
    assert ended.last == (
        "error: the checkpoint's labels (LABEL_0, LABEL_1) are not the recipe's (bad, good) - if you know what its "
        "outputs mean, list them in this order: --set 'model_labels=[bad, good]'"
    )


@pytest.mark.parametrize(("label", "names"), [("GOOD", "..."), ("good", "bad, good")])
def test_labels_of_rows_that_nameless_outputs_do_not_have_have_a_remedy(run, foreign, rows, label, names):
    write_csv(rows, [{"text": "x", "label": "bad"}, {"text": "y", "label": "good"}, {"text": "z", "label": label}])
    ended = run("eval", "classify", "--model", foreign, "--data", rows, "--split", "all")
    assert ended.code == 3
    assert "label 'bad' is not one of the 2 labels (0 LABEL_0, 1 LABEL_1)" in ended.last
    remedy = "if you know what its 2 outputs mean, list them in this order"
    assert ended.last.endswith(f"{remedy}: --set 'model_labels=[{names}]'")


def test_a_foreign_checkpoint_is_scored_once_its_outputs_have_names(run, foreign, trained, rows):
    named = run(
        "eval", "classify", "--model", foreign, "--data", rows, *COLA, "--set", "model_labels=[bad, good]", "--json"
    )
    reversed_ = run(
        "eval", "classify", "--model", foreign, "--data", rows, *COLA, "--set", "model_labels=[good, bad]", "--json"
    )
    assert scores(named)["scores"]["accuracy"] > 0.9
    assert scores(reversed_)["scores"]["accuracy"] < 0.1


def test_an_unfinished_run_is_not_scored(run, trained, tmp_path, rows):
    broken = Path(shutil.copytree(trained, tmp_path / "broken"))
    runs.write_record(broken, {**runs.read_record(broken), "status": "stopped"})
    ended = run("eval", "classify", "--model", broken, "--data", rows)
    assert ended.code == 4
    assert ended.last.startswith("error: the run is not finished (stopped)")


@pytest.mark.parametrize(("dtype", "precision"), [("float32", "fp32"), (None, "fp32"), ("bfloat16", "auto")])
def test_without_a_run_a_model_computes_in_the_precision_of_its_weights(dtype, precision, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("bertkit.evaluation.checkpoint.detect_machine", lambda *given: asked.append(given[0]))
    monkeypatch.setattr("bertkit.evaluation.checkpoint.read_config", lambda _: {"model_type": "bert", "dtype": dtype})
    recipe = load_recipe("classify", {"model": str(tmp_path)})
    CheckpointInfo(recipe, load_task(recipe), tmp_path, ("a", "b"), {})._detect_hardware()
    assert asked == [precision]


def test_the_tokenizer_of_a_run_splits_as_that_of_transformers_which_reads_older_runs(trained):
    rows = [{"text": "a good [SEP] film"}, {"text": "bad, " * 200}]
    saved = open_trained(str(trained))
    record = {name: value for name, value in saved.record.items() if name != "tokenizer"}
    plain, theirs = (one.load(inference=True).context for one in (saved, replace(saved, record=record)))
    assert isinstance(plain.tokenizer, PlainTokenizer)
    assert not isinstance(theirs.tokenizer, PlainTokenizer)
    assert saved.task.encode(rows, plain) == saved.task.encode(rows, theirs)
