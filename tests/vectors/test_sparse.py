"""Texts as sparse vectors: matrices, columns and words."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from bertkit.errors import ModelError, UsageError
from bertkit.modeling.sentence.folder import SentenceModules
from bertkit.modeling.sentence.sparse import load_sparse_head
from bertkit.vectors.sparse import SparseEmbedder
from tests.modeling.sentence.test_sparse import masked_model  # noqa: F401

TEXTS = ["the cat sees a bird", "so", "a very very dull film ."]


@pytest.fixture(scope="module")
def embedder(masked_model, tmp_path_factory):  # noqa: F811
    folder = tmp_path_factory.mktemp("sparse") / "tiny"
    load_sparse_head(masked_model, SentenceModules(pooling=(), prompts={"query": "who "})).save_pretrained(folder)
    AutoTokenizer.from_pretrained(masked_model).save_pretrained(folder)
    return SparseEmbedder(str(folder), precision="fp32")


def plain_vector(folder, text) -> np.ndarray:
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        return model.eval()(**tokenizer(text, return_tensors="pt")).logits[0].amax(dim=0).relu().log1p().numpy()


def test_vectors_are_those_of_a_plain_forward_pass(embedder):
    vectors = embedder.encode(TEXTS)
    expected = np.stack([plain_vector(embedder.model, text) for text in TEXTS])
    np.testing.assert_allclose(vectors.toarray(), expected, rtol=1e-4, atol=1e-5)
    query = pickle.loads(pickle.dumps(embedder)).encode(["cat"], "query")
    np.testing.assert_allclose(query.toarray()[0], plain_vector(embedder.model, "who cat"), rtol=1e-4, atol=1e-5)
    assert embedder.encode([]).shape == (0, vectors.shape[1])
    tokens = AutoTokenizer.from_pretrained(embedder.model).convert_ids_to_tokens(np.argsort(-expected[0])[:3].tolist())
    assert list(embedder.words(vectors[[0]], 3)) == tokens


def test_a_batch_of_columns_gets_indices_and_values(embedder):
    batch, vectors = embedder({"text": TEXTS, "id": [1, 2, 3]}), embedder.encode(TEXTS).toarray()
    assert batch["id"] == [1, 2, 3]
    for row, (indices, values) in enumerate(zip(batch["indices"], batch["values"], strict=True)):
        assert sorted(indices) == np.flatnonzero(vectors[row]).tolist()
        np.testing.assert_allclose(vectors[row, indices], values)


def test_other_models_and_roles_are_refused(embedder, tiny_model):
    with pytest.raises(UsageError, match="role 'queries'"):
        embedder.encode(["a"], "queries")
    with pytest.raises(ModelError, match="no trained head"):
        SparseEmbedder(str(tiny_model)).encode(["a"])
