"""What a finished run leaves: a plain checkpoint, predictions, results, a recipe that runs again."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import CommitOperationAdd, HfApi
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from bertkit.hardware.precision import ComputeConfig
from bertkit.recipe import load_recipe
from bertkit.training.run import FitResult
from bertkit.workflows import finetune_results
from bertkit.workflows.finetune_results import _find_warnings, _suggest_changes
from tests.kills import read_lines


def test_the_run_folder_is_a_plain_checkpoint_with_real_names(trained):
    model = AutoModelForSequenceClassification.from_pretrained(trained)
    tokenizer = AutoTokenizer.from_pretrained(trained)
    assert model.config.id2label == {0: "bad", 1: "good"}
    answers = [
        model.config.id2label[int(model(**tokenizer(text, return_tensors="pt")).logits.argmax())]
        for text in ("the film was superb", "a very dull book")
    ]
    assert answers == ["good", "bad"]


def test_the_run_folder_holds_all_it_should(trained):
    names = {file.name for file in trained.iterdir()}
    assert names >= {
        *("config.json", "model.safetensors", "tokenizer.json", "recipe.yaml", "run.json", "metrics.jsonl"),
        *("predictions.jsonl", "all_results.json", "train_results.json", "eval_results.json", "trainer_state.json"),
        *("README.md", "report.html"),
    }
    record = json.loads((trained / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["identity"]["recipe"]["training"]["seed"] == 42
    assert set(record["identity"]["data"]) == {"train", "validation"}
    assert len(record["identity"]["model"]) == 64
    assert record["machine"]["threads"] >= 1
    assert record["versions"]["transformers"]
    assert 10**7 < record["peak_memory_bytes"] < 10**11
    report = (trained / "report.html").read_text()
    assert f"<dt>Peak memory</dt><dd>{record['peak_memory_bytes'] / 1e6:,.0f} MB</dd>" in report
    assert f"<dt>Device</dt><dd>{ComputeConfig(**record['machine']).summary}</dd>" in report
    assert sum("loss" in entry for entry in read_lines(trained / "metrics.jsonl")) >= 30
    results = json.loads((trained / "all_results.json").read_text())
    assert results["eval_accuracy"] == record["results"][0]["scores"]["accuracy"]
    assert results["train_samples"] == 400
    assert results["eval_samples"] == 60
    state = json.loads((trained / "trainer_state.json").read_text())
    assert state["global_step"] == record["steps"] == 100
    best = record["best_step"]
    kept = {folder.name for folder in trained.glob("checkpoint-*")}
    assert kept == {f"checkpoint-{best}", "checkpoint-100"}
    best_scores = [e["eval_f1_macro"] for e in read_lines(trained / "metrics.jsonl") if "eval_f1_macro" in e]
    assert max(best_scores) == record["results"][0]["scores"]["f1_macro"]
    predictions = read_lines(trained / "predictions.jsonl")
    assert [p["id"] for p in predictions] == list(range(60))
    assert sum(p["prediction"] == p["label"] for p in predictions) / 60 == results["eval_accuracy"]
    assert all(sum(p["probabilities"].values()) == pytest.approx(1) for p in predictions)
    assert (trained / "model.safetensors").stat().st_mode & 0o444 == 0o444


def test_the_resolved_recipe_runs_again(trained, run):
    printed = json.loads(run("recipes", "show", trained / "recipe.yaml", "--json").out)["recipe"]
    identity = json.loads((trained / "run.json").read_text())["identity"]["recipe"]
    kept = {"keep_all_checkpoints": False, "keep_optimizer": False, "report_to": []}
    assert printed["training"] == {**identity["training"], **kept}
    assert printed["data"]["columns"] == identity["data"]["columns"]


@pytest.mark.parametrize(
    ("changes", "best_step", "missing", "remedy"),
    [
        ({}, 30, [], "another --learning-rate than 2e-05, then more rows"),
        ({}, 900, [], "--epochs 6 (f1_macro was best at the last evaluation), then more rows"),
        ({"training.steps": 900}, 900, [], "--set training.steps=1800 (f1_macro was best at the last evaluation), th"),
        ({}, 30, ["b", "c"], "--set training.class_weights=balanced (never predicted: b, c), then another"),
        ({"training.class_weights": "balanced"}, 30, ["b"], "another --learning-rate than 2e-05, then more rows"),
        ({"distillation.student_layers": 1}, 30, [], "another --learning-rate than 2e-05, then more --student-layers"),
    ],
)
def test_the_remedy_names_what_helps_most_first(changes, best_step, missing, remedy):
    numbers = {"training.epochs": 3, "training.learning_rate": 2e-5}
    recipe = load_recipe("classify", {**numbers, **changes})
    twice = [{"step": step, "eval_loss": 1.0} for step in (450, 900)]
    fit_result = FitResult(twice, None, None, best_step, steps=900, planned_steps=900, epochs=3.0)
    assert _suggest_changes(recipe, fit_result, missing).startswith(f" Try {remedy}")
    once = replace(fit_result, history=twice[1:])
    assert not re.search("last evaluation|--epochs|training.steps", _suggest_changes(recipe, once, missing))


def test_of_skewed_labels_weights_are_the_first_remedy_though_each_label_is_given():
    fit_result = FitResult([], None, None, 900, steps=900, planned_steps=900, epochs=3.0)
    remedy = _suggest_changes(load_recipe("classify", {"training.epochs": 3}), fit_result, [], "good")
    assert remedy.startswith(
        " Try --set training.class_weights=balanced (most training rows have the label good), then more"
    )


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"training.epochs": 3}, "--epochs 20"),
        ({"training.steps": 36, "training.epochs": 3}, "--set training.steps=240"),
    ],
)
def test_of_few_steps_more_of_them_are_the_first_remedy(changes, remedy):
    fit_result = FitResult([], None, None, 36, steps=36, planned_steps=36, epochs=3.0)
    text = _suggest_changes(load_recipe("classify", changes), fit_result, ["b"])
    weights = "--set training.class_weights=balanced (never predicted: b)"
    assert text == f" Try {remedy} (too few steps so far: 36), then {weights}, then more rows."


def test_a_run_that_stops_early_says_so():
    recipe = load_recipe("classify", {"training.patience": 4})
    stopped = FitResult([], None, None, best_step=20, steps=40, planned_steps=60, epochs=2.0)
    assert _find_warnings(SimpleNamespace(recipe=recipe), stopped) == [
        "Training stopped early, after 40 of 60 steps: f1_macro was no better in 4 evaluations."
    ]


KEPT_HERE = {".lock", ".gitignore", "baselines.json", "predictions.jsonl", "report.html"}
TO_PUBLISH = {
    *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md", "recipe.yaml"),
    *("run.json", "metrics.jsonl", "all_results.json", "eval_results.json", "train_results.json", "trainer_state.json"),
    "training_rows.npy",
}


def names_in(run: Path) -> list[str]:
    return [str(file.relative_to(run)) for file in run.rglob("*") if file.is_file()]


def test_an_upload_sends_no_rows_and_nothing_that_only_a_resume_needs(trained, monkeypatch, tmp_path):
    assert {name for name in names_in(trained) if "/" not in name} == TO_PUBLISH | KEPT_HERE
    additions = [CommitOperationAdd(name, trained / name) for name in names_in(trained)]

    def answer(method, url, *, json, **_):
        """Answer as the hub does: it asks git which files its ignore file names."""
        subprocess.run(["git", "init", "-q", tmp_path], check=True)
        (tmp_path / ".gitignore").write_text(json["gitIgnore"])
        paths = [file["path"] for file in json["files"]]
        asked = subprocess.run(["git", "check-ignore", *paths], cwd=tmp_path, capture_output=True, text=True)
        ignored = asked.stdout.split()
        files = [{"path": path, "uploadMode": "regular", "shouldIgnore": path in ignored} for path in paths]
        return SimpleNamespace(json=lambda: {"files": files})

    monkeypatch.setattr("huggingface_hub._commit_api.http_backoff", answer)
    monkeypatch.setattr("huggingface_hub._commit_api.hf_raise_for_status", lambda response: None)
    HfApi(token="x").preupload_lfs_files("me/x", additions)
    assert {addition.path_in_repo for addition in additions if not addition._should_ignore} == TO_PUBLISH


def test_a_report_of_many_rows_is_drawn_from_some_of_them_and_says_so(run, tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(finetune_results, "_MAX_EXAMPLES", 7)
    options = ["--data", "demo", "--limit", "40", "--set", "training.steps=1", "--output", tmp_path / "run"]
    assert run("finetune", "cola", "--model", tiny_model, *options).code == 0
    assert (
        "40 rows; pictures and row tables show 7 of them, evenly spaced" in (tmp_path / "run/report.html").read_text()
    )
    assert len(read_lines(tmp_path / "run" / "predictions.jsonl")) == 40
