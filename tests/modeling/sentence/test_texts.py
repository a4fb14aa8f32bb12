"""Texts with prompts and lengths, options of vectors, and scores of late interaction by a plain loop."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from bertkit.errors import ModelError, RecipeError
from bertkit.modeling.sentence.folder import Normalize, SentenceModules, write_modules
from bertkit.modeling.sentence.texts import drop_padding, encode_rows, load_encoder, max_sim, resolve_modules
from bertkit.modeling.tokenizer import load_tokenizer
from bertkit.recipe import load_recipe
from bertkit.tasks import load_task
from bertkit.tokens.features import TaskContext
from tests.modeling.sentence.test_late import DOCUMENTS, QUERIES, pad, score_by_loop


@pytest.fixture(scope="module")
def folder(tiny_model, tmp_path_factory):
    """The tiny model as a folder of sentence-transformers, with prompts."""
    copy = shutil.copytree(tiny_model, tmp_path_factory.mktemp("sentence") / "tiny")
    prompts = {"query": "so ", "mine": "very "}
    write_modules(copy, SentenceModules(prompts=prompts, default_prompt="mine", max_length=6, lowercase=True), width=32)
    return copy


def setup_of(folder, **changes) -> TaskContext:
    return TaskContext(load_recipe("similarity", changes), load_tokenizer(folder), ())


def read_back(features, context):
    return [context.tokenizer.decode(ids) for feature in features for ids in feature["input_ids"]]


def test_texts_begin_with_the_prompt_of_their_role_or_the_default(folder):
    context = setup_of(folder)
    rows = [["GOOD film", "bad"]]
    assert read_back(encode_rows(rows, context), context) == ["[CLS] very good film [SEP]", "[CLS] very bad [SEP]"]
    roles = encode_rows(rows, context, ("query", "other"))
    assert read_back(roles, context) == ["[CLS] so good film [SEP]", "[CLS] very bad [SEP]"]


def test_the_length_is_the_least_of_recipe_model_and_folder(folder, tiny_model):
    long = [["so " * 100] * 2]
    for model, limit, length in ((folder, 128, 6), (folder, 5, 5), (tiny_model, 128, 64)):
        context = setup_of(model, **{"training.max_length": limit})
        assert len(encode_rows(long, context)[0]["input_ids"][0]) == length
        assert resolve_modules(model, context).max_length == length


def test_options_come_before_the_folder(folder):
    changes = {"options.pooling": "cls", "options.normalize": True, "options.prompts": {"query": "a "}}
    modules = resolve_modules(folder, setup_of(folder, **changes))
    assert (modules.pooling, modules.transforms) == (("cls",), (Normalize(),))
    assert modules.prompts["query"] == "a " and modules.prompts["mine"] == "very "


def test_prompts_that_are_not_pooled_are_refused(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean", "include_prompt": False}))
    with pytest.raises(ModelError, match="pooling excludes the tokens of prompts"):
        encode_rows([["a", "b"]], setup_of(copy))


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("dimensions", [64, 64], "give a list of integers, such as [384, 128, 64]"),
        ("dimensions", 64, "give a list of integers"),
        ("prompts", "query: ", "give texts by name, such as"),
        ("normalize", "yes", "give true or false"),
        ("pooling", "average", "there are: mean, cls, max"),
        ("scale", 0, "give a number from 0.1 to 1000"),
        ("mini_batch", 0, "give a number"),
        ("loss", "mnrl", "there are: cosent, cosine, simcse"),
    ],
)
def test_options_that_are_refused(option, value, message):
    with pytest.raises(RecipeError) as caught:
        load_task(load_recipe("similarity", {f"options.{option}": value}))
    assert message in str(caught.value)


def test_a_model_without_dropout_gets_some_or_does_not_learn_from_it(still_model):
    with pytest.raises(RecipeError, match=r"this model has no dropout - add --set options.dropout=0.1"):
        load_encoder(still_model, setup_of(still_model), new_head=True, loss="simcse")
    context = setup_of(still_model, **{"options.dropout": 0.2})
    model = load_encoder(still_model, context, new_head=True, loss="simcse")
    assert {module.p for module in model.modules() if type(module).__name__ == "Dropout"} == {0.2}


@pytest.mark.parametrize("numbers", [2**23, 50])  # products of all documents at once, or of one or two
def test_scores_are_those_of_a_loop_over_tokens(monkeypatch, numbers):
    monkeypatch.setattr("bertkit.modeling.sentence.texts._MAX_PRODUCTS", numbers)
    expected = [[score_by_loop(query, document) for document in DOCUMENTS] for query in QUERIES]
    np.testing.assert_allclose(max_sim(QUERIES, DOCUMENTS), expected, rtol=1e-5)


def test_padding_is_left_out():
    assert all(np.array_equal(drop_padding(one.numpy()), text) for one, text in zip(pad(QUERIES), QUERIES, strict=True))
