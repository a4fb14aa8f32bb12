"""Exported models: the folder is whole or not there, says what the run says, and needs no torch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bertkit.errors import UsageError
from bertkit.evaluation.checkpoint import open_trained
from bertkit.recipe import load_recipe
from bertkit.workflows.export import export, find_split, write_supporting_files
from tests.conftest import toy_rows, write_csv
from tests.runtime.hand_made import write_exported

WITHOUT = {"torch", "transformers", "datasets"}
TEXT = "the movie was good"


@pytest.fixture
def exported(tmp_path):
    folder = tmp_path / "exported"
    return folder, write_exported(folder, ("bad", "good"))


def test_an_exported_model_predicts_without_torch(exported, light_zygote, tmp_path):
    folder, table = exported
    arguments = ["predict", "classify", "--model", folder, "--text", TEXT, "-o", "out.jsonl"]
    assert light_zygote.imports(tmp_path, list(map(str, arguments))) & WITHOUT == set()
    (line,) = (tmp_path / "out.jsonl").read_text().splitlines()
    from transformers import AutoTokenizer

    logits = table[AutoTokenizer.from_pretrained(folder)(TEXT)["input_ids"]].sum(axis=0)
    expected = np.exp(logits) / np.exp(logits).sum()
    assert list(json.loads(line)["probabilities"].values()) == pytest.approx(expected.tolist(), abs=1e-5)


def test_an_exported_model_of_inference_takes_labels_in_words(light_zygote, run, tmp_path):
    table = write_exported(tmp_path / "exported", ("contradiction", "entailment"))
    command = ["predict", "classify", "--zero-shot", "--model", "exported", "--text", TEXT, "-o", "out.jsonl"]
    command += ["--set", "labels=[bad, good]", "--set", "options.hypothesis_template=this is {}"]
    assert light_zygote.imports(tmp_path, command) & WITHOUT == set()
    (line,) = (tmp_path / "out.jsonl").read_text().splitlines()
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "exported")
    logits = [table[tokenizer(TEXT, f"this is {name}")["input_ids"]].sum(axis=0)[1] for name in ("bad", "good")]
    expected = np.exp(logits) / np.exp(logits).sum()
    assert list(json.loads(line)["probabilities"].values()) == pytest.approx(expected.tolist(), abs=1e-5)

    write_exported(tmp_path / "other", ("bad", "good"))
    ended = run("predict", "classify", "--zero-shot", "--model", tmp_path / "other", "--text", TEXT, *command[-4:])
    assert (ended.code, "needs a model with a label 'entailment' (there are: bad, good)" in ended.last) == (4, True)


def test_another_task_or_head_than_the_exported_one_is_refused(exported, run):
    folder, _ = exported
    ended = run("predict", "squad", "--model", folder, "--row", "question=Who?", "--row", "context=I.")
    what = "the model was exported for text_classification, but the recipe squad is for question_answering"
    assert (ended.code, ended.last.startswith(f"error: {what} ")) == (4, True), ended.last
    ended = run("predict", "classify", "--model", folder, "--text", TEXT, "--set", "options.multi_label=true")
    assert (ended.code, "the model was exported with options.multi_label None" in ended.last) == (4, True), ended.last


def test_an_exported_model_is_not_trained_or_exported_again(exported, run, tmp_path):
    folder, _ = exported
    rows = write_csv(tmp_path / "rows.csv", toy_rows(20, seed=1))
    for command in (("finetune", "classify", "--model", folder, "--data", rows), ("export", folder, "-o", "again")):
        ended = run(*command)
        assert (ended.code, "has no weights for torch" in ended.last) == (4, True), ended.last


def test_the_recipe_is_that_of_the_run_or_named(trained):
    checkpoint = next(trained.glob("checkpoint-*"))
    for folder in (trained, checkpoint):
        recipe = open_trained(str(folder), None, {"data.source": "rows.csv", "data.limit": 5}).recipe
        assert (recipe.task, recipe.model) == ("text_classification", str(folder))
        assert (recipe.data.source, recipe.data.limit) == ("rows.csv", 5)
    of_run, named = (open_trained(str(trained), name).recipe.data.source for name in (None, "classify"))
    assert of_run and of_run != named
    with pytest.raises(UsageError, match=r"so its task is unknown .* - name a run folder, or add --recipe RECIPE"):
        open_trained("demo")


def test_an_output_that_exists_is_not_replaced(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(UsageError, match="exists already"):
        export("demo", tmp_path)


def test_rows_that_are_not_at_hand_are_a_note_unless_they_were_named(trained, tmp_path):
    saved = open_trained(str(trained), None, {"data.source": str(tmp_path / "none.csv")})
    split, notes = find_split(saved, required=False)
    assert split is None and notes[0].startswith("No scores: ")
    with pytest.raises(Exception, match=r"none\.csv"):
        find_split(saved, required=True)


def test_the_rows_that_score_an_export_do_not_limit_what_it_is_used_on(trained, tmp_path):
    saved = open_trained(str(trained), None, {"data.limit": 5})
    write_supporting_files(tmp_path, saved, saved.load())
    assert load_recipe(str(tmp_path / "recipe.yaml")).data.limit is None
    of_run = {"identity": {"recipe": {"data": {"limit": 300}}}}
    assert replace(saved, record=of_run).restore_limit(saved.recipe).data.limit == 300  # it was trained so


def check_layout(file, output, facts) -> None:
    """Check the names of a graph of ONNX that Optimum and transformers.js look for, and what it says of itself."""
    graph = pytest.importorskip("onnx").load(file)
    shapes = {
        value.name: [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
        for value in (*graph.graph.input, *graph.graph.output)
    }
    assert shapes.pop("logits") == output
    assert set(shapes) <= {"input_ids", "attention_mask", "token_type_ids"} and shapes
    assert all(axes == ["batch_size", "sequence_length"] for axes in shapes.values())
    assert facts.items() <= {fact.key: fact.value for fact in graph.metadata_props}.items()
    assert [each.name for each in file.parent.iterdir()] == ["model.onnx"]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_an_exported_run_says_what_the_run_says(trained, run, tmp_path, backend, monkeypatch):
    rows = write_csv(tmp_path / "rows.csv", toy_rows(60, seed=4))
    monkeypatch.setenv("BERTKIT_DEVICE", "xpu")  # a graph is made and tried on the CPU, wherever models are trained
    ended = run("export", trained, "--to", backend, "-o", "out", "--data", rows, "--limit", 70, "--json")
    assert ended.code == 0, ended.err
    monkeypatch.delenv("BERTKIT_DEVICE")
    if backend == "onnx":
        facts = {"recipe": "classify", "labels": '["bad", "good"]'}
        check_layout(Path("out/onnx/model.onnx"), ["batch_size", 2], facts)
    parity = json.loads(ended.out)["parity"]
    assert parity["largest"] < 2e-6 and parity["rows"] == 60 and parity["scores"]["accuracy"]["difference"] == 0
    assert load_recipe("out/recipe.yaml").data.limit is None
    assert parity["latency"] and json.loads(Path("out/parity.json").read_text()) == parity
    precise = ["--set", "training.precision=fp32"]
    theirs, ours = (run("predict", "classify", rows, "--model", one, *precise).out for one in (trained, "out"))
    for one, other in zip(map(json.loads, theirs.splitlines()), map(json.loads, ours.splitlines()), strict=True):
        assert other.pop("probabilities") == pytest.approx(one.pop("probabilities"), abs=1e-5)
        assert one == other
    ended = run("eval", "classify", "--model", "out", "--data", rows, "--json")
    assert json.loads(ended.out)["results"][0]["scores"]["accuracy"] == parity["scores"]["accuracy"]["after"]
    ended = run("calibrate", "classify", "--model", "out", "--data", rows, "--json")
    assert ended.code == 0, ended.err
    assert "calibrated on" in run("eval", "classify", "--model", "out", "--data", rows).err
