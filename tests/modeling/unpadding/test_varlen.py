"""Layers without padding whose attention takes the edges of rows: the same logits and gradients as padded ones.

A function with the arguments of torch's stands in for it, since that runs on a GPU only.
"""

from __future__ import annotations

import inspect
from contextlib import nullcontext

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from bertkit.hardware.precision import ComputeConfig
from bertkit.modeling.architectures import ARCHITECTURES
from bertkit.modeling.cls_only import cls_only_last_layer
from bertkit.modeling.unpadding.attend import VarlenAttention, find_varlen_problem, load_varlen
from bertkit.modeling.unpadding.hooks import unpad_layers
from tests.kills import slow_unless
from tests.modeling.tiny_models import make_tiny, make_tiny_batch

TYPES = [name for name, known in ARCHITECTURES.items() if known.can_unpad and not known.has_relative_attention]
LENGTHS = (3, 12, 5, 5, 4, 11)


def plain_varlen(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1), enable_gqa=False
):
    """Attend row by row as `varlen_attn` does: (tokens, heads, width) each, which it wants of one dtype."""
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32 and cu_seq_q[0] == 0 and cu_seq_q[-1] == len(query)
    assert max_q == max_k == cu_seq_q.diff().max() and query.dtype == key.dtype == value.dtype
    assert enable_gqa == (query.shape[1] != key.shape[1])
    if enable_gqa:
        key, value = (states.repeat_interleave(query.shape[1] // states.shape[1], dim=1) for states in (key, value))
    left, right = (reach if reach >= 0 else max_q for reach in window_size)
    rows = []
    for start, end in zip(cu_seq_q[:-1].tolist(), cu_seq_q[1:].tolist(), strict=True):
        scores = torch.einsum("qhw,khw->hqk", query[start:end], key[start:end]) * (scale or query.shape[-1] ** -0.5)
        distance = torch.arange(end - start) - torch.arange(end - start)[:, None]
        is_seen = (distance >= -left) & (distance <= right)
        weights = scores.masked_fill(~is_seen, float("-inf")).softmax(-1)
        rows.append(torch.einsum("hqk,khw->qhw", weights, value[start:end]))
    return torch.cat(rows)


def run(model, batch, context):
    with context:
        logits = model(**batch).logits
        (logits * torch.linspace(-1, 1, logits.numel()).view(logits.shape)).sum().backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    model.zero_grad()
    return [logits.detach(), *gradients]


@pytest.mark.parametrize("model_type", slow_unless(["bert", "modernbert", "ultrabert", "gte"], TYPES))
@pytest.mark.parametrize("is_short", [False, True])
def test_logits_and_gradients_are_those_of_padded_rows(model_type, is_short):
    model, windows = make_tiny(model_type, AutoModelForSequenceClassification), []
    whole, window = (-1, -1), (3, 3)
    if is_short:
        cls_only_last_layer(model)
    batch = make_tiny_batch(LENGTHS)
    expected = run(model, batch, nullcontext())

    def counted(*states, **named):
        windows.append(named.get("window_size", whole))
        return plain_varlen(*states, **named)

    torch.testing.assert_close(run(model, batch, unpad_layers(model, counted)), expected, rtol=1e-4, atol=1e-6)
    known = {"modernbert": [whole, window], "ultrabert": [window, whole]}.get(model_type, [whole, whole])
    assert windows == (known[:1] if is_short else known)


def test_the_function_that_stands_in_has_the_arguments_of_torchs():
    theirs = inspect.signature(load_varlen()).parameters
    ours = inspect.signature(plain_varlen).parameters
    assert list(theirs)[:7] == list(ours)[:7]
    assert all(theirs[name].default == ours[name].default for name in list(ours)[7:])


def test_rows_without_tokens_have_no_edges():
    attention = VarlenAttention(torch.tensor([[1, 1, 0], [0, 0, 0], [1, 1, 1]]), plain_varlen, torch.device("cpu"))
    cu_seqlens, _, max_seqlen, _ = attention.row_limits
    assert (cu_seqlens.tolist(), cu_seqlens.dtype) == ([0, 2, 5], torch.int32)
    assert (max_seqlen, attention.packed.size) == (3, 5)
    assert attention.packed.indices.tolist() == [0, 1, 6, 7, 8]


VARLEN = "variable-length attention"


@pytest.mark.parametrize(
    ("model_type", "config", "precision", "why"),
    [
        ("modernbert", {"num_attention_heads": 2}, "bf16", None),
        ("modernbert", {}, "fp32", f"{VARLEN} is not computed in fp32"),
        ("modernbert", {"num_attention_heads": 4}, "bf16", f"{VARLEN} does not support heads of width 4"),
        ("bert", {}, "bf16", f"{VARLEN} has no dropout, and this model has some"),
        ("bert", {"attention_probs_dropout_prob": 0.0}, "bf16", None),
        ("mpnet", {}, "bf16", f"{VARLEN} does not support the relative positions of mpnet"),
    ],
)
def test_why_a_model_stays_padded_on_a_gpu(monkeypatch, model_type, config, precision, why):
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    model = make_tiny(model_type, AutoModelForSequenceClassification, config=config)
    machine = ComputeConfig("cuda", precision, 1, "")
    assert find_varlen_problem(model, machine) == why
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert find_varlen_problem(model, machine) == (why or "torch has no flash attention for this GPU")


def test_a_release_of_torch_without_windows_or_shared_keys_stays_padded(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr("bertkit.modeling.unpadding.attend.load_varlen", lambda: lambda query, *, scale=None: None)
    shape, grouped = {"num_attention_heads": 2}, {"num_attention_heads": 2, "num_key_value_heads": 1}
    whys = []
    for name, config in {"modernbert": shape, "eurobert": grouped, "bert": {"attention_probs_dropout_prob": 0}}.items():
        model = make_tiny(name, AutoModelForSequenceClassification, config=config)
        whys.append(find_varlen_problem(model, ComputeConfig("cuda", "bf16", 1, "")))
    assert [why and why.partition(" in torch ")[0] for why in whys] == [
        f"{VARLEN} does not support window_size",
        f"{VARLEN} does not support enable_gqa",
        None,
    ]


def test_dropout_in_attention_is_an_error_and_no_silent_difference():
    model = make_tiny("bert", AutoModelForSequenceClassification, dropout=0.1)
    with pytest.raises(ValueError, match="has no dropout"), unpad_layers(model, plain_varlen):
        model(**make_tiny_batch(LENGTHS))
    assert model.config._attn_implementation == "sdpa"
