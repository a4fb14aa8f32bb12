"""Attention and hidden states of a forward pass, for distillation and analysis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from bertkit.errors import ModelError
from bertkit.modeling.architectures import get_layers
from bertkit.modeling.info import LayerOutput, Model, patch_attention
from bertkit.tokens.features import Batch

# The attention weights of a token sum to 1, up to rounding.
_MIN_WEIGHT_SUM = 0.999

AttentionMaps = dict[nn.Module, Tensor]
"""Attention module -> log-probabilities or scores of its last forward pass, shape (texts, heads, tokens, tokens)."""


@contextmanager
def capture_attention(
    model: Model, role: Literal["student", "teacher"], *, in_training_only: bool = False, scores: bool = False
) -> Iterator[AttentionMaps]:
    """Capture the attention log-probabilities of each layer inside the `with` block.

    Args:
        model: Model whose attention is read.
        role: Part of the patch's name. A student and its teacher are patched at the same time, and transformers
            registers attention functions by name for the complete process.
        in_training_only: Whether to capture nothing while the model is in evaluation mode.
        scores: Whether to capture the scores before the softmax instead of log-probabilities; masked scores are -1e9.

    Yields:
        the maps of the last forward pass.

    Raises:
        ModelError: If the model has its own implementation of attention.
    """
    maps: AttentionMaps = {}

    def attend(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if in_training_only and not module.training:
            return sdpa_attention_forward(module, *args, **kwargs)
        masked_scores, log_probs, outputs = _attend(*args, **kwargs)
        maps[module] = masked_scores if scores else log_probs
        return outputs, None

    name = f"bertkit-keeping-{role}"
    # A map covers all rows of a batch, so unpadding, which calls attention for groups of rows, is not allowed.
    with patch_attention(model, name, attend, can_split_rows=False):
        if model.config._attn_implementation != name:
            message = f"the attention of a {model.config.model_type} model cannot be read"
            raise ModelError(message, "match hidden states only")
        yield maps


@contextmanager
def capture_hidden_states(layers: Iterable[nn.Module], states: dict[nn.Module, Tensor]) -> Iterator[None]:
    """Write the hidden states of layers into `states` inside the `with` block. Shape: (texts, tokens, width)."""

    def capture(layer: nn.Module, _: object, output: LayerOutput) -> None:
        states[layer] = output[0] if isinstance(output, tuple) else output

    with ExitStack() as hooks:
        for layer in layers:
            hooks.callback(layer.register_forward_hook(capture).remove)
        yield


def preserve_sliding_window(model: Model) -> None:
    """Make layers with a sliding window apply it to four-dimensional masks too, as for packed documents.

    transformers passes a mask of shape (rows, 1, tokens, tokens) unchanged to layers of every type.
    """
    types: list[str] = getattr(model.config, "layer_types", None) or []
    # Mask of the current batch, or empty.
    window_masks: list[Tensor] = []

    def narrow_mask(encoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        mask = kwargs.get("attention_mask")
        window_masks.clear()
        if isinstance(mask, Tensor) and mask.dim() == 4:
            positions = torch.arange(mask.shape[-1], device=mask.device)
            window_masks.append(mask & ((positions[:, None] - positions).abs() <= model.config.sliding_window))

    def use_mask(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[object, ...] | None:
        return (args, {**kwargs, "attention_mask": window_masks[0]}) if window_masks else None

    if "sliding_attention" in types:
        model.base_model.register_forward_pre_hook(narrow_mask, with_kwargs=True)
        for layer, kind in zip(get_layers(model), types, strict=False):
            if kind == "sliding_attention":
                layer.register_forward_pre_hook(use_mask, with_kwargs=True)


def compute_attention_weights(model: Model, batch: Batch) -> list[Tensor]:
    """Compute the attention weights of each layer. Shape: (rows, heads, tokens, attended tokens).

    The weights of a token sum to 1 over the last axis. Attention is computed eagerly, because fused kernels return no
    weights.

    Args:
        model: Model in evaluation mode.
        batch: ``input_ids``, ``attention_mask`` and other inputs.

    Raises:
        ModelError: If the model returns no weights, or weights of another shape or sum.
    """
    implementation = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            weights = list(model(**batch, output_attentions=True).attentions or ())
    finally:
        model.set_attn_implementation(implementation)
    rows, tokens = batch["input_ids"].shape
    if not weights or any(layer is None or layer.shape != (rows, layer.shape[1], tokens, tokens) for layer in weights):
        message = f"a {model.config.model_type} model does not return the attention weights of all pairs of tokens"
        raise ModelError(message, "name an encoder such as BERT, RoBERTa, DeBERTa or ModernBERT")
    is_token = batch["attention_mask"].bool()
    if min(float(layer.sum(-1).transpose(1, 2)[is_token].min()) for layer in weights) < _MIN_WEIGHT_SUM:
        raise ModelError(f"the attention weights of a {model.config.model_type} model do not add up to 1")
    return weights


def get_attention_map(layer: nn.Module, maps: AttentionMaps) -> Tensor:
    """Return the attention map of a layer. Shape: (texts, heads, tokens, tokens)."""
    return next(maps[module] for module in layer.modules() if module in maps)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **_: object,
) -> tuple[Tensor, Tensor, Tensor]:
    """Attend as transformers' own functions do, and return also what they discard.

    In this example, the mask hides the second of two tokens from the first. So the first token attends only to itself,
    and the second mostly to itself:

    >>> states, mask = torch.eye(2)[None, None], torch.tensor([[True, False], [True, True]])[None, None]
    >>> scores, log_probs, outputs = _attend(states, states, states, mask, scaling=1.0)
    >>> scores[0, 0].tolist(), [[round(weight, 2) for weight in row] for row in log_probs[0, 0].exp().tolist()]
    ([[1.0, -1000000000.0], [0.0, 1.0]], [[1.0, 0.0], [0.27, 0.73]])

    Args:
        query: Shape (rows, heads, tokens, width), like `key` and `value`.
        key: See `query`.
        value: See `query`.
        attention_mask: True for tokens that are attended to, shape (rows, 1, tokens, tokens), or None for all.
        dropout: Probability of dropping a weight.
        scaling: Factor of the scores; by default 1 / sqrt(width).

    Returns:
        scores and log-probabilities, both (rows, heads, tokens, tokens), and outputs, (rows, tokens, heads, width).
    """
    scores = torch.matmul(query * (scaling or query.size(-1) ** -0.5), key.transpose(2, 3)).float()
    # Masked scores are finite, because log-probabilities of two models are subtracted later: -inf minus -inf is NaN.
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, -1e9)
    log_probs = scores.log_softmax(dim=-1)
    weights = functional.dropout(log_probs.exp().to(value.dtype), dropout)
    return scores, log_probs, torch.matmul(weights, value).transpose(1, 2).contiguous()
