"""Scores of pairs, compared with a plain forward pass and with sentence-transformers."""

from __future__ import annotations

import json
import pickle
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from bertkit.errors import ModelError, UsageError
from bertkit.modeling.sentence.folder import SentenceModules
from bertkit.modeling.sentence.late import load_late_head
from bertkit.vectors.reranker import Reranker

LONG = "the old man with the red hat sees a bird in the garden " * 9  # more tokens than the tiny model reads
PAIRS = [("the cat", "a cat sleeps"), ("who sees a bird", LONG), ("a", "b"), (LONG, LONG)]


@pytest.fixture(scope="module")
def folder(tiny_model, tmp_path_factory):
    """The folder of a CrossEncoder with large random weights, so that scores differ."""
    folder = tmp_path_factory.mktemp("rerankers") / "tiny"
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(tiny_model, num_labels=1)
    torch.nn.init.normal_(model.classifier.weight)
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.model_max_length = 64
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def late_folder(tiny_model, tmp_path_factory):
    """The folder of a MultiVectorEncoder."""
    folder = tmp_path_factory.mktemp("late") / "tiny"
    torch.manual_seed(0)
    modules = SentenceModules(pooling=(), prompts={"query": "so "}, max_length=16)
    load_late_head(tiny_model, modules, 8).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(folder)
    return folder


def logits_of(folder, pairs, **settings):
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        batches = [tokenizer(*pair, return_tensors="pt", truncation=True, **settings) for pair in pairs]
        return np.array([model.eval()(**batch).logits.item() for batch in batches])


def test_scores_are_the_probabilities_of_a_plain_forward_pass(folder):
    reranker = Reranker(str(folder), precision="fp32")
    expected = 1 / (1 + np.exp(-logits_of(folder, PAIRS)))
    np.testing.assert_allclose(reranker.score(PAIRS), expected, atol=1e-6)
    np.testing.assert_allclose(pickle.loads(pickle.dumps(reranker)).score(PAIRS[:2]), expected[:2], atol=1e-6)
    assert reranker.score([]).shape == (0,)


@pytest.mark.parametrize(("length", "used"), [(16, 16), (60, 60), (500, 64)])
def test_a_length_replaces_that_of_the_folder_up_to_what_the_model_reads(folder, tmp_path, length, used):
    expected = 1 / (1 + np.exp(-logits_of(folder, PAIRS, max_length=used)))
    shorter = shutil.copytree(folder, tmp_path / "shorter")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.model_max_length = 32
    tokenizer.save_pretrained(shorter)
    np.testing.assert_allclose(Reranker(str(shorter), length, "fp32").score(PAIRS), expected, atol=1e-6)


def test_what_is_no_reranker_is_refused(folder, tiny_model, trained):
    with pytest.raises(ModelError, match="no trained head"):
        Reranker(str(tiny_model)).score(PAIRS)
    with pytest.raises(ModelError, match="no trained head"):  # two labels
        Reranker(str(trained)).score(PAIRS)
    with pytest.raises(UsageError, match="no room"):
        Reranker(str(folder), max_length=3).score(PAIRS)


def test_late_interaction_reads_each_text_once_and_scores_pairs(late_folder):
    reranker = Reranker(str(late_folder), precision="fp32")
    assert reranker.is_late
    encoder = AutoModel.from_pretrained(late_folder).eval()
    weight = load_file(late_folder / "1_Dense" / "model.safetensors")["linear.weight"]
    tokenizer = AutoTokenizer.from_pretrained(late_folder)

    def vectors_of(text):
        batch = tokenizer(text, return_tensors="pt", truncation=True, max_length=16)
        states = encoder(**batch).last_hidden_state[0] @ weight.T
        return torch.nn.functional.normalize(states, dim=-1)

    pairs = [*PAIRS, ("the cat", "b")]
    with torch.no_grad():
        products = [vectors_of(f"so {query}") @ vectors_of(passage).T for query, passage in pairs]
    expected = [one.amax(dim=1).sum().item() for one in products]
    np.testing.assert_allclose(reranker.score(pairs), expected, atol=1e-4)
    assert reranker.score([]).shape == (0,)


@pytest.mark.slow
@pytest.mark.parametrize("activation", [torch.nn.Sigmoid(), torch.nn.Identity()])
def test_scores_are_those_of_sentence_transformers(folder, tmp_path, activation):
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(folder), device="cpu", activation_fn=activation)
    model.save_pretrained(str(tmp_path / "saved"))
    assert json.loads((tmp_path / "saved" / "config_sentence_transformers.json").read_text())["activation_fn"]
    scores = Reranker(str(tmp_path / "saved"), precision="fp32").score(PAIRS)
    np.testing.assert_allclose(scores, model.predict(PAIRS), atol=1e-6)
