"""An index is searched with its own model, in the same way."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from bertkit.errors import ModelError, UsageError
from bertkit.modeling.sentence.folder import Normalize, SentenceModules, write_modules
from bertkit.vectors.embedder import Embedder
from bertkit.vectors.search.models import choose_prompts, describe, open_embedder

PROMPTS = {"query": "query: ", "passage": "passage: "}


@pytest.fixture
def folder(tiny_model, tmp_path):
    """The tiny model in the format of sentence-transformers, with prompts."""
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    write_modules(folder, SentenceModules(transforms=(Normalize(),), prompts=PROMPTS), 32)
    return folder


def build(folder, **named):
    return describe(choose_prompts(Embedder(str(folder)), named), None)


def change(file, **values):
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_each_side_has_its_prompt(folder):
    manifest = build(folder)
    assert (manifest.dimension, manifest.similarity, manifest.model) == (32, "cosine", str(folder))
    assert manifest.prompts["query"] == {"name": "query", "text": "query: "}
    query = open_embedder(manifest, "query", folder=folder)
    plain = Embedder(str(folder)).encode(["query: a film"])
    np.testing.assert_allclose(query.encode(["a film"]), plain, atol=1e-6)
    assert build(folder, document="passage").prompts["document"] == {"name": "passage", "text": "passage: "}


def test_the_model_may_move_and_the_options_stay(folder, tmp_path):
    manifest = describe(choose_prompts(Embedder(str(folder), pooling="cls", max_length=16), {}), "dot")
    folder.rename(tmp_path / "moved")
    with pytest.raises(ModelError, match="--model"):
        open_embedder(manifest, "query", folder=tmp_path)
    moved = open_embedder(manifest, "query", folder=tmp_path, model=str(tmp_path / "moved"))
    assert (moved.pooling, moved.max_length) == ("cls", 16)


def other_weights(folder):
    change(folder / "config.json", hidden_dropout_prob=0.25)


def other_length(folder):
    change(folder / "sentence_bert_config.json", max_seq_length=20)


def other_prompt(folder):
    change(folder / "config_sentence_transformers.json", prompts={**PROMPTS, "query": "Query: "})


@pytest.mark.parametrize("changed", [other_weights, other_length, other_prompt])
def test_another_model_is_refused(changed, folder, tmp_path):
    manifest = build(folder)
    changed(folder)
    with pytest.raises(ModelError, match="build") as refused:
        open_embedder(manifest, "query", folder=tmp_path)
    assert "\n" not in str(refused.value)


def test_a_similarity_that_is_none_of_an_index_is_refused(folder):
    change(folder / "config_sentence_transformers.json", similarity_fn_name="euclidean")
    with pytest.raises(ModelError, match=r"euclidean.*--similarity: cosine or dot"):
        build(folder)


def test_an_index_without_a_model_is_searched_from_python(folder, tmp_path):
    with pytest.raises(UsageError, match="without a model"):
        open_embedder(replace(build(folder), model=None), "query", folder=tmp_path)


def test_a_prompt_that_the_model_lacks_is_refused(folder):
    with pytest.raises(UsageError, match="no prompt 'qery'"):
        build(folder, query="qery")
