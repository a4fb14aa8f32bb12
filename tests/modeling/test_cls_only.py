"""A last layer that gives the first token only: the same logits and gradients, wherever it is used."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    CONFIG_MAPPING,
    AutoModelForMultipleChoice,
    AutoModelForSequenceClassification,
    BertConfig,
)

from bertkit.modeling.cls_only import cls_only_last_layer, is_cls_only
from bertkit.modeling.heads.text import find_model_class
from bertkit.pretraining.objectives import clm
from tests.conftest import make_tokenizer
from tests.kills import slow_unless
from tests.modeling.tiny_models import load_head, make_tiny, make_tiny_batch
from tests.pretraining.objectives.texts import make_setup

TEXTS, CHOICES = "AutoModelForSequenceClassification", "AutoModelForMultipleChoice"
SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "pad_token_id": 1,
}


def make(auto_class, attention: str = "sdpa"):
    torch.manual_seed(0)
    return auto_class.from_config(BertConfig(**SIZES), attn_implementation=attention)


def make_batch(padded: bool) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, 60, (4, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    if padded:
        ids[1, 5:], mask[1, 5:] = 1, 0
    return {"input_ids": ids, "attention_mask": mask}


def gradients(model) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_logits_and_gradients_are_those_of_the_whole_layer(attention, padded):
    whole, short = (make(AutoModelForSequenceClassification, attention) for _ in range(2))
    cls_only_last_layer(short)
    batch = {**make_batch(padded), "labels": torch.tensor([0, 1, 1, 0])}
    expected, outputs = whole(**batch), short(**batch)
    assert torch.allclose(outputs.logits, expected.logits, atol=1e-6)
    expected.loss.backward()
    outputs.loss.backward()
    expected_gradients, short_gradients = gradients(whole), gradients(short)
    assert expected_gradients.keys() == short_gradients.keys()
    for name, gradient in expected_gradients.items():
        assert torch.allclose(short_gradients[name], gradient, atol=1e-6), name


def test_it_computes_one_token_of_the_last_layer():
    model = make(AutoModelForSequenceClassification).eval()
    shapes = []
    model.bert.encoder.layer[-1].intermediate.register_forward_hook(
        lambda _, inputs, __: shapes.append(inputs[0].shape)
    )
    model(**make_batch(False))
    cls_only_last_layer(model)
    model(**make_batch(False))
    assert shapes == [(4, 9, 32), (4, 1, 32)]


def test_choices_are_scored_the_same():
    whole, short = (make(AutoModelForMultipleChoice).eval() for _ in range(2))
    cls_only_last_layer(short)
    batch = {name: values.reshape(2, 2, 9) for name, values in make_batch(True).items()}
    assert torch.allclose(short(**batch).logits, whole(**batch).logits, atol=1e-6)


def test_checkpointed_activations_give_the_same_gradients():
    whole, short = (make(AutoModelForSequenceClassification).train() for _ in range(2))
    cls_only_last_layer(short)
    short.activation_checkpointing_enable()
    batch = {**make_batch(True), "labels": torch.tensor([0, 1, 1, 0])}
    for model in (whole, short):
        model(**batch).loss.backward()
    for name, gradient in gradients(whole).items():
        assert torch.allclose(gradients(short)[name], gradient, atol=1e-6), name


@pytest.mark.parametrize(
    ("model_type", "head", "pooling", "is_used"),
    [
        ("modernbert", TEXTS, "cls", True),
        ("modernbert", TEXTS, "mean", False),
        ("modernbert", CHOICES, "mean", False),
        ("eurobert", TEXTS, "late", False),
        ("eurobert", CHOICES, "late", True),
        ("ultrabert", TEXTS, "cls", True),
        ("ultrabert", CHOICES, "mean", True),
        *((model_type, CHOICES, None, True) for model_type in ("gte", "jina_embeddings_v3", "nomic_bert")),
    ],
)
@pytest.mark.parametrize("attention", slow_unless(["sdpa"], ["sdpa", "eager"]))
def test_a_rotary_layer_is_computed_for_the_token_that_the_head_reads(model_type, head, pooling, is_used, attention):
    fields = {"classifier_pooling": pooling} if pooling else {}
    build_head_class = find_model_class(head, CONFIG_MAPPING[model_type])
    build = build_head_class.from_config if hasattr(build_head_class, "from_config") else build_head_class._from_config
    whole, short = (make_tiny(model_type, build, config=fields, attn_implementation=attention) for _ in range(2))
    cls_only_last_layer(short)
    short.activation_checkpointing_enable()
    assert any(map(is_cls_only, short.modules())) == is_used
    batch = make_tiny_batch()
    if head == CHOICES:
        batch = {name: values.view(2, 2, -1) for name, values in batch.items()}
    for model in (whole, short):
        logits = model(**batch).logits
        logits.square().sum().backward()
    torch.testing.assert_close(logits, whole(**batch).logits, rtol=0, atol=1e-6)
    assert gradients(short).keys() == gradients(whole).keys()
    for name, gradient in gradients(whole).items():
        torch.testing.assert_close(gradients(short)[name], gradient, rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize("model_type", ["bert", "roberta", "electra"])
@pytest.mark.parametrize("cls_only", [False, True])
def test_a_left_to_right_model_reads_a_text_to_its_last_token(tmp_path, model_type, cls_only):
    context = make_setup("clm", model_type)
    clm.load_model(context).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    model = load_head(
        "AutoModelForSequenceClassification", tmp_path, ["a", "b"], new_head=True, cls_only=cls_only
    ).eval()
    ids = torch.tensor([[2, 7, 8, 9, 3, 0, 0], [2, 7, 8, 9, 10, 11, 3]])
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0], [1] * 7])
    other = ids.clone()
    other[:, 3] = 12
    with torch.inference_mode():
        logits = model(input_ids=ids, attention_mask=mask).logits
        alone = model(input_ids=ids[:1, :5]).logits
        changed = model(input_ids=other, attention_mask=mask).logits
        hidden = model.base_model(input_ids=ids[:1, :5]).last_hidden_state
    torch.testing.assert_close(logits[:1], alone)
    assert not torch.isclose(logits, changed).any()
    assert hidden.shape[1] == 1


def test_a_left_to_right_tagger_reads_every_token(tmp_path):
    clm.load_model(make_setup("clm")).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    model = load_head("AutoModelForTokenClassification", tmp_path, ["a", "b"], new_head=True).eval()
    ids = torch.tensor([[2, 7, 8, 9, 3]])
    with torch.inference_mode():
        logits, others = (model(input_ids=one).logits for one in (ids, torch.tensor([[2, 7, 8, 12, 3]])))
    assert logits.shape == (1, 5, 2)
    torch.testing.assert_close(logits[:, :3], others[:, :3])
    assert not torch.isclose(logits[:, 3:], others[:, 3:]).any()
