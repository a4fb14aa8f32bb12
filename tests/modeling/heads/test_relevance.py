"""One logit per passage: lists are read as single passages are, and their loss is a plain loop's."""

from __future__ import annotations

import json
import math

import pytest
import torch

from bertkit.errors import ModelError
from bertkit.modeling.heads.relevance import (
    LOGIT,
    PROBABILITY,
    find_activation,
    list_loss,
    score_passages,
    set_activation,
)


class Toy(torch.nn.Module):
    """Stands in for a model with one output: its logit is the sum of a passage's token ids."""

    def forward(self, input_ids, attention_mask, labels=None):
        from transformers.modeling_outputs import SequenceClassifierOutput

        return SequenceClassifierOutput(logits=(input_ids * attention_mask).sum(dim=1, keepdim=True).float())


def test_lists_are_read_passage_by_passage_and_what_is_missing_is_the_least():
    model = Toy()
    score_passages(model, LOGIT)
    ids = torch.tensor([[[2, 9], [2, 1]], [[2, 4], [0, 0]]])
    mask = torch.tensor([[[1, 1], [1, 1]], [[1, 1], [1, 0]]])
    output = model(input_ids=ids, attention_mask=mask, labels=torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    assert output.logits.tolist() == [[11, 3], [6, torch.finfo(torch.float32).min]]
    assert output.loss.item() == pytest.approx((math.log(1 + math.exp(8)) + 0) / 2, rel=1e-6)
    assert "probabilities" not in output


def test_probabilities_are_those_of_the_sigmoid():
    model = Toy()
    score_passages(model, PROBABILITY)
    ids = torch.tensor([[0, 1], [0, 0]])
    assert model(input_ids=ids, attention_mask=torch.ones(2, 2))["probabilities"].tolist() == [
        [pytest.approx(1 / (1 + math.exp(-1)))],
        [0.5],
    ]


def test_the_loss_of_a_list_is_that_of_a_plain_loop():
    torch.manual_seed(0)
    logits = torch.randn(4, 5, requires_grad=True)
    relevance = torch.tensor([[1, 0, 0, 0, 0], [0, 1, 2, 0, 1], [0, 0, 0, 0, 0], [1.0, 0.5, 0, 0, 0]])
    missing = torch.zeros(4, 5, dtype=torch.bool)
    missing[:, 4] = torch.tensor([True, False, True, True])
    losses = list_loss(logits.masked_fill(missing, torch.finfo(torch.float32).min), relevance)
    losses.sum().backward()
    assert logits.grad.isfinite().all() and logits.grad[2].eq(0).all() and logits.grad[0, 4] == 0
    for query, gold in enumerate(relevance.tolist()):
        count = 5 - int(missing[query].sum())
        values = logits[query, :count].tolist()
        total = math.log(sum(map(math.exp, values)))
        parts = [-share / sum(gold) * (value - total) for share, value in zip(gold, values, strict=False) if share]
        assert losses[query].item() == pytest.approx(sum(parts), abs=1e-6)


@pytest.mark.parametrize(
    ("config", "own", "found"),
    [
        ({}, None, PROBABILITY),
        ({}, {"activation_fn": LOGIT}, LOGIT),
        ({"sentence_transformers": {"activation_fn": LOGIT}}, {"prompts": {}}, LOGIT),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, None, LOGIT),
        ({"sentence_transformers": {"activation_fn": LOGIT}}, {"activation_fn": PROBABILITY}, PROBABILITY),
    ],
)
def test_the_activation_is_where_sentence_transformers_looks_for_it(tmp_path, config, own, found):
    (tmp_path / "config.json").write_text(json.dumps(config))
    if own is not None:
        (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(own))
    assert find_activation(tmp_path) == found


def test_another_activation_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"sentence_transformers": {"activation_fn": "torch.nn.Tanh"}}')
    with pytest.raises(ModelError, match=r"made by torch\.nn\.Tanh"):
        find_activation(tmp_path)


def test_a_config_keeps_one_activation():
    class Config:
        sbert_ce_default_activation_function = None

    config = Config()
    config.sbert_ce_default_activation_function = PROBABILITY
    set_activation(config, LOGIT)
    assert vars(config) == {"sentence_transformers": {"activation_fn": LOGIT}}
