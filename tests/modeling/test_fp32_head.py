"""Pooler and head in float32 under autocast."""

from __future__ import annotations

import torch
import transformers

from bertkit.modeling.load import compute_head_in_fp32


def test_pooler_and_head_are_as_exact_under_autocast():
    torch.manual_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=9, **size)).eval()
    states = torch.randn(4, 3, 16)

    def scores():
        return model.classifier(model.bert.pooler(states))

    expected = scores()
    with torch.autocast("cpu", torch.bfloat16):
        assert not torch.equal(scores().float(), expected)
        compute_head_in_fp32(model)
        assert torch.equal(scores(), expected)
        assert model.bert.encoder.layer[0].intermediate.dense(states).dtype == torch.bfloat16
