"""Heads over vectors: chunks have the gradients of the whole batch, a classifier is fitted, folders are as saved."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from transformers import AutoModel, AutoModelForSequenceClassification

from bertkit.errors import ModelError, RecipeError
from bertkit.modeling.dropout import DropoutStream
from bertkit.modeling.load import restore_weights
from bertkit.modeling.sentence.encoder import load_sentence_encoder
from bertkit.modeling.sentence.folder import Normalize, SentenceModules, read_modules, write_modules
from bertkit.modeling.sentence.head import fit_logistic, load_sentence_classifier, load_sentence_head
from bertkit.modeling.sentence.losses import VectorLoss
from bertkit.modeling.speed_patches import apply_speed_patches
from bertkit.recipe import TrainingConfig
from bertkit.recipe.load import load_recipe
from bertkit.tokens.features import TaskContext
from tests.conftest import make_tokenizer
from tests.modeling.tiny_models import CPU

LENGTHS = torch.tensor([[5, 9, 3], [7, 2, 1], [4, 12, 6], [3, 3, 8]])  # the second row lacks its last text


def make_batch(seed: int = 0) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, 60, (4, 3, 12), generator=torch.Generator().manual_seed(seed))
    mask = (torch.arange(12) < LENGTHS[..., None]).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def gradients_of(folder, loss, texts_at_once, *, stream, unpad):
    """Compute the loss and all gradients of one step with dropout, on speed paths."""
    model = load_sentence_head(folder, SentenceModules(), VectorLoss(loss), texts_at_once=texts_at_once).train()
    torch.manual_seed(3)
    with apply_speed_patches(model, TrainingConfig(fast_dropout=stream, unpad=unpad), CPU, DropoutStream(1), None):
        output = model(**make_batch())
        output["loss"].backward()
    return output["loss"].item(), {name: one.grad for name, one in model.named_parameters() if one.grad is not None}


@pytest.mark.parametrize(("loss", "texts_at_once", "unpad"), [("mnrl", 5, True), ("simcse", 1, False)])
def test_chunks_have_the_gradients_of_the_whole_batch(still_model, loss, texts_at_once, unpad):
    whole, expected = gradients_of(still_model, loss, None, stream=True, unpad=unpad)
    value, found = gradients_of(still_model, loss, texts_at_once, stream=True, unpad=unpad)
    assert value == pytest.approx(whole, rel=1e-6)
    assert found.keys() == expected.keys()
    both = [torch.cat([of_run[name].flatten() for name in expected]) for of_run in (found, expected)]
    assert (both[0] - both[1]).norm() < 1e-6 * both[1].norm()


def test_simcse_learns_from_the_first_texts_of_rows_alone(tiny_model):
    batch = {name: values[:, :2] for name, values in make_batch().items()}
    losses = []
    for texts, read in ((1, batch), (None, {name: values[:, :1] for name, values in batch.items()}), (None, batch)):
        model = load_sentence_head(tiny_model, SentenceModules(), VectorLoss("simcse", texts=texts)).train()
        torch.manual_seed(3)
        losses.append(model(**read)["loss"].item())
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("stream", [False, True], ids=["torch", "stream"])
def test_a_chunk_has_the_same_dropout_both_times(tiny_model, stream):
    """Chunks with gradients computed at once, without the second pass, must have those of the two passes."""
    cached = gradients_of(tiny_model, "mnrl", 5, stream=stream, unpad=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            "bertkit.modeling.sentence.head.checkpoint", lambda run, *batch, use_reentrant, context_fn: run(*batch)
        )
        plain = gradients_of(tiny_model, "mnrl", 5, stream=stream, unpad=True)
    assert cached[0] == plain[0]
    for name, gradient in plain[1].items():
        torch.testing.assert_close(cached[1][name], gradient, rtol=1e-6, atol=1e-7, msg=name)


def test_what_is_saved_is_the_encoder_with_the_files_of_sentence_transformers(tiny_model, tmp_path):
    modules = SentenceModules(pooling=("cls",), transforms=(Normalize(),), max_length=32, prompts={"query": "so "})
    model = load_sentence_head(tiny_model, modules, VectorLoss("mnrl"))
    model.save_pretrained(tmp_path, state_dict=model.state_dict())
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["BertModel"]
    assert read_modules(tmp_path).max_length == 32
    _, report = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    batch = {name: values[:, 0] for name, values in make_batch().items()}
    expected = load_sentence_encoder(tmp_path, read_modules(tmp_path))(**batch)["embedding"]
    found = model.eval()(**{name: values[:, None] for name, values in batch.items()})["vectors"][:, 0]
    torch.testing.assert_close(found, expected)
    other = load_sentence_head(tiny_model, modules)
    torch.nn.init.zeros_(other.base_model.encoder.layer[0].attention.self.query.weight)
    restore_weights(other, tmp_path / "model.safetensors")
    assert all(torch.equal(one, two) for one, two in zip(other.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize("after", [(), (Normalize(),)])
def test_the_dimension_that_a_folder_keeps_is_trained_and_saved(tiny_model, tmp_path, after):
    modules = SentenceModules(transforms=after, dimension=8)
    model = load_sentence_head(tiny_model, modules, VectorLoss("mnrl")).eval()
    batch = make_batch()
    vectors = model(**batch)["vectors"]
    whole = load_sentence_head(tiny_model, SentenceModules()).eval()(**batch)["vectors"][..., :8]
    expected = torch.nn.functional.normalize(whole, dim=-1) if after else whole
    torch.testing.assert_close(vectors, expected)
    model.save_pretrained(tmp_path)
    assert read_modules(tmp_path).dimension == 8
    with pytest.raises(RecipeError, match=r"options.dimensions has 16, but vectors have only 8 dimensions"):
        load_sentence_head(tiny_model, modules, VectorLoss("mnrl", dimensions=(16,)))


def test_a_pooler_is_kept_but_not_trained(tiny_model):
    model = load_sentence_head(tiny_model, SentenceModules(), VectorLoss("mnrl"))
    assert {name for name, one in model.named_parameters() if not one.requires_grad} == {
        "bert.pooler.dense.weight",
        "bert.pooler.dense.bias",
    }


def test_dense_layers_and_dimensions_beyond_the_vectors_are_refused(tiny_model, tmp_path):
    write_modules(tmp_path, SentenceModules(), width=32)
    with pytest.raises(RecipeError, match=r"options.dimensions has 64, but vectors have only 32 dimensions"):
        load_sentence_head(tiny_model, SentenceModules(), VectorLoss("mnrl", dimensions=(64,)))
    from bertkit.modeling.sentence.folder import Dense

    with pytest.raises(ModelError, match="a dense layer after the pooling"):
        load_sentence_head(tiny_model, SentenceModules(transforms=(Dense(tmp_path, 32, 8),)))


MODULES = SentenceModules(transforms=(Normalize(),), max_length=32)


def setup_of(labels):
    return TaskContext(load_recipe("few-shot"), make_tokenizer(), tuple(labels))


def load_classifier(folder, labels=("bad", "good"), **options):
    return load_sentence_classifier(folder, MODULES, setup_of(labels), **{"new_head": True, **options})


def make_rows(rows: int = 6) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, 60, (rows, 1, 9), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@pytest.mark.parametrize("count", [2, 3])
def test_the_layer_is_that_of_scikit_learn_on_centered_vectors_of_mean_length_one(still_model, count):
    labels = ["a", "b", "c", "d"][: count + 1]  # no row has the last one
    model, batch = load_classifier(still_model, labels).eval(), make_rows(12)
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
    model = load_classifier(still_model, loss=VectorLoss("class_cosent")).train()
    output = model(**make_rows(), labels=torch.tensor([0, 1, 0, 1, 0, 1]))
    output["loss"].backward()
    assert model.logistic.weight.grad is None
    assert model.base_model.encoder.layer[0].attention.self.query.weight.grad.norm() > 0


def test_a_saved_folder_is_loaded_whole_and_by_others_as_an_encoder(still_model, tmp_path):
    model, batch = load_classifier(still_model).eval(), make_rows()
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
        load_classifier(tiny_model, new_head=False)
    with pytest.raises(ModelError, match="several pooling modes: mean, cls"):
        load_sentence_classifier(
            tiny_model, SentenceModules(pooling=("mean", "cls")), setup_of(("a", "b")), new_head=True
        )
