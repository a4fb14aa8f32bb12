"""Compute of the last layer only what a head reads: the first token.

A classifier reads the summary at the first token and ignores what the last layer makes of all other tokens. Of these,
only keys and values are needed, so ten of the layer's twelve matrix products shrink to one token per row. The result
is the same. It saves a seventh of an encoder with six layers, and a fourteenth of one with twelve.

Of ``[CLS] a b [SEP]``, keys and values are (rows, 4, width) as ever. The query is (rows, 1, width), so attention
weights are (rows, heads, 1, 4) and not (rows, heads, 4, 4), and all that follows sees one token.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from bertkit.modeling.architectures import architecture_of, is_causal, layers_of
from bertkit.modeling.info import Forward, Layer, LayerOutput, Model, Output
from bertkit.tokens.features import Tensor

if TYPE_CHECKING:
    from torch import nn

_TEXT_CLASSES = ("ForSequenceClassification", "ForMultipleChoice", "ForWindowClassification")


def read_one_token(model: Model, *, cls_only: bool) -> None:
    """Make a head for whole texts read the last token of a left-to-right model, and only the first of another.

    Args:
        model: Model with any head; one that reads all tokens stays as it is.
        cls_only: Whether the last layer computes no other token than the first.
    """
    if not type(model).__name__.endswith(_TEXT_CLASSES):
        return
    if is_causal(model.config):
        _read_last_token(model)
    elif cls_only:
        cls_only_last_layer(model)


def cls_only_last_layer(model: Model) -> None:
    """Let the last layer return the first token only, shape (rows, 1, width), where its submodules are known.

    A last layer that does so already stays as it is, and so does one whose head reads a mean of all tokens.
    """
    architecture = architecture_of(model.config)
    reads_first = getattr(model, "reads_first_token", False)
    reads_first = reads_first or getattr(model.config, "classifier_pooling", "cls") in ("cls", "bos")
    known = architecture.is_bert_like or (architecture.is_rotary and reads_first)
    layers = layers_of(model) if known else []
    if not layers or is_cls_only(layers[-1]):
        return
    layer = layers[-1]
    layer.is_cls_only = True
    if architecture.is_rotary:
        attention = _attention_of(layer)
        attention.forward = partial(_attend_rotary, attention, attention.forward)
        layer.forward = partial(_forward_rotary, layer, layer.forward)
    else:
        layer.forward = partial(_forward_bert, layer, layer.forward)


def is_cls_only(layer: nn.Module) -> bool:
    """Return whether a layer computes the first token only, by `cls_only_last_layer`."""
    return bool(getattr(layer, "is_cls_only", False))


def _read_last_token(model: Model) -> None:
    """Let the head of a left-to-right model read the last token, for the first has seen no other."""
    # index of each row's last token in the batch at hand; None without padding
    last: list[Tensor | None] = []

    def note_lengths(_: object, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        mask = named.get("attention_mask", arguments[1] if len(arguments) > 1 else None)
        last[:] = [None if mask is None else mask.sum(dim=-1) - 1]

    def take_last(_: object, inputs: object, outputs: Output) -> Output:
        # (rows, tokens, width) becomes (rows, 1, width): heads read the first of the tokens that they get
        hidden, (index,) = outputs["last_hidden_state"], last
        final = hidden[:, -1] if index is None else hidden[range(len(hidden)), index]
        outputs["last_hidden_state"] = final[:, None]
        return outputs

    model.base_model.register_forward_pre_hook(note_lengths, with_kwargs=True)
    model.base_model.encoder.register_forward_hook(take_last)


def _forward_bert(
    layer: Layer,
    run: Forward,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    *others: object,
    **kwargs: object,
) -> LayerOutput:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.bert.modeling_bert import eager_attention_forward

    # an attention that wants to see all tokens
    if attention_mask is not None and attention_mask.dim() != 4:
        return run(hidden_states, attention_mask, *others, **kwargs)
    attention = layer.attention.self
    first = hidden_states[:, :1]
    width = attention.attention_head_size
    # One query per row, (rows, heads, 1, width), attends to the keys and values of all tokens. Products after this one
    # see (rows, 1, width), so their cost does not depend on the length of the texts.
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(attention.config._attn_implementation, eager_attention_forward)
    summed, _ = attend(
        attention,
        split_heads(attention.query(first), width),
        split_heads(attention.key(hidden_states), width),
        split_heads(attention.value(hidden_states), width),
        # of (rows, 1, queries, keys) the first query, as the only one that is computed
        None if attention_mask is None else attention_mask[:, :, :1],
        dropout=attention.dropout.p if attention.training else 0.0,
        scaling=attention.scaling,
    )
    attended = layer.attention.output(summed.reshape(first.shape[0], 1, -1), first)
    output: Tensor = layer.feed_forward_chunk(attended)
    return output


def _forward_rotary(
    layer: Layer,
    run: Forward,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    **named: object,
) -> LayerOutput:
    """Run a layer on the first token, with its norm before or after each sum; its attention gets all tokens too."""
    # it has windows of its own
    sees_all = "flash" in _attention_of(layer).config._attn_implementation
    if sees_all or (attention_mask is not None and attention_mask.dim() != 4):
        return run(hidden_states, attention_mask=attention_mask, **named)
    norm = next((getattr(layer, name) for name in ("attn_norm", "input_layernorm") if hasattr(layer, name)), None)
    named["all_states"] = hidden_states if norm is None else norm(hidden_states)
    mask = None if attention_mask is None else attention_mask[:, :, :1]
    # the class's own function, without checkpointing, which would lose the gradients of named tensors
    forward: Forward = inspect.unwrap(type(layer).forward)
    return forward(layer, hidden_states[:, :1], attention_mask=mask, **named)


def _attend_rotary(
    attention: Any,
    run: Callable[..., tuple[Tensor, None]],
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    *,
    position_embeddings: tuple[Tensor, Tensor],
    all_states: Tensor | None = None,
    **named: object,
) -> tuple[Tensor, None]:
    """Attend from the first token, (rows, 1, width), to all tokens, with the functions of the model's own module."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if all_states is None:
        return run(hidden_states, attention_mask=attention_mask, position_embeddings=position_embeddings, **named)
    module = sys.modules[type(attention).__module__]
    query, key, value = (
        split_heads(states, attention.head_dim) for states in _project_states(attention, hidden_states, all_states)
    )
    # the one query is broadcast over the positions of all keys, and stands at the first of them
    query, key = module.apply_rotary_pos_emb(query, key, *position_embeddings)
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(
        attention.config._attn_implementation, module.eager_attention_forward
    )
    dropout, scaling = attention.attention_dropout if attention.training else 0.0, attention.head_dim**-0.5
    summed, _ = attend(attention, query[:, :, :1], key, value, attention_mask, dropout=dropout, scaling=scaling)
    summed = summed.reshape(*hidden_states.shape[:2], -1)
    is_fused = hasattr(attention, "Wqkv")
    return attention.out_drop(attention.Wo(summed)) if is_fused else attention.o_proj(summed), None


def _project_states(attention: Any, first: Tensor, states: Tensor) -> tuple[Tensor, ...]:
    """Compute queries of the first token, and keys and values of all."""
    from torch import nn
    from torch.nn import functional

    if not hasattr(attention, "Wqkv"):
        return attention.q_proj(first), attention.k_proj(states), attention.v_proj(states)
    if type(attention.Wqkv) is not nn.Linear:  # with an adapter, which is called as a whole
        query, key, value = attention.Wqkv(states).chunk(3, dim=-1)
        return query[:, :1], key, value
    # of queries, then keys, then values
    weight, bias = attention.Wqkv.weight, attention.Wqkv.bias
    width = len(weight) // 3
    biases = (None, None) if bias is None else (bias[:width], bias[width:])
    key_value = functional.linear(states, weight[width:], biases[1])
    return functional.linear(first, weight[:width], biases[0]), *key_value.chunk(2, dim=-1)


def _attention_of(layer: Layer) -> Any:
    return layer.attn if hasattr(layer, "attn") else layer.self_attn


def split_heads(values: Tensor, width: int) -> Tensor:
    """Turn (rows, tokens, heads * width) into (rows, heads, tokens, width)."""
    return values.view(*values.shape[:-1], -1, width).transpose(1, 2)
