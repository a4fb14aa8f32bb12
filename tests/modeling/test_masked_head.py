"""The head at masked positions only: the same losses and gradients as the whole head with ignored labels."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import transformers
from sklearn.metrics import accuracy_score, log_loss

from bertkit.modeling.masked_head import (
    compute_masked_scores,
    count_pairs,
    read_scalars,
    run_at_masked,
    score_pairs,
    sum_cross_entropies,
    sum_masked_losses,
    sum_pair_losses,
    sum_pair_scores,
)
from bertkit.tokens.features import IGNORE_INDEX
from tests.modeling.tiny_models import make_tiny, make_tiny_batch

SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def make_batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 50, (4, 12), generator=generator)
    labels = ids.masked_fill(torch.rand(ids.shape, generator=generator) > 0.3, IGNORE_INDEX)
    mask = torch.ones_like(ids)
    mask[1, 8:], labels[1, 8:] = 0, IGNORE_INDEX
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def test_scores_of_masked_tokens_are_those_of_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(1, 60, 9, generator=generator), torch.randint(9, (60,), generator=generator)
    probabilities = logits[0].double().softmax(-1).numpy()
    parts = [read_scalars(sum_masked_losses(logits[:, part], labels[part])) for part in (slice(0, 20), slice(20, 60))]
    found = compute_masked_scores({name: parts[0][name] + parts[1][name] for name in parts[0]})
    assert found["masked_accuracy"] == pytest.approx(accuracy_score(labels, probabilities.argmax(-1)))
    assert found["perplexity"] == pytest.approx(np.exp(log_loss(labels, probabilities, labels=range(9))), rel=1e-5)


@pytest.mark.parametrize("rounded", [False, True])
def test_losses_and_gradients_are_those_of_the_whole_head(rounded):
    torch.manual_seed(0)
    model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=50, **SHAPE)).eval()
    batch = make_batch()
    items = int((batch["labels"] != IGNORE_INDEX).sum())
    (model(**batch).loss * items).backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    outputs, labels = run_at_masked(model, batch, rounded=rounded)
    assert outputs.logits.shape == (1, -(-items // 16) * 16 if rounded else items, 50)
    assert int((labels != IGNORE_INDEX).sum()) == items
    sum_cross_entropies(outputs.logits, labels).backward()
    for name, gradient in expected.items():
        assert dict(model.named_parameters())[name].grad.allclose(gradient, atol=1e-4), name


def test_nothing_masked_is_a_loss_of_zero_with_a_gradient():
    config = transformers.BertConfig(vocab_size=50, **SHAPE)
    model = transformers.BertForMaskedLM(config)
    batch = make_batch()
    batch["labels"] = torch.full_like(batch["labels"], IGNORE_INDEX)
    outputs, labels = run_at_masked(model, batch, rounded=True)
    loss = sum_cross_entropies(outputs.logits, labels)
    assert loss.item() == 0
    loss.backward()


def test_the_hook_is_gone_afterwards_whatever_happens():
    model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=50, **SHAPE))
    with pytest.raises(IndexError):
        run_at_masked(model, {**make_batch(), "input_ids": torch.full((4, 12), 99)})
    assert not model.base_model._forward_hooks


@pytest.mark.parametrize(("sat", "loss"), [(4.0, 0.2744), (1.0, 1.9935)])
def test_the_worked_example(sat, loss):
    logits = torch.tensor([[[1, 0.5, sat, 2, 0, 1.5]]])  # the cat sat on mat dog
    assert sum_cross_entropies(logits, torch.tensor([2])).item() == pytest.approx(loss, abs=5e-5)


def test_the_totals_give_perplexity_and_accuracy():
    logits = torch.tensor([[[9.0, 0, 0], [0, 9.0, 0], [0, 0, 9.0], [0, 0, 9.0]]])
    totals = read_scalars(sum_masked_losses(logits, torch.tensor([0, 1, 2, 0])))
    assert (totals["masked"], totals["found"]) == (4, 3)
    scores = compute_masked_scores(totals)
    right = math.log(1 + 2 * math.exp(-9))
    assert scores["masked_accuracy"] == 0.75
    assert scores["perplexity"] == pytest.approx(math.exp((4 * right + 9) / 4), rel=1e-5)


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    batch = make_tiny_batch()
    labels = torch.full_like(batch["input_ids"], IGNORE_INDEX)
    labels[:, 1] = batch["input_ids"][:, 1]
    return {**batch, "labels": labels, "pair_labels": torch.tensor([0, 1, 1, 0])}


@pytest.mark.parametrize("model_type", ["bert", "albert"])
def test_losses_are_those_of_transformers(model_type, batch):
    model = make_tiny(model_type, transformers.AutoModelForPreTraining).eval()
    masked, pairs = count_pairs(batch)
    assert (masked, pairs) == (4, 4)
    masked_loss, pair_loss = sum_pair_losses(model, batch)
    name = {"bert": "next_sentence_label", "albert": "sentence_order_label"}[model_type]
    theirs = model(
        **{("labels" if key == "labels" else name if key == "pair_labels" else key): batch[key] for key in batch}
    )
    assert (masked_loss / masked + pair_loss / pairs).item() == pytest.approx(theirs.loss.item(), rel=1e-5)


def test_scores_are_means_over_tokens_and_over_pairs(batch):
    with torch.no_grad():
        totals = sum_pair_scores(make_tiny("bert", transformers.AutoModelForPreTraining).eval(), batch)
    doubled = {name: 2 * value for name, value in totals.items()}
    assert score_pairs(doubled) == score_pairs(totals)
    scores = score_pairs({"mlm": 8.0, "masked": 4.0, "found": 1.0, "pair": 2.0, "pairs": 4.0, "pairs_found": 3.0})
    assert (scores["loss"], scores["pair_accuracy"], scores["masked_accuracy"]) == (2.5, 0.75, 0.25)
    assert scores["perplexity"] == pytest.approx(math.exp(2))
