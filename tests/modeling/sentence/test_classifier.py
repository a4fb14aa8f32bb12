"""A linear layer over vectors: fitted as scikit-learn fits it, saved, loaded again, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from transformers import AutoModel, AutoModelForSequenceClassification

from bertkit.errors import ModelError
from bertkit.modeling.sentence.classifier import fit_logistic, load_sentence_classifier
from bertkit.modeling.sentence.encoder import load_sentence_encoder
from bertkit.modeling.sentence.losses import VectorLoss
from bertkit.modeling.sentence.modules import Normalize, SentenceModules, read_modules
from bertkit.recipe import load_recipe
from bertkit.tokens.features import Setup
from tests.conftest import make_tokenizer

MODULES = SentenceModules(after=(Normalize(),), max_length=32)


def setup_of(labels):
    return Setup(load_recipe("few-shot"), make_tokenizer(), tuple(labels))


def load(folder, labels=("bad", "good"), **options):
    return load_sentence_classifier(folder, MODULES, setup_of(labels), **{"new_head": True, **options})


def make_batch(rows: int = 6) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, 60, (rows, 1, 9), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@pytest.mark.parametrize("count", [2, 3])
def test_the_layer_is_that_of_scikit_learn_on_centered_vectors_of_mean_length_one(still_model, count):
    labels = ["a", "b", "c", "d"][: count + 1]  # no row has the last one
    model, batch = load(still_model, labels).eval(), make_batch(12)
    gold = [number % count for number in range(12)]
    with torch.no_grad():
        vectors = model(**batch)["vectors"][:, 0].double().numpy()
        fit_logistic(model, vectors, gold)
        logits = model(**batch)["logits"].double().softmax(dim=-1).numpy()
    moved = vectors - vectors.mean(axis=0)
    moved /= np.sqrt(np.mean(np.sum(moved**2, axis=1)))
    expected = LogisticRegression(max_iter=1000).fit(moved, gold).predict_proba(moved)
    np.testing.assert_allclose(logits[:, :count], expected, atol=1e-5)
    assert (logits[:, count] == 0).all()


def test_no_gradient_reaches_the_layer_and_the_loss_needs_the_whole_batch(still_model):
    model = load(still_model, loss=VectorLoss("class_cosent")).train()
    output = model(**make_batch(), labels=torch.tensor([0, 1, 0, 1, 0, 1]))
    output["loss"].backward()
    assert model.logistic.weight.grad is None
    assert model.base_model.encoder.layer[0].attention.self.query.weight.grad.norm() > 0


def test_a_saved_folder_is_loaded_whole_and_by_others_as_an_encoder(still_model, tmp_path):
    model, batch = load(still_model).eval(), make_batch()
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["BertForTextClassification"]
    again = load_sentence_classifier(tmp_path, read_modules(tmp_path), setup_of(("bad", "good")), new_head=False).eval()
    with torch.no_grad():
        expected, found = model(**batch), again(**batch)
        encoder = load_sentence_encoder(tmp_path, read_modules(tmp_path))
        vectors = encoder(**{name: values[:, 0] for name, values in batch.items()})["embedding"]
    assert torch.equal(found["logits"], expected["logits"])
    torch.testing.assert_close(vectors, expected["vectors"][:, 0])
    _, report = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    _, report = AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert "classifier.weight" in report["missing_keys"]  # so transformers warns that this layer is new


def test_an_encoder_without_the_layer_and_several_poolings_are_refused(tiny_model):
    with pytest.raises(ModelError, match="no trained head for this task"):
        load(tiny_model, new_head=False)
    with pytest.raises(ModelError, match="several poolings: mean, cls"):
        load_sentence_classifier(
            tiny_model, SentenceModules(pooling=("mean", "cls")), setup_of(("a", "b")), new_head=True
        )
