"""Encoders trained on vectors: batches in chunks, what is saved, and what is refused."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModel

from bertkit.errors import ModelError, RecipeError
from bertkit.modeling.dropout import DropoutStream
from bertkit.modeling.load import restore_weights
from bertkit.modeling.sentence.encoder import load_sentence_encoder
from bertkit.modeling.sentence.head import load_sentence_head
from bertkit.modeling.sentence.losses import VectorLoss
from bertkit.modeling.sentence.modules import Normalize, SentenceModules, read_modules
from bertkit.modeling.sentence.writing import write_modules
from bertkit.modeling.speed_paths import speed_paths
from bertkit.recipe import Training
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
    with speed_paths(model, Training(fast_dropout=stream, unpad=unpad), CPU, DropoutStream(1), None):
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
    modules = SentenceModules(pooling=("cls",), after=(Normalize(),), max_length=32, prompts={"query": "so "})
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
    modules = SentenceModules(after=after, dimension=8)
    model = load_sentence_head(tiny_model, modules, VectorLoss("mnrl")).eval()
    batch = make_batch()
    vectors = model(**batch)["vectors"]
    whole = load_sentence_head(tiny_model, SentenceModules()).eval()(**batch)["vectors"][..., :8]
    expected = torch.nn.functional.normalize(whole, dim=-1) if after else whole
    torch.testing.assert_close(vectors, expected)
    model.save_pretrained(tmp_path)
    assert read_modules(tmp_path).dimension == 8
    with pytest.raises(RecipeError, match=r"options.dimensions has 16, and the vectors have 8"):
        load_sentence_head(tiny_model, modules, VectorLoss("mnrl", dimensions=(16,)))


def test_a_pooler_is_kept_but_not_trained(tiny_model):
    model = load_sentence_head(tiny_model, SentenceModules(), VectorLoss("mnrl"))
    assert {name for name, one in model.named_parameters() if not one.requires_grad} == {
        "bert.pooler.dense.weight",
        "bert.pooler.dense.bias",
    }


def test_dense_layers_and_dimensions_beyond_the_vectors_are_refused(tiny_model, tmp_path):
    write_modules(tmp_path, SentenceModules(), width=32)
    with pytest.raises(RecipeError, match=r"options.dimensions has 64, and the vectors have 32"):
        load_sentence_head(tiny_model, SentenceModules(), VectorLoss("mnrl", dimensions=(64,)))
    from bertkit.modeling.sentence.modules import Dense

    with pytest.raises(ModelError, match="a dense layer after the pooling"):
        load_sentence_head(tiny_model, SentenceModules(after=(Dense(tmp_path, 32, 8),)))
