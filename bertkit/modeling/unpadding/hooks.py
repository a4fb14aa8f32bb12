"""Training without padding between the first layer and the last, by hooks and a replaced attention.

Embeddings and heads see padded batches as usual. In between, a forward pass takes five steps:

1. A hook before the encoder notes the attention mask of the batch, unless it has little padding.
2. A hook before the first layer packs the hidden states: (rows, tokens, width) to (1, packed tokens, width).
3. A hook before each layer packs the rotary positions, if the model has them.
4. Attention keeps the rows apart (`bertkit.modeling.unpadding.attend`).
5. A hook after the last layer puts the padding back, as zeros.

Logits and gradients are the same as with padding, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import ModelOutput

from bertkit.hardware.device import Device
from bertkit.hardware.tensors import on_host
from bertkit.modeling.architectures import get_architecture, get_layers, shares_layers
from bertkit.modeling.cls_only import is_cls_only, split_heads
from bertkit.modeling.info import LayerOutput, Model, attention_can_split_rows, patch_attention, patch_forward
from bertkit.modeling.unpadding.attend import (
    AttentionFunction,
    GroupedAttention,
    States,
    VarlenAttention,
    VarlenFunction,
    torch_varlen,
)
from bertkit.modeling.unpadding.layout import PackedBatch
from bertkit.tokens.features import Tensors

if TYPE_CHECKING:
    from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention
    from transformers.models.mpnet.modeling_mpnet import MPNetSelfAttention

_NAME = "bertkit-unpadded"  # registered name of the attention function
# A batch stays padded if a larger fraction of its tokens is real: gathers and scatters would cost more than they save.
_MAX_REAL_FRACTION = 0.85
_READ_OUTPUTS = ("output_hidden_states", "output_attentions")


@contextmanager
def unpad_layers(model: Model, varlen: VarlenFunction | None = None) -> Iterator[tuple[nn.Module, ...]]:
    """Compute no padding in the layers of a model while it trains, if its type is known and no hook reads its layers.

    Attention is computed in groups of rows on a CPU, and by torch's variable-length attention on a GPU. On a CPU, the
    attention function in force is called for a few rows at a time, so it must be sdpa or a patch that allows this.

    Args:
        model: On its device. On a GPU, `find_varlen_problem` must be None.
        varlen: Function for variable-length attention, also on a CPU.

    Yields:
        the layers that compute no padding, or an empty tuple if none can.
    """
    layers = _find_layers(model)
    if not layers:
        yield ()
        return
    if varlen is None and not Device(model.device.type).is_cpu:
        varlen = torch_varlen()
    implementation = model.config._attn_implementation
    unpadding = _Unpadding(ALL_ATTENTION_FUNCTIONS.get(implementation), varlen, model.device)
    with ExitStack() as patches:
        if get_architecture(model.config).has_relative_attention:
            patches.enter_context(_grouped_relative_attention(layers, unpadding))
        else:
            patches.enter_context(patch_attention(model, _NAME, unpadding.attend, can_split_rows=False))
        before = partial(nn.Module.register_forward_pre_hook, with_kwargs=True)
        for hook in (
            before(model.base_model, unpadding.note_mask),
            before(layers[0], unpadding.unpad),
            *(before(layer, unpadding.unpad_positions) for layer in layers),
            layers[-1].register_forward_hook(unpadding.pad),
        ):
            patches.callback(hook.remove)
        yield tuple(layers)


def _find_layers(model: Model) -> list[nn.Module]:
    """List the layers that can compute packed tokens, or none if the model must stay padded.

    A last layer for the first token only is not among them: it runs after the padding is back.
    """
    architecture = get_architecture(model.config)
    can_split_rows = architecture.has_relative_attention or attention_can_split_rows(model)
    if not (architecture.can_unpad and can_split_rows) or getattr(model.config, "conv_kernel_size", None):
        return []  # a convolution would mix tokens of neighboring rows
    # Layers that share their weights run several times, so hooks are set on the encoder that contains them.
    layers = [model.base_model.encoder] if shares_layers(model.config) else get_layers(model)
    if any(layer._forward_hooks for layer in layers):
        return []
    return [layer for layer in layers if not is_cls_only(layer)]


class _Unpadding:
    """State of the current batch that hooks and attention share; the methods are the hooks."""

    def __init__(self, attend_padded: AttentionFunction, varlen: VarlenFunction | None, device: torch.device) -> None:
        self.attend_padded, self.varlen, self.device = attend_padded, varlen, device
        self.mask: Tensor | None = None
        # Set between the first layer and the last, if the batch is packed.
        self.attention: Any = None

    def note_mask(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Keep the mask of a batch with enough padding, as a hook before the encoder."""
        mask = named.get("attention_mask")
        self.mask = self.attention = None
        is_read = any(named.get(name) or getattr(module.config, name, False) for name in _READ_OUTPUTS)
        # Evaluations sort all rows by length, so their batches have little padding and stay as they are.
        if module.training and not is_read and mask is not None and mask.dim() == 2:
            mask = on_host(mask)
            self.mask = mask if mask.float().mean() < _MAX_REAL_FRACTION else None

    def unpad(
        self, layer: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Pack (rows, tokens, width) to (1, packed tokens, width), as a hook before the first layer."""
        if self.mask is None:
            return None
        if self.varlen is None:
            self.attention = GroupedAttention(self.mask, self.attend_padded)
        else:
            self.attention = VarlenAttention(self.mask, self.varlen, self.device)
        states, *other_arguments = arguments
        # Layers want a batch: here, one of a single row.
        return (self.attention.packed.unpad(states)[None], *other_arguments), named

    def unpad_positions(
        self, layer: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Pack the rotary positions that a layer gets for the padded batch, as a hook before it."""
        positions = named.get("position_embeddings")
        if self.attention is None or positions is None:
            return None
        packed: PackedBatch = self.attention.packed

        def unpad(values: Tensor) -> Tensor:
            # (rows or 1, tokens, width); a single row stands for all
            rows = values.expand(packed.shape[0], -1, -1)
            return packed.compute_once(values, lambda: packed.unpad(rows)[None])

        return arguments, {**named, "position_embeddings": tuple(map(unpad, positions))}

    def pad(self, layer: nn.Module, arguments: object, outputs: ModelOutput | LayerOutput) -> ModelOutput | None:
        """Put the padding back as zeros, as a hook after the last layer: (rows, tokens, width)."""
        if self.attention is None:
            return None
        # A last layer for the first token only runs after this one and reads a padded batch.
        packed: PackedBatch = self.attention.packed
        self.attention = None
        if isinstance(outputs, Tensor):
            return packed.pad(outputs[0])
        if isinstance(outputs, tuple):
            return packed.pad(outputs[0][0]), *outputs[1:]
        outputs["last_hidden_state"] = packed.pad(outputs["last_hidden_state"][0])
        return outputs

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **named: object,
    ) -> tuple[Tensor, Any]:
        """Attend within the rows of a packed batch, and to a padded one with the attention function in force."""
        if self.attention is None or attention_mask is None:
            return self.attend_padded(module, query, key, value, attention_mask, **named)
        return self.attention.attend(module, (query, key, value), attention_mask, **named), None


@contextmanager
def _grouped_relative_attention(layers: Sequence[nn.Module], unpadding: _Unpadding) -> Iterator[None]:
    """Patch attention with relative positions, which transformers computes inside the layers, to work in groups."""
    with ExitStack() as patches:
        for layer in layers:
            for module in layer.modules():
                # MPNet's attention has its output projection `o` inside; DeBERTa's lists its products.
                attend = _biased if hasattr(module, "o") else _disentangled if hasattr(module, "pos_att_type") else None
                if attend is not None:
                    patches.enter_context(patch_forward(module, partial(attend, module, module.forward, unpadding)))
        yield


def _biased(
    module: MPNetSelfAttention,
    forward: Callable[..., tuple[Tensor, ...]],
    unpadding: _Unpadding,
    states: Tensor,
    mask: Tensor,
    bias: Tensor,
    **named: object,
) -> tuple[Tensor, ...]:
    """Attend with a bias for each head and distance, (rows, heads, tokens, tokens), as MPNet does."""
    attention: GroupedAttention | None = unpadding.attention
    if attention is None:
        return forward(states, mask, bias, **named)
    projected = [split_heads(layer(states), module.attention_head_size) for layer in (module.q, module.k, module.v)]
    # Rounding can make a group longer than the batch. No token attends to what it adds.
    longer = max(max(group.length for group in attention.groups) - bias.shape[-1], 0)
    bias = functional.pad(bias[:1], (0, longer, 0, longer))
    attended = [
        _attend(module.dropout, states, bias[..., : states[0].shape[2], : states[0].shape[2]], mask)
        for states, mask in _split_states(attention, projected)
    ]
    return (module.o(attention.join(attended).flatten(2)),)


def _disentangled(
    module: DisentangledSelfAttention,
    forward: Callable[..., tuple[Tensor, None]],
    unpadding: _Unpadding,
    states: Tensor,
    mask: Tensor,
    output_attentions: bool = False,
    *,
    rel_embeddings: Tensor | None = None,
    **named: object,
) -> tuple[Tensor, None]:
    """Attend with products of tokens and distances, as DeBERTa-v2 does.

    transformers multiplies each token by all distances that the model knows, 512 in DeBERTa-v3, and looks up those that
    occur. This function multiplies only by the distances that occur in a group. This is faster for padded batches, too.
    """
    attention: GroupedAttention | None = unpadding.attention
    if attention is None and (not module.training or output_attentions or rel_embeddings is None):
        return forward(states, mask, output_attentions, rel_embeddings=rel_embeddings, **named)
    projections = module.query_proj, module.key_proj, module.value_proj
    query, key, value = (split_heads(project(states), module.attention_head_size) for project in projections)
    projected = (query, key, value)
    groups = [(projected, mask.bool())] if attention is None else _split_states(attention, projected)
    longest = max(query.shape[2] for (query, *_), _ in groups)
    distances = {} if rel_embeddings is None else _project_distances(module, rel_embeddings, longest)
    scale = (module.attention_head_size * (1 + len({"c2p", "p2c"} & {*module.pos_att_type}))) ** -0.5
    attended = []
    for (query, key, value), mask in groups:
        length, bias = query.shape[2], torch.zeros(())
        query = query * scale
        if "c2p" in distances:
            # The distance from a query to the keys falls from key to key.
            nearby = distances["c2p"][:, longest - length : longest + length].flip(1)
            bias = bias + _at_distances(query, nearby)
        if "p2c" in distances:
            nearby = distances["p2c"][:, longest - length + 1 : longest + length + 1]
            bias = bias + _at_distances(key, nearby * scale).transpose(2, 3)
        attended.append(_attend(module.dropout, (query, key, value), bias, mask, scale=1.0))
    joined = attended[0] if attention is None else attention.join(attended)
    return joined.flatten(2), None


def _split_states(attention: GroupedAttention, projected: Sequence[Tensor]) -> list[tuple[States, Tensor]]:
    """Split queries, keys and values into the groups of a batch, each with its mask."""
    query, key, value = map(attention.split, projected)
    masks = [group.is_attended for group in attention.groups]
    return list(zip(zip(query, key, value, strict=True), masks, strict=True))


def _project_distances(module: DisentangledSelfAttention, embeddings: Tensor, longest: int) -> Tensors:
    """Compute the keys (c2p) and queries (p2c) of the distances from -longest to longest, (heads, distances, width)."""
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    span, distances = module.pos_ebd_size, torch.arange(-longest, longest + 1)
    if module.position_buckets > 0:
        distances = make_log_bucket_position(distances, module.position_buckets, module.max_relative_positions)
    # Far distances share an embedding, so only the embeddings that occur are projected, and then looked up.
    rows = (distances.long() + span).clamp(0, 2 * span - 1)
    embeddings_in_use = module.pos_dropout(embeddings[rows[0] : rows[-1] + 1])[None]
    projections: dict[str, Any] = (
        {"c2p": module.key_proj, "p2c": module.query_proj}
        if module.share_att_key
        else {"c2p": getattr(module, "pos_key_proj", None), "p2c": getattr(module, "pos_query_proj", None)}
    )
    return {
        kind: split_heads(project(embeddings_in_use), module.attention_head_size)[0].index_select(1, rows - rows[0])
        for kind, project in projections.items()
        if kind in module.pos_att_type
    }


def _at_distances(states: Tensor, distances: Tensor) -> Tensor:
    """Multiply tokens by their distances to all others of a row: (rows, heads, length, length).

    Args:
        states: (rows, heads, length, width).
        distances: (heads, 2 * length, width); the distance of token i to token j has the index length - 1 - i + j.

    >>> states, distances = torch.ones(1, 1, 4, 1), torch.arange(8.0).view(1, 8, 1)
    >>> _at_distances(states, distances)[0, 0].int().tolist()
    [[3, 4, 5, 6], [2, 3, 4, 5], [1, 2, 3, 4], [0, 1, 2, 3]]
    """
    rows, heads, length, _ = states.shape
    # One product per head over the tokens of all rows: (heads, rows * length, 2 * length). Each row of the result is
    # one longer than a step along the diagonal. So a view with rows that are one shorter moves the values that row i
    # needs to its start.
    products = states.transpose(0, 1).flatten(1, 2) @ distances.transpose(1, 2)
    shifted = products.view(heads, rows, -1)[..., length - 1 : -1]
    return shifted.view(heads, rows, length, -1)[..., :length].transpose(0, 1)


def _attend(dropout: nn.Module, states: States, bias: Tensor, mask: Tensor, *, scale: float | None = None) -> Tensor:
    """Attend by plain products, (rows, heads, length, width) to (rows, length, heads, width)."""
    query, key, value = states
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.matmul(query if scale == 1 else query * scale, key.transpose(2, 3)) + bias
    # The lowest number is finite. A softmax over a row of -inf would be NaN.
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.matmul(dropout(scores.softmax(dim=-1).to(value.dtype)), value).transpose(1, 2)
