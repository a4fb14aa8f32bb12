"""Labels described in words, beside transformers' pipeline and cosines of vectors; what is refused."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from transformers import BertForSequenceClassification, pipeline

import bertkit
from bertkit.errors import ModelError, RecipeError
from bertkit.modeling.sentence.folder import SentenceModules, write_modules
from bertkit.recipe import load_recipe
from bertkit.tasks import zero_shot as task
from bertkit.tokens.features import TaskContext
from bertkit.workflows.evaluate import evaluate
from bertkit.workflows.predict import predict
from tests.conftest import make_tokenizer, toy_rows, write_jsonl

ZERO = {"task": "zero_shot", "labels": ["bad", "good"], "training.precision": "fp32"}
TEMPLATE = {"options.hypothesis_template": "this film is {}"}


@pytest.fixture(scope="module")
def inference_model(tiny_model, tmp_path_factory):
    """A random classifier of three classes, one of which is entailment."""
    folder = tmp_path_factory.mktemp("nli")
    torch.manual_seed(2)
    names = dict(enumerate(["contradiction", "ENTAILMENT", "neutral"]))
    ids = {name: number for number, name in names.items()}
    model = BertForSequenceClassification.from_pretrained(tiny_model, id2label=names, label2id=ids)
    torch.nn.init.normal_(model.classifier.weight)
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def vector_model(tiny_model, tmp_path_factory):
    folder = shutil.copytree(tiny_model, tmp_path_factory.mktemp("vectors") / "model")
    write_modules(folder, SentenceModules(max_length=32), width=32)
    return folder


def predicted(model, rows, **changes):
    recipe = load_recipe("classify", {**ZERO, **TEMPLATE, "model": str(model), **changes})
    records = [record for row in rows for record in predict(recipe, row=row)]
    return records, [list(record["probabilities"].values()) for record in records]


def test_inference_is_that_of_the_pipeline_of_transformers(inference_model):
    texts = ["so good film", "this is bad", "good"]
    records, found = predicted(inference_model, [{"text": text} for text in texts])
    classify = pipeline("zero-shot-classification", model=str(inference_model), device="cpu")
    for text, record, probabilities in zip(texts, records, found, strict=True):
        expected = classify(text, candidate_labels=["bad", "good"], hypothesis_template="this film is {}")
        assert record["prediction"] == expected["labels"][0]
        by_label = dict(zip(expected["labels"], expected["scores"], strict=True))
        np.testing.assert_allclose(probabilities, [by_label["bad"], by_label["good"]], atol=1e-5)


def test_vectors_choose_the_nearest_description(vector_model):
    own = {"options.descriptions": {"good": "so good"}}
    texts = ["a good film", "bad"]
    _, found = predicted(vector_model, [{"text": text} for text in texts], **own)
    embedder = bertkit.Embedder(str(vector_model), precision="fp32", normalize=True)
    cosines = embedder.encode(texts) @ embedder.encode(["this film is bad", "so good"]).T
    expected = np.exp(20 * cosines) / np.exp(20 * cosines).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_pair_is_read_as_one_text(inference_model):
    _, found = predicted(inference_model, [{"text": "good film", "text_pair": "bad"}, {"text": "good film bad"}])
    assert found[0] == found[1]


def test_eval_scores_with_intervals(inference_model, tmp_path):
    file = write_jsonl(tmp_path / "rows.jsonl", toy_rows(20, seed=1))
    changes = {**ZERO, "model": str(inference_model), "data.source": str(file), "metrics": ["accuracy"]}
    (result,) = evaluate(load_recipe("classify", {**changes, "best_metric": "accuracy"}))
    assert result.rows == 20 and result.intervals["accuracy"] is not None


def test_labels_that_are_numbers_have_descriptions_too(vector_model):
    own = {"labels": ["0", "1"], "options.descriptions": {1: "so good", 0: "so bad"}}
    records, _ = predicted(vector_model, [{"text": "so good"}], **own)
    assert records[0]["prediction"] == "1"


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"labels": None}, RecipeError, "labels is missing: nothing else names them"),
        (
            {"options.descriptions": {"god": "so good"}},
            RecipeError,
            "options.descriptions has no label 'god' - did you mean good",
        ),
        ({}, ModelError, r"needs a model with a label 'entailment' \(there are: none\) or one for sentence vectors"),
    ],
)
def test_what_is_refused(tiny_model, changes, error, message):
    with pytest.raises(error, match=message):
        task.find_labels(tiny_model, load_recipe("classify", {**ZERO, **changes}))


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("hypothesis_template", "about it", "give text with {}"),
        ("descriptions", {"good": ""}, "give a text for each label"),
    ],
)
def test_options_that_are_refused(name, value, remedy):
    from bertkit.tasks import load_task

    with pytest.raises(RecipeError, match=remedy):
        load_task(load_recipe("classify", {**ZERO, f"options.{name}": value}))


def test_it_is_not_trained(tiny_model):
    context = TaskContext(load_recipe("classify", ZERO), make_tokenizer(), ("bad", "good"))
    with pytest.raises(RecipeError, match="the task family zero_shot trains nothing"):
        task.load_model(tiny_model, context, new_head=True)


def test_the_command_takes_any_recipe_of_labels(run, vector_model):
    arguments = ["predict", "classify", "--zero-shot", "--model", str(vector_model), "--text", "a good film"]
    ended = run(*arguments, "--set", "labels=[bad, good]")
    assert ended.code == 0 and set(json.loads(ended.out)["probabilities"]) == {"bad", "good"}
