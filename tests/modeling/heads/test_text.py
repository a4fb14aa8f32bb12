"""Generic heads: loaded from any encoder, trained on the speed paths, saved, and read by plain transformers."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import transformers
from torch.nn import functional
from transformers import AutoModel, AutoModelForMaskedLM

from bertkit.errors import ModelError
from bertkit.modeling.architectures import ARCHITECTURES
from bertkit.modeling.dropout import DropoutStream
from bertkit.modeling.heads.base import build_head_class
from bertkit.modeling.heads.text import WindowPooling, find_model_class
from bertkit.modeling.info import get_loading_info
from bertkit.modeling.speed_patches import apply_speed_patches
from bertkit.recipe import TrainingConfig
from tests.kills import slow_unless
from tests.modeling.heads.test_mixins import CASES, LENGTHS, batch_of
from tests.modeling.tiny_models import CPU, load_head, make_tiny, make_tiny_batch

QUESTION, CHOICE = "AutoModelForQuestionAnswering", "AutoModelForMultipleChoice"
HEADS = {
    QUESTION: {"eurobert", "gte", "nomic_bert"},
    CHOICE: {"deberta", "eurobert", "gte", "jina_embeddings_v3", "nomic_bert", "ultrabert"},
}


def make_inputs(auto_class: str) -> dict[str, torch.Tensor]:
    batch = make_tiny_batch()
    if auto_class == CHOICE:
        return {**{name: values.view(2, 2, -1) for name, values in batch.items()}, "labels": torch.tensor([1, 0])}
    return {**batch, "start_positions": torch.tensor([0, 2, 1, 0]), "end_positions": torch.tensor([0, 5, 1, 3])}


@pytest.mark.parametrize("auto_class", HEADS)
def test_generic_heads_stand_in_where_transformers_has_none(auto_class):
    lacking = {
        name for name in ARCHITECTURES if find_model_class(auto_class, config_class(name)).__module__[:7] == "bertkit"
    }
    assert lacking == HEADS[auto_class]
    assert find_model_class(auto_class, config_class("bert")) is getattr(transformers, auto_class)


def config_class(model_type: str) -> type:
    return transformers.CONFIG_MAPPING[model_type]  # type: ignore[no-any-return]


HEADS_OF_TYPES = [(name, model_type) for name, types in HEADS.items() for model_type in sorted(types)]
QUICK = [(QUESTION, "eurobert"), (QUESTION, "gte"), (CHOICE, "deberta"), (CHOICE, "gte")]


@pytest.mark.parametrize("case", slow_unless(QUICK, HEADS_OF_TYPES), ids="-".join)
def test_a_head_is_trained_saved_and_loaded(case, tmp_path):
    auto_class, model_type = case
    make_tiny(model_type, AutoModelForMaskedLM).save_pretrained(tmp_path / "encoder")
    model = load_head(auto_class, tmp_path / "encoder", ["a", "b"], new_head=True, cls_only=auto_class == CHOICE)
    assert get_loading_info(model).head == "new"
    with pytest.raises(ModelError, match="no trained head for this task"):
        load_head(auto_class, tmp_path / "encoder", ["a", "b"], new_head=False)
    inputs, optimizer = make_inputs(auto_class), torch.optim.SGD(model.parameters(), lr=0.5)
    with apply_speed_patches(model.train(), TrainingConfig(), CPU, DropoutStream(0), None):
        first = model(**inputs).loss
        first.backward()
        optimizer.step()
        assert model(**inputs).loss < first
    model.save_pretrained(tmp_path / "tuned")
    loaded = load_head(auto_class, tmp_path / "tuned", ["a", "b"], new_head=False)
    torch.testing.assert_close(loaded(**inputs).loss, model.eval()(**inputs).loss, rtol=0, atol=1e-6)
    assert loaded.config.architectures == [type(model).__name__]
    plain = AutoModel.from_pretrained(tmp_path / "tuned").eval()
    expected = loaded.base_model(**make_tiny_batch())[0]
    torch.testing.assert_close(plain(**make_tiny_batch())[0], expected, rtol=0, atol=1e-6)


def load_pooling(folder, *, new_head=True, problem="single_label_classification", cls_only=False, labels="abc"):
    torch.manual_seed(0)
    pooled = partial(build_head_class, WindowPooling, ending="ForWindowClassification")
    model = load_head(pooled, folder, list(labels), new_head=new_head, problem_type=problem, cls_only=cls_only)
    return model.eval()


@pytest.mark.parametrize(("problem", "labels", "loss"), CASES)
def test_logits_and_loss_are_those_of_a_plain_loop_over_rows(tiny_model, problem, labels, loss):
    model = load_pooling(tiny_model, problem=problem, labels="a" if problem == "regression" else "abc")
    batch = batch_of(labels)
    with torch.no_grad():
        expected = []
        for row, lengths in enumerate(LENGTHS):
            inputs = [batch["input_ids"][row, n : n + 1, :length] for n, length in enumerate(lengths)]
            vectors = torch.cat([model.bert(input_ids=ids).last_hidden_state[:, 0] for ids in inputs])
            weights = model.window_score(torch.tanh(model.window_dense(vectors)))[:, 0].softmax(dim=0)
            pooled = sum(weight * vector for weight, vector in zip(weights, vectors, strict=True))
            expected.append(model.classifier(torch.tanh(model.dense(pooled))))
        output = model(**batch)
    assert torch.allclose(output.logits, torch.stack(expected), atol=1e-6)
    assert output.loss.item() == pytest.approx(loss(torch.stack(expected), batch["labels"]).item(), abs=1e-6)


def test_other_rows_of_a_batch_change_nothing(tiny_model):
    model, batch = load_pooling(tiny_model), batch_of()
    with torch.no_grad():
        together = model(**batch).logits
        alone = model(**{name: values[:1, :1] for name, values in batch.items()}).logits
    assert torch.allclose(together[:1], alone, atol=1e-6)


def test_the_last_layer_under_windows_may_compute_the_first_token_only(tiny_model):
    batch = batch_of([0, 1, 2])
    whole, short = load_pooling(tiny_model), load_pooling(tiny_model, cls_only=True)
    losses = [model(**batch).loss for model in (whole, short)]
    for loss in losses:
        loss.backward()
    assert losses[0].item() == pytest.approx(losses[1].item(), abs=1e-6)
    one, other = (dict(model.named_parameters()) for model in (whole, short))
    name = "bert.encoder.layer.0.attention.self.query.weight"
    assert torch.allclose(one[name].grad, other[name].grad, atol=1e-6)


def test_a_saved_head_over_windows_is_loaded_and_an_encoder_gets_a_new_one(tiny_model, tmp_path):
    model = load_pooling(tiny_model)
    assert get_loading_info(model).head == "new" and type(model).__name__ == "BertForWindowClassification"
    model.save_pretrained(tmp_path)
    again = load_pooling(tmp_path, new_head=False)
    assert get_loading_info(again).head is None
    with torch.no_grad():
        assert functional.mse_loss(again(**batch_of()).logits, model(**batch_of()).logits) == 0
