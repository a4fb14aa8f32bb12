"""Unpadded layers: the same logits and gradients as padded ones, less computed, and the model left as it was."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from bertkit.modeling.architectures import get_layers
from bertkit.modeling.cls_only import cls_only_last_layer
from bertkit.modeling.dropout import DropoutStream, fast_dropout
from bertkit.modeling.unpadding.hooks import unpad_layers

LENGTHS = [3, 12, 5, 5, 4, 11]


def make_model(model_type: str = "bert", auto_class=AutoModelForTokenClassification, p: float = 0.0, **changes):
    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "pad_token_id": 0}
    own = {"intermediate_size": 64, "hidden_dropout_prob": p, "attention_probs_dropout_prob": p}
    if model_type == "distilbert":
        own = {"hidden_dim": 64, "dropout": p, "attention_dropout": p}
    return auto_class.from_config(AutoConfig.for_model(model_type, **sizes, **own, **changes)).train()


def make_batch(lengths=LENGTHS, choices: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    shape = (len(lengths), max(lengths))
    mask = (torch.arange(shape[1]) < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(5, 60, shape) * mask
    if choices:
        ids, mask = ids.view(-1, choices, shape[1]), mask.view(-1, choices, shape[1])
    return {"input_ids": ids, "attention_mask": mask}


def run(model, batch, context) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the logits at real tokens (or all), and the gradient of every parameter."""
    with context:
        outputs = model(**batch)
        logits = outputs.start_logits if "start_logits" in outputs else outputs.logits
        if logits.shape[:2] == batch["input_ids"].shape:
            logits = logits[batch["attention_mask"].bool()]
        (logits * torch.linspace(-1, 1, logits.numel()).view(logits.shape)).sum().backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    model.zero_grad()
    return logits.detach(), gradients


def assert_same(model, batch) -> None:
    expected, gradients = run(model, batch, nullcontext())
    logits, unpadded_gradients = run(model, batch, unpad_layers(model))
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-6)
    for gradient, expected_gradient in zip(unpadded_gradients, gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-3, atol=1e-5)


@pytest.fixture
def widths():
    """Return a function that records the shapes of what the second layer of a model reads."""
    hooks = []

    def watch(model) -> list[tuple[int, ...]]:
        shapes: list[tuple[int, ...]] = []
        hooks.append(
            get_layers(model)[1].register_forward_pre_hook(lambda _, inputs: shapes.append(tuple(inputs[0].shape)))
        )
        return shapes

    yield watch
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("model_type", ["bert", "distilbert", "modernbert", "deberta-v2", "mpnet"])
def test_logits_and_gradients_are_those_of_padded_rows(model_type, widths):
    model = make_model(model_type)
    shapes = widths(model)
    assert_same(model, make_batch())
    assert shapes == [(6, 12, 32), (1, 64, 32)]


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("choices", [0, 2])
def test_a_classifier_of_the_first_token_sees_the_same(choices, short):
    model = make_model(auto_class=AutoModelForMultipleChoice if choices else AutoModelForSequenceClassification)
    if short:
        cls_only_last_layer(model)
    assert_same(model, make_batch(choices=choices))


def test_answers_are_the_same():
    assert_same(make_model(auto_class=AutoModelForQuestionAnswering), make_batch([40, 3, 7, 29]))


@pytest.mark.parametrize("lengths", [[8, 8, 8], [9, 9, 8, 9]])
def test_a_batch_with_hardly_any_padding_is_computed_as_it_is(lengths, widths):
    model = make_model()
    shapes = widths(model)
    with unpad_layers(model):
        model(**make_batch(lengths))
    assert shapes == [(len(lengths), max(lengths), 32)]


def test_evaluation_and_a_later_forward_pass_are_padded(widths):
    model, batch = make_model(), make_batch()
    before = model.config._attn_implementation
    shapes = widths(model)
    with unpad_layers(model):
        model.eval()(**batch)
        model.train()
    model(**batch)
    assert shapes == [(6, 12, 32)] * 2
    assert model.config._attn_implementation == before


def test_layers_that_somebody_reads_stay_whole(widths):
    model = make_model()
    shapes = widths(model)
    hook = model.base_model.encoder.layer[0].register_forward_hook(lambda *_: None)
    with unpad_layers(model):
        model(**make_batch())
    hook.remove()
    assert shapes == [(6, 12, 32)]


def test_dropout_falls_on_real_tokens_only():
    model = make_model(p=0.5)
    stream = DropoutStream(0)
    drawn: list[int] = []
    draw = stream.draw_mask
    stream.draw_mask = lambda shape, p: drawn.append(shape.numel()) or draw(shape, p)  # type: ignore[method-assign]
    with fast_dropout(model, stream), unpad_layers(model):
        model(**make_batch())
    assert drawn.count(64 * 32) == 6  # two a layer; embeddings and head see padding


@pytest.mark.parametrize("name", ["output_hidden_states", "output_attentions"])
def test_outputs_that_are_asked_for_are_those_of_padded_rows(name, widths):
    model = make_model("modernbert")
    shapes = widths(model)
    with unpad_layers(model):
        model(**make_batch(), **{name: True})
    assert shapes == [(6, 12, 32)]
