"""Scored pairs: rows read, vectors compared, and a run from file to folder."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

import bertkit
from bertkit.errors import DataError, ModelError
from bertkit.recipe import load_recipe
from bertkit.tasks import load_task
from bertkit.tasks import similarity as task
from bertkit.tokens.features import TaskContext
from bertkit.workflows.evaluate import evaluate
from bertkit.workflows.finetune import finetune
from bertkit.workflows.predict import predict
from tests.conftest import make_tokenizer, toy_rows, write_jsonl


def setup_of(**changes) -> TaskContext:
    recipe = load_recipe("similarity", changes)
    load_task(recipe)
    return TaskContext(recipe, make_tokenizer(), ())


def make_pairs(count: int, seed: int) -> list[dict[str, object]]:
    """Pairs of toy sentences: 5 where both are good or both are bad, else 0."""
    rng, rows = random.Random(seed), toy_rows(2 * count, seed)
    rng.shuffle(rows)
    return [
        {"sentence1": one["text"], "sentence2": two["text"], "label": 5.0 if one["label"] == two["label"] else 0.0}
        for one, two in zip(rows[::2], rows[1::2], strict=True)
    ]


def test_labels_are_scaled_by_their_range():
    rows = [{"text": "a", "text_pair": "b", "label": label} for label in (0.0, 2.5, 5.0)]
    assert [feature["labels"] for feature in task.encode(rows, setup_of())] == [0.0, 0.5, 1.0]


def test_a_label_that_is_no_cosine_is_refused_where_cosines_are_learned():
    row = {"text": "a", "text_pair": "b", "label": "4"}
    changes = {"options.loss": "cosine", "data.label_range": None}
    with pytest.raises(DataError, match="label 4 is outside -1 to 1"):
        task.read(row, load_recipe("similarity", changes))
    assert task.read(row, load_recipe("similarity", {"data.label_range": None}))["label"] == 4.0


def test_scores_are_those_of_scipy():
    rng = np.random.default_rng(0)
    vectors, labels = rng.normal(size=(30, 2, 8)), rng.random(30)
    rows = [{"text": "a", "text_pair": "b", "label": label} for label in labels]
    predictions = task.decode([{"vectors": pair} for pair in vectors], [], rows, setup_of())
    lengths = np.linalg.norm(vectors, axis=-1)
    cosines = (vectors[:, 0] * vectors[:, 1]).sum(axis=-1) / lengths.prod(axis=-1)
    np.testing.assert_allclose([record["prediction"] for record in predictions], cosines)
    expected = {"spearmanr": spearmanr(labels, cosines).statistic, "pearsonr": pearsonr(labels, cosines).statistic}
    assert task.score(task.compare(predictions, rows, setup_of()), setup_of()) == pytest.approx(expected)


def test_each_trained_dimension_has_its_scores():
    vectors = np.random.default_rng(0).normal(size=(9, 2, 8))
    rows = [{"text": "a", "text_pair": "b", "label": float(number)} for number in range(9)]
    context = setup_of(**{"options.dimensions": [2, 8]})
    predictions = task.decode([{"vectors": pair} for pair in vectors], [], rows, context)
    table = task.details(predictions, rows, context).tables["by dimension"]
    assert [line["dimension"] for line in table] == ["8", "2"]
    assert table[0]["spearmanr"] == task.score(task.compare(predictions, rows, context), context)["spearmanr"]
    short = [pair[0, :2] @ pair[1, :2] / np.prod(np.linalg.norm(pair[:, :2], axis=1)) for pair in vectors]
    assert table[1]["spearmanr"] == pytest.approx(spearmanr(range(9), short).statistic)


def train(model, folder, rows: int, epochs: int):
    write_jsonl(folder / "train.jsonl", make_pairs(rows, seed=1))
    write_jsonl(folder / "validation.jsonl", make_pairs(40, seed=2))
    changes = {"model": str(model), "data.source": str(folder), "training.precision": "fp32"}
    changes |= {"training.learning_rate": 3e-3, "training.epochs": epochs, "options.normalize": True}
    (result,) = finetune(load_recipe("similarity", changes), output=folder / "run")
    return folder, result, changes


@pytest.fixture(scope="module")
def trained_pairs(tiny_model, tmp_path_factory):
    return train(tiny_model, tmp_path_factory.mktemp("pairs"), rows=64, epochs=1)


@pytest.mark.slow
def test_a_run_learns(tiny_model, tmp_path):
    _, result, _ = train(tiny_model, tmp_path, rows=1000, epochs=10)
    assert result.scores["spearmanr"] > 0.7


@pytest.mark.slow
def test_the_folder_of_a_run_scores_predicts_and_embeds_alike(trained_pairs):
    folder, result, changes = trained_pairs
    recipe = load_recipe("similarity", {**changes, "model": str(folder / "run")})
    assert evaluate(recipe)[0].scores == result.scores
    row = {"text": "a good film", "text_pair": "this is bad"}
    (record,) = predict(recipe, row=row)
    vectors = bertkit.Embedder(str(folder / "run"), precision="fp32").encode(list(row.values()))
    assert record["prediction"] == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-6)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1)
    card = (folder / "run" / "README.md").read_text()
    assert "library_name: sentence-transformers" in card and "SentenceTransformer(" in card
    assert json.loads((folder / "run" / "sentence_bert_config.json").read_text())["max_seq_length"] == 64


def test_a_checkpoint_makes_vectors_too(trained_pairs):
    folder, *_ = trained_pairs
    checkpoint = max((folder / "run").glob("checkpoint-*"))
    assert bertkit.Embedder(str(checkpoint), precision="fp32").encode(["a good film"]).shape == (1, 32)


def test_a_plain_encoder_or_a_classifier_is_not_scored(tiny_model, trained_pairs):
    *_, changes = trained_pairs
    with pytest.raises(ModelError, match="no trained head for this task"):
        evaluate(load_recipe("similarity", {**changes, "model": str(tiny_model)}))
    with pytest.raises(ModelError, match="not trained for sentence vectors"):
        task.load_model(tiny_model, setup_of(), new_head=False)


def test_vectors_are_no_teachers(trained_pairs):
    folder, _, changes = trained_pairs
    distillation = {"distillation.teachers": [str(folder / "run")], "distillation.student_layers": 1}
    with pytest.raises(ModelError, match="makes vectors, not logits"):
        finetune(load_recipe("similarity", {**changes, **distillation}), output=folder / "student")


@pytest.mark.slow
def test_sentence_transformers_makes_the_same_vectors(trained_pairs):
    from sentence_transformers import SentenceTransformer

    folder, *_ = trained_pairs
    texts = ["a good film", "this is bad", "so " * 100]
    theirs = SentenceTransformer(str(folder / "run"), device="cpu").encode(texts)
    np.testing.assert_allclose(bertkit.Embedder(str(folder / "run"), precision="fp32").encode(texts), theirs, atol=1e-6)
