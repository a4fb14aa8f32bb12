"""Few examples: rows read, the head that is fitted, and a run from file to folder."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression

import bertkit
from bertkit.errors import DataError, ModelError, RecipeError
from bertkit.modeling.sentence.folder import SentenceModules, write_modules
from bertkit.recipe import load_recipe
from bertkit.tasks import few_shot as task
from bertkit.tokens.features import TaskContext
from bertkit.workflows.evaluate import evaluate
from bertkit.workflows.finetune import finetune
from bertkit.workflows.predict import predict
from tests.conftest import make_tokenizer, toy_rows, write_jsonl
from tests.kills import slow_unless

TEXTS = ["a good film", "this is bad", "so good"]


def setup_of(**changes) -> TaskContext:
    return TaskContext(load_recipe("few-shot", changes), make_tokenizer(), ("bad", "good"))


@pytest.mark.parametrize(
    ("label", "changes", "error", "message"),
    [
        (["good", "bad"], {}, DataError, "a list of labels .* - use the recipe `classify` with --set"),
        (" ", {}, DataError, "no label"),
        ("good", {"training.label_smoothing": 0.1}, RecipeError, "label_smoothing is for the loss of a classifier"),
    ],
)
def test_rows_and_settings_that_are_refused(label, changes, error, message):
    with pytest.raises(error, match=message):
        task.read({"text": "a", "label": label}, setup_of(**changes).recipe)


def test_a_pair_is_read_together():
    context = setup_of()
    (feature,) = task.encode([{"text": "good film", "text_pair": "bad film", "label": "good"}], context)
    assert feature["input_ids"] == [context.tokenizer("good film", "bad film")["input_ids"]]
    assert feature["labels"] == 1
    batch = task.collator(context)([feature, feature])
    assert batch["input_ids"].shape == (2, 1, 7) and batch["labels"].tolist() == [1, 1]


def train(model, folder, **more):
    write_jsonl(folder / "train.jsonl", toy_rows(60, seed=1))
    write_jsonl(folder / "validation.jsonl", toy_rows(30, seed=2))
    changes = {
        "model": str(model),
        "data.source": str(folder),
        "data.train_rows_per_label": 8,
        "training.precision": "fp32",
    }
    changes |= {"training.steps": 12, "training.evaluate_every": 8, "training.learning_rate": 3e-3, **more}
    (result,) = finetune(load_recipe("few-shot", changes), output=folder / "run")
    return result, changes


@pytest.fixture(scope="module")
def trained_few(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("few")
    return folder, *train(tiny_model, folder)


def test_a_run_predicts_as_logistic_regression_on_the_vectors_of_its_training_rows(trained_few):
    folder, result, changes = trained_few
    recipe = load_recipe("few-shot", {**changes, "model": str(folder / "run")})
    assert json.loads((folder / "run" / "run.json").read_text())["rows"] == {"train": 16, "validation": 30}
    assert evaluate(recipe)[0].scores == result.scores
    from bertkit.workflows.finetune_data import read_finetune_data

    rows = read_finetune_data(load_recipe("few-shot", changes), folder / "other").splits["train"].rows
    embedder = bertkit.Embedder(str(folder / "run"), precision="fp32")
    vectors, new = embedder.encode([row["text"] for row in rows]), embedder.encode(TEXTS)
    center = vectors.mean(axis=0)
    length = np.sqrt(np.mean(np.sum((vectors - center) ** 2, axis=1)))
    expected = LogisticRegression(max_iter=1000).fit((vectors - center) / length, [row["label"] for row in rows])
    records = [record for text in TEXTS for record in predict(recipe, row={"text": text})]
    found = [list(record["probabilities"].values()) for record in records]
    np.testing.assert_allclose(found, expected.predict_proba((new - center) / length), atol=1e-3)


@pytest.mark.parametrize("method", slow_unless(["frozen"], ["frozen", "contrastive"]))
def test_class_weights_are_those_of_logistic_regression(method, tiny_model, tmp_path):
    rows = [row for row in toy_rows(60, seed=1) if row["label"] == "good"][:20]
    rows += [row for row in toy_rows(60, seed=1) if row["label"] == "bad"][:4]
    write_jsonl(tmp_path / "train.jsonl", rows)
    write_jsonl(tmp_path / "validation.jsonl", toy_rows(30, seed=2))
    changes = {"model": str(tiny_model), "data.source": str(tmp_path), "training.precision": "fp32"}
    changes |= {"training.steps": 2, "options.method": method, "training.class_weights": "balanced"}
    finetune(load_recipe("few-shot", changes), output=tmp_path / "run")
    vectors = bertkit.Embedder(str(tmp_path / "run"), precision="fp32").encode([row["text"] for row in rows])
    wide = vectors - vectors.mean(axis=0)
    wide /= np.sqrt(np.mean(np.sum(wide**2, axis=1)))
    expected = LogisticRegression(max_iter=1000, class_weight="balanced").fit(wide, [row["label"] for row in rows])
    recipe = load_recipe("few-shot", {**changes, "model": str(tmp_path / "run")})
    found = [next(iter(predict(recipe, row={"text": row["text"]})))["probabilities"]["good"] for row in rows[::4]]
    np.testing.assert_allclose(found, expected.predict_proba(wide[::4])[:, 1], atol=1e-3)


def test_the_card_and_the_folder_say_what_they_are(trained_few):
    folder, *_, changes = trained_few
    card = (folder / "run" / "README.md").read_text()
    assert "pipeline_tag: text-classification" in card and "SentenceTransformer(" in card
    with pytest.raises(ModelError, match="no trained head for this task"):
        evaluate(load_recipe("classify", {"model": str(folder / "run"), "data.source": changes["data.source"]}))


def test_an_encoder_for_vectors_alone_is_not_scored(tiny_model, trained_few, tmp_path):
    *_, changes = trained_few
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    write_modules(folder, SentenceModules(), width=32)
    with pytest.raises(ModelError, match="no trained head for this task"):
        evaluate(load_recipe("few-shot", {**changes, "model": str(folder)}))


def test_a_frozen_encoder_keeps_its_weights(tiny_model, tmp_path):
    train(tiny_model, tmp_path, **{"options.method": "frozen"})
    before, after = load_file(tiny_model / "model.safetensors"), load_file(tmp_path / "run" / "model.safetensors")
    assert all(np.array_equal(values, after[f"bert.{name}"]) for name, values in before.items())
    assert after["logistic.weight"].abs().sum() > 0


@pytest.mark.slow
@pytest.mark.parametrize("pair", [None, "this is so bad"])
def test_sentence_transformers_makes_the_vectors_that_the_head_reads(trained_few, pair):
    from sentence_transformers import SentenceTransformer

    folder, *_, changes = trained_few
    given = [(text, pair) for text in TEXTS] if pair else TEXTS
    vectors = SentenceTransformer(str(folder / "run"), device="cpu").encode(given)
    saved = load_file(folder / "run" / "model.safetensors")
    logits = vectors @ saved["logistic.weight"].numpy().T + saved["logistic.bias"].numpy()
    columns = {"text": "text", "text_pair": "text_pair", "label": "label"} if pair else changes.get("data.columns", {})
    recipe = load_recipe("few-shot", {"model": str(folder / "run"), "data.columns": columns})
    records = [
        record
        for text in TEXTS
        for record in predict(recipe, row={"text": text, **({"text_pair": pair} if pair else {})})
    ]
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose([list(r["probabilities"].values()) for r in records], probabilities, atol=1e-5)
