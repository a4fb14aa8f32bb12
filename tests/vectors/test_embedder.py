"""Vectors of texts, compared with those of a plain forward pass."""

from __future__ import annotations

import pickle
from functools import partial

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from bertkit.errors import UsageError
from bertkit.progress import Silent
from bertkit.vectors.embedder import Embedder, split_texts

TEXTS = ["the cat sleeps", "a dog", "the old man with the red hat sees a bird in the garden"]


def plain(folder, text):
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        return model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(dim=0).numpy()


def test_a_vector_is_the_mean_of_the_tokens(tiny_model):
    vectors = Embedder(str(tiny_model), precision="fp32").encode(TEXTS)
    np.testing.assert_allclose(vectors, [plain(tiny_model, text) for text in TEXTS], atol=1e-6)


def test_a_batch_gets_a_column_and_a_copy_in_another_process_loads_the_model_itself(tiny_model):
    embedder = Embedder(str(tiny_model), precision="fp32")
    batch = embedder({"id": [1, 2, 3], "text": np.array(TEXTS)})
    copy = pickle.loads(pickle.dumps(embedder))
    assert "_loaded" not in vars(copy)
    np.testing.assert_array_equal(copy(batch)["embedding"], batch["embedding"])


def test_a_file_too_long_to_be_sorted_at_once_has_the_same_vectors(tiny_model, monkeypatch):
    class Kept(Silent):
        done = 0

        def update(self, done, figures):
            self.done = done

    embedder, progress = Embedder(str(tiny_model), precision="fp32"), Kept()
    whole = embedder.encode(TEXTS)
    monkeypatch.setattr("bertkit.vectors.embedder.split_texts", partial(split_texts, characters=20))
    np.testing.assert_allclose(embedder.encode(TEXTS, progress=progress), whole, atol=1e-6)
    assert progress.done == len(TEXTS)


def test_no_texts_have_no_vectors(tiny_model):
    assert len(Embedder(str(tiny_model), precision="fp32").encode([])) == 0


def test_a_prompt_that_the_model_lacks_is_refused(tiny_model):
    with pytest.raises(UsageError, match="no prompt 'quer'"):
        Embedder(str(tiny_model), prompt="quer").encode(TEXTS)
