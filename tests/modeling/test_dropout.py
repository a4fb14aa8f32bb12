"""Fast dropout: the right share, no pattern, keyed by step and position, and the model left as it was."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chisquare
from torch.nn import functional
from transformers import BertConfig, BertForSequenceClassification

from bertkit.modeling import dropout
from bertkit.modeling.dropout import DropoutStream, fast_dropout, get_dropout_rates, set_dropout


def make_bert(p: float = 0.1, **changes) -> BertForSequenceClassification:
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = BertConfig(**sizes, intermediate_size=64, hidden_dropout_prob=p, attention_probs_dropout_prob=p, **changes)
    return BertForSequenceClassification(config)


def make_batch() -> dict[str, torch.Tensor]:
    ids = torch.arange(5, 29).reshape(4, 6)
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([0, 1, 1, 0])}


@pytest.mark.parametrize("p", [0.05, 0.1, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_right_share_is_dropped_and_the_rest_is_untouched(p, dtype):
    count = 1_000_000
    values = torch.randn(count).to(dtype)
    values[values == 0] = 1
    kept = DropoutStream(seed=3).drop(values, p)
    dropped = int((kept == 0).sum())
    assert chisquare([dropped, count - dropped], [count * p, count * (1 - p)]).pvalue > 1e-4
    assert torch.equal(kept[kept != 0], values[kept != 0])


def test_neighbors_are_dropped_independently():
    mask = DropoutStream(seed=1).draw_mask(torch.Size([400_000]), 0.1) == 0
    for lag in (1, 2, 3, 4, 384):
        both = int((mask[lag:] & mask[:-lag]).sum())
        total = len(mask) - lag
        assert chisquare([both, total - both], [total * 0.01, total * 0.99]).pvalue > 1e-4


def test_masks_depend_on_seed_process_step_and_position_alone():
    def draw(seed=1, process=0, step=4, skip=0):
        stream = DropoutStream(seed, process)
        stream.move_to(step)
        for _ in range(skip):
            stream.draw_mask(torch.Size([8]), 0.5)
        return stream.draw_mask(torch.Size([256]), 0.5)

    assert torch.equal(draw(), draw())
    for change in ({"seed": 2}, {"process": 1}, {"step": 5}, {"skip": 1}):
        assert not torch.equal(draw(), draw(**change)), change


def test_gradients_pass_where_values_do():
    values = torch.ones(5000, requires_grad=True)
    kept = DropoutStream(0).drop(values, 0.3)
    (kept * 2).sum().backward()
    assert torch.equal(values.grad, 2 * kept.detach())


def test_the_mean_is_kept_in_a_layer_of_a_model():
    model = make_bert(0.2).train()
    values = torch.ones(200, 32, 32)
    with fast_dropout(model, DropoutStream(0)):
        assert model.dropout(values).mean() == pytest.approx(1.0, abs=0.01)
        assert torch.equal(model.eval().dropout(values), values)


def test_attention_equals_the_formula_when_next_to_nothing_is_dropped():
    """With p too small to drop anything, a step in training mode is one without dropout."""
    model, batch = make_bert(1e-6), make_batch()
    expected = model.eval()(**batch)
    with fast_dropout(model.train(), DropoutStream(0)):
        outputs = model(**batch)
        outputs.loss.backward()
    assert torch.allclose(outputs.logits, expected.logits, atol=1e-6)


def test_attention_drops_weights_of_tokens_and_never_reads_padding():
    model = make_bert(0.0)
    model.config.attention_probs_dropout_prob = 0.4
    for layer in model.bert.encoder.layer:
        layer.attention.self.dropout.p = 0.4
    batch = make_batch()
    with fast_dropout(model.train(), stream := DropoutStream(0)):
        first = model(**batch).logits
        stream.move_to(1)
        second = model(**batch).logits
        stream.move_to(2)
        changed = batch["input_ids"].clone()
        changed[1, 4:] = 7
        stream.move_to(1)
        padded = model(**{**batch, "input_ids": changed}).logits
    assert not torch.allclose(first, second)
    assert torch.allclose(second, padded, atol=1e-6)


@pytest.mark.parametrize(("tokens", "fused"), [(6, False), (300, True)])
def test_short_rows_in_bf16_do_without_fused_attention_if_nothing_is_dropped(tokens, fused, monkeypatch):
    calls, sdpa = [], dropout.sdpa_attention_forward
    monkeypatch.setattr(
        dropout, "sdpa_attention_forward", lambda *args, **named: calls.append(1) or sdpa(*args, **named)
    )
    model, ids = make_bert(0.0), torch.arange(4 * tokens).reshape(4, tokens) % 50
    batch = {"input_ids": ids, "attention_mask": ids.ne(0).long(), "labels": torch.zeros(4, dtype=torch.long)}

    def gradients():
        model.zero_grad()
        model(**batch).loss.backward()
        return torch.cat([weight.grad.flatten() for weight in model.parameters()])

    expected = gradients()
    with fast_dropout(model.train(), DropoutStream(0)), torch.autocast("cpu", torch.bfloat16):
        assert (gradients() - expected).norm() < 0.02 * expected.norm()
        assert bool(calls) == fused
        with torch.no_grad():
            model(**batch)
        assert calls


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(("dtype", "exact"), [(torch.float32, 1e-6), (torch.bfloat16, 0.02)])
@pytest.mark.parametrize("length", [5, 16, 20, 40])
def test_attention_and_its_gradients_are_torchs_at_every_length(length, dtype, exact, masked):
    states = [torch.randn(2, 4, length, 8, dtype=dtype) for _ in range(3)]
    mask = (torch.arange(length) < torch.tensor([length, 3])[:, None])[:, None, None].expand(2, 1, length, length)
    mask = mask if masked else None
    ours, theirs = ([each.clone().requires_grad_() for each in states] for _ in range(2))
    attended, _ = dropout._attend(DropoutStream(0), torch.nn.Module(), *ours, mask, dropout=1e-6)
    expected = functional.scaled_dot_product_attention(*theirs, attn_mask=mask).transpose(1, 2)
    weights = torch.randn_like(expected)
    for output in (attended, expected):
        (output * weights).sum().backward()
    torch.testing.assert_close(attended, expected, rtol=exact, atol=exact)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=3 * exact, atol=3 * exact)


def test_queries_and_keys_in_fp32_are_cast_to_the_dtype_of_values():
    query, key, value = (torch.randn(2, 4, 20, 8, requires_grad=True) for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        attended, _ = dropout._attend(DropoutStream(0), torch.nn.Module(), query, key, value.bfloat16(), None)
    assert "ScaledDotProduct" not in str(attended.grad_fn.next_functions[0][0].next_functions)
    expected = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2)
    torch.testing.assert_close(attended.float(), expected, rtol=0.03, atol=0.03)


def test_several_queries_may_share_a_key():
    query, key, value = (torch.randn(2, heads, 5, 8) for heads in (4, 2, 2))
    attended, _ = dropout._attend(DropoutStream(0), torch.nn.Module(), query, key, value, None, dropout=1e-6)
    expected = functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
    assert torch.allclose(attended, expected.transpose(1, 2), atol=1e-6)


def test_scores_in_evaluation_are_those_of_the_model_as_it_was():
    model, batch = make_bert().eval(), make_batch()
    expected = model(**batch).logits
    before = model.config._attn_implementation
    with fast_dropout(model, DropoutStream(0)):
        assert torch.equal(model(**batch).logits, expected)
    assert model.config._attn_implementation == before
    torch.manual_seed(5)
    values = torch.ones(64)
    torch.manual_seed(5)
    expected = functional.dropout(values, 0.1)
    torch.manual_seed(5)
    assert torch.equal(model.train().dropout(values), expected)


def test_all_dropout_of_an_encoder_is_set_and_that_of_a_head_left_alone():
    config = BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.2, classifier_dropout=0.3)
    assert get_dropout_rates(config) == {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.2}
    set_dropout(config, 0.1)
    assert set(get_dropout_rates(config).values()) == {0.1} and config.classifier_dropout == 0.3
