"""Last layer computed for the first token only, because a classifier reads no other token.

The layer computes keys and values for all tokens, and everything else for the first token. A layer costs as much as
twelve products of width x width per token: four in attention, eight in the feed-forward. Ten of them shrink to one
token per row. The result is the same. This saves 1/7 of an encoder with six layers, and 1/14 of one with twelve.

For ``[CLS] a b [SEP]``, keys and values are (rows, 4, width). The query is (rows, 1, width), so attention weights are
(rows, heads, 1, 4) instead of (rows, heads, 4, 4), and the rest of the layer computes one token.
"""

from __future__ import annotations

import inspect
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from bertkit.modeling.architectures import get_architecture, get_layers, is_causal
from bertkit.modeling.info import Forward, Layer, LayerOutput, Model, Output
from bertkit.tokens.features import Tensor

if TYPE_CHECKING:
    from torch import nn

_TEXT_CLASSES = ("ForSequenceClassification", "ForMultipleChoice", "ForWindowClassification")


def read_one_token(model: Model, *, cls_only: bool) -> None:
    """Make a head for texts read the last token of a left-to-right model, and the first token of other models.

    Args:
        model: Model; it is not changed if its head reads all tokens.
        cls_only: Whether the last layer computes only the first token.
    """
    if not type(model).__name__.endswith(_TEXT_CLASSES):
        return
    if is_causal(model.config):
        _read_last_token(model)
    elif cls_only:
        cls_only_last_layer(model)


def cls_only_last_layer(model: Model) -> None:
    """Make the last layer return the first token only, if bertkit knows its submodules. Shape: (rows, 1, width).

    The model is not changed if its head reads the mean of all tokens.
    """
    architecture = get_architecture(model.config)
    reads_first = getattr(model, "reads_first_token", False)
    reads_first = reads_first or getattr(model.config, "classifier_pooling", "cls") in ("cls", "bos")
    can_shorten = architecture.is_bert_like or (architecture.is_rotary and reads_first)
    layers = get_layers(model) if can_shorten else []
    if not layers or is_cls_only(layers[-1]):
        return
    layer = layers[-1]
    layer.is_cls_only = True
    if architecture.is_rotary:
        attention = layer.attn if hasattr(layer, "attn") else layer.self_attn
        attention.forward = partial(_attend_rotary, attention)
        layer.forward = partial(_forward_rotary, layer)
    else:
        layer.forward = partial(_forward_bert, layer)


def is_cls_only(layer: nn.Module) -> bool:
    """Return whether `cls_only_last_layer` has changed a layer."""
    return bool(getattr(layer, "is_cls_only", False))


def _read_last_token(model: Model) -> None:
    """Make the head of a left-to-right model read the last token, because the first token attends to no other."""
    # Index of each row's last token in the current batch, or None if the batch has no mask.
    indices: list[Tensor | None] = []

    def find_last(_: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
        indices[:] = [None if mask is None else mask.sum(dim=-1) - 1]

    def select_last(_: object, inputs: object, outputs: Output) -> Output:
        # (rows, tokens, width) becomes (rows, 1, width), because heads read the first token that they get.
        states, (index,) = outputs["last_hidden_state"], indices
        last_states = states[:, -1] if index is None else states[range(len(states)), index]
        outputs["last_hidden_state"] = last_states[:, None]
        return outputs

    model.base_model.register_forward_pre_hook(find_last, with_kwargs=True)
    model.base_model.encoder.register_forward_hook(select_last)


def _forward_bert(
    layer: Layer, hidden_states: Tensor, attention_mask: Tensor | None = None, *_: object, **__: object
) -> LayerOutput:
    """Run a BERT-like layer for the first token; only keys and values are computed for all tokens."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.bert.modeling_bert import eager_attention_forward

    attention = layer.attention.self
    first = hidden_states[:, :1]
    width = attention.attention_head_size
    # One query per row, (rows, heads, 1, width), attends to all tokens. The products after attention have (rows, 1,
    # width) as input, so their cost does not depend on the length of the texts.
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(attention.config._attn_implementation, eager_attention_forward)
    context, _ = attend(
        attention,
        split_heads(attention.query(first), width),
        split_heads(attention.key(hidden_states), width),
        split_heads(attention.value(hidden_states), width),
        # (rows, 1, queries, keys): keep the first query.
        None if attention_mask is None else attention_mask[:, :, :1],
        dropout=attention.dropout.p if attention.training else 0.0,
        scaling=attention.scaling,
    )
    attention_output = layer.attention.output(context.reshape(first.shape[0], 1, -1), first)
    output: Tensor = layer.feed_forward_chunk(attention_output)
    return output


def _forward_rotary(
    layer: Layer, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: object
) -> LayerOutput:
    """Run a rotary layer for the first token; attention gets the states of all tokens as `all_states`."""
    norm = next((getattr(layer, name) for name in ("attn_norm", "input_layernorm") if hasattr(layer, name)), None)
    kwargs["all_states"] = hidden_states if norm is None else norm(hidden_states)
    mask = None if attention_mask is None else attention_mask[:, :, :1]
    # Bypass gradient checkpointing: it drops the gradients of tensors that are passed as keyword arguments.
    forward: Forward = inspect.unwrap(type(layer).forward)
    return forward(layer, hidden_states[:, :1], attention_mask=mask, **kwargs)


def _attend_rotary(
    attention: Any,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    *,
    position_embeddings: tuple[Tensor, Tensor],
    all_states: Tensor,
    **_: object,
) -> tuple[Tensor, None]:
    """Attend from the first token, `hidden_states` (rows, 1, width), to all tokens, `all_states`."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    module = sys.modules[type(attention).__module__]
    query, key, value = (
        split_heads(states, attention.head_dim) for states in _project_states(attention, hidden_states, all_states)
    )
    # This broadcasts the query over the positions of all keys; only the first position is used.
    query, key = module.apply_rotary_pos_emb(query, key, *position_embeddings)
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(
        attention.config._attn_implementation, module.eager_attention_forward
    )
    dropout = attention.attention_dropout if attention.training else 0.0
    scaling = attention.head_dim**-0.5
    context, _ = attend(attention, query[:, :, :1], key, value, attention_mask, dropout=dropout, scaling=scaling)
    context = context.reshape(*hidden_states.shape[:2], -1)
    is_fused = hasattr(attention, "Wqkv")
    return attention.out_drop(attention.Wo(context)) if is_fused else attention.o_proj(context), None


def _project_states(attention: Any, first: Tensor, states: Tensor) -> tuple[Tensor, ...]:
    """Compute the query of the first token, and the keys and values of all tokens."""
    from torch import nn
    from torch.nn import functional

    if not hasattr(attention, "Wqkv"):
        return attention.q_proj(first), attention.k_proj(states), attention.v_proj(states)
    # The weights of an adapter cannot be split.
    if type(attention.Wqkv) is not nn.Linear:
        query, key, value = attention.Wqkv(states).chunk(3, dim=-1)
        return query[:, :1], key, value
    # (3 * width, width): the rows for queries come first, then keys, then values.
    weight, bias = attention.Wqkv.weight, attention.Wqkv.bias
    width = len(weight) // 3
    biases = (None, None) if bias is None else (bias[:width], bias[width:])
    key_value = functional.linear(states, weight[width:], biases[1])
    return functional.linear(first, weight[:width], biases[0]), *key_value.chunk(2, dim=-1)


def split_heads(values: Tensor, width: int) -> Tensor:
    """Turn (rows, tokens, heads * width) into (rows, heads, tokens, width).

    In this example, one row has two tokens, and the states of each token belong to two heads of width 2:

    >>> import torch
    >>> split_heads(torch.tensor([[[1, 2, 3, 4], [5, 6, 7, 8]]]), width=2).tolist()
    [[[[1, 2], [5, 6]], [[3, 4], [7, 8]]]]
    """
    return values.view(*values.shape[:-1], -1, width).transpose(1, 2)
