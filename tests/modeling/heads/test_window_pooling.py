"""A head over the windows of a text: what it computes, and that a saved one is loaded as it was."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from bertkit.modeling.heads.window_pooling import window_pooling_class
from bertkit.modeling.info import loading_info_of
from tests.modeling.heads.test_windows import CASES, LENGTHS, batch_of
from tests.modeling.tiny_models import load_head


def load(folder, *, new_head=True, problem="single_label_classification", cls_only=False, labels="abc"):
    torch.manual_seed(0)
    options = {"new_head": new_head, "problem_type": problem, "cls_only": cls_only}
    return load_head(window_pooling_class, folder, list(labels), **options).eval()


@pytest.mark.parametrize(("problem", "labels", "loss"), CASES)
def test_logits_and_loss_are_those_of_a_plain_loop_over_rows(tiny_model, problem, labels, loss):
    model = load(tiny_model, problem=problem, labels="a" if problem == "regression" else "abc")
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
    model, batch = load(tiny_model), batch_of()
    with torch.no_grad():
        together = model(**batch).logits
        alone = model(**{name: values[:1, :1] for name, values in batch.items()}).logits
    assert torch.allclose(together[:1], alone, atol=1e-6)


def test_the_last_layer_may_compute_the_first_token_only(tiny_model):
    batch = batch_of([0, 1, 2])
    whole, short = load(tiny_model), load(tiny_model, cls_only=True)
    losses = [model(**batch).loss for model in (whole, short)]
    for loss in losses:
        loss.backward()
    assert losses[0].item() == pytest.approx(losses[1].item(), abs=1e-6)
    one, other = (dict(model.named_parameters()) for model in (whole, short))
    name = "bert.encoder.layer.0.attention.self.query.weight"
    assert torch.allclose(one[name].grad, other[name].grad, atol=1e-6)


def test_a_saved_head_is_loaded_and_an_encoder_gets_a_new_one(tiny_model, tmp_path):
    model = load(tiny_model)
    assert loading_info_of(model).head == "new" and type(model).__name__ == "BertForWindowClassification"
    model.save_pretrained(tmp_path)
    again = load(tmp_path, new_head=False)
    assert loading_info_of(again).head is None
    with torch.no_grad():
        assert functional.mse_loss(again(**batch_of()).logits, model(**batch_of()).logits) == 0
