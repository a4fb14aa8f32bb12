"""Training without padding in the layers of a model, by hooks and a replaced attention function.

Embeddings and heads get padded batches as usual. Between them, a forward pass has five steps:

1. A hook before the encoder keeps the attention mask of the batch, unless the batch has little padding.
2. A hook before the first layer packs the hidden states: (rows, tokens, width) to (1, packed tokens, width).
3. A hook before each layer packs the rotary positions, if the model has any.
4. Attention separates the rows (`bertkit.modeling.unpadding.attend`).
5. A hook after the last layer restores the padding, as zeros.

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
    load_varlen,
)
from bertkit.modeling.unpadding.layout import PackedBatch
from bertkit.tokens.features import Tensors

if TYPE_CHECKING:
    from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention
    from transformers.models.mpnet.modeling_mpnet import MPNetSelfAttention

# A batch stays padded if a larger fraction of its tokens is real: gathers and scatters would cost more than they save.
_MAX_REAL_FRACTION = 0.85
_OUTPUT_OPTIONS = ("output_hidden_states", "output_attentions")


@contextmanager
def unpad_layers(model: Model, varlen: VarlenFunction | None = None) -> Iterator[tuple[nn.Module, ...]]:
    """Compute no padding in the layers of a model in training, inside the `with` block.

    The model type must be known, and no hook may read the layers. On a CPU, the current attention function is called
    for groups of rows, so it must be sdpa or a patch with `can_split_rows`. A GPU uses torch's variable-length
    attention.

    Args:
        model: Model on its device. On a GPU, `find_varlen_problem` must return None.
        varlen: Function for variable-length attention, which then runs on a CPU too.

    Yields:
        the layers that compute no padding, or an empty tuple if the model does not support it.
    """
    layers = _find_layers(model)
    if not layers:
        yield ()
        return
    if varlen is None and not Device(model.device.type).is_cpu:
        varlen = load_varlen()
    implementation = model.config._attn_implementation
    unpadding = _Unpadding(ALL_ATTENTION_FUNCTIONS.get(implementation), varlen, model.device)
    with ExitStack() as patches:
        if get_architecture(model.config).has_relative_attention:
            patches.enter_context(_grouped_relative_attention(layers, unpadding))
        else:
            patches.enter_context(patch_attention(model, "bertkit-unpadded", unpadding.attend, can_split_rows=False))
        hook_before = partial(nn.Module.register_forward_pre_hook, with_kwargs=True)
        for hook in (
            hook_before(model.base_model, unpadding.keep_mask),
            hook_before(layers[0], unpadding.unpad),
            *(hook_before(layer, unpadding.unpad_positions) for layer in layers),
            layers[-1].register_forward_hook(unpadding.pad),
        ):
            patches.callback(hook.remove)
        yield tuple(layers)


def _find_layers(model: Model) -> list[nn.Module]:
    """List the layers that can compute packed tokens; empty if the model must stay padded.

    A last layer for the first token only is excluded: it runs on the restored padded batch.
    """
    architecture = get_architecture(model.config)
    can_split_rows = architecture.has_relative_attention or attention_can_split_rows(model)
    # A convolution would mix tokens of neighboring rows.
    if not (architecture.can_unpad and can_split_rows) or getattr(model.config, "conv_kernel_size", None):
        return []
    # A layer with shared weights runs several times, so set hooks on the encoder that contains it.
    layers = [model.base_model.encoder] if shares_layers(model.config) else get_layers(model)
    if any(layer._forward_hooks for layer in layers):
        return []
    return [layer for layer in layers if not is_cls_only(layer)]


class _Unpadding:
    """Hooks, and the state of the current batch that they share."""

    def __init__(self, attend_padded: AttentionFunction, varlen: VarlenFunction | None, device: torch.device) -> None:
        self.attend_padded, self.varlen, self.device = attend_padded, varlen, device
        self.mask: Tensor | None = None
        """Mask on the CPU of a batch to pack, else None. Shape: (rows, tokens)."""
        self.attention: Any = None
        """`GroupedAttention` or `VarlenAttention` while the layers run on a packed batch, else None."""

    def keep_mask(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the mask of a batch with enough padding (hook before the encoder)."""
        mask = kwargs.get("attention_mask")
        self.mask = self.attention = None
        has_outputs = any(kwargs.get(name) or getattr(module.config, name, False) for name in _OUTPUT_OPTIONS)
        # Evaluations sort rows by length, so their batches have little padding.
        if module.training and not has_outputs and mask is not None and mask.dim() == 2:
            mask = on_host(mask)
            self.mask = mask if mask.float().mean() < _MAX_REAL_FRACTION else None

    def unpad(
        self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Pack (rows, tokens, width) to (1, packed tokens, width) (hook before the first layer)."""
        if self.mask is None:
            return None
        if self.varlen is None:
            self.attention = GroupedAttention(self.mask, self.attend_padded)
        else:
            self.attention = VarlenAttention(self.mask, self.varlen, self.device)
        states, *other_arguments = args
        return (self.attention.packed.unpad(states)[None], *other_arguments), kwargs

    def unpad_positions(
        self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Pack the rotary positions of the padded batch (hook before each layer)."""
        positions = kwargs.get("position_embeddings")
        if self.attention is None or positions is None:
            return None
        packed: PackedBatch = self.attention.packed

        def unpad(values: Tensor) -> Tensor:
            # (rows, tokens, width), or (1, tokens, width) if all rows have the same positions
            return packed.compute_once(values, lambda: packed.unpad(values.expand(packed.shape[0], -1, -1))[None])

        return args, {**kwargs, "position_embeddings": tuple(map(unpad, positions))}

    def pad(self, layer: nn.Module, args: object, outputs: ModelOutput | LayerOutput) -> ModelOutput | None:
        """Restore the padding as zeros (hook after the last layer). Shape: (rows, tokens, width)."""
        if self.attention is None:
            return None
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
        **kwargs: object,
    ) -> tuple[Tensor, Any]:
        """Attend within the rows of a packed batch, or run the original attention function on a padded batch."""
        if self.attention is None or attention_mask is None:
            return self.attend_padded(module, query, key, value, attention_mask, **kwargs)
        return self.attention.attend(module, (query, key, value), attention_mask, **kwargs), None


@contextmanager
def _grouped_relative_attention(layers: Sequence[nn.Module], unpadding: _Unpadding) -> Iterator[None]:
    """Make attention with relative positions work in groups of rows, by patching the modules that compute it."""
    with ExitStack() as patches:
        for layer in layers:
            for module in layer.modules():
                # The attention modules of MPNet have the attribute `o`, and DeBERTa's have `pos_att_type`.
                is_mpnet, is_deberta = hasattr(module, "o"), hasattr(module, "pos_att_type")
                attend = _attend_mpnet if is_mpnet else _attend_deberta if is_deberta else None
                if attend is not None:
                    patches.enter_context(patch_forward(module, partial(attend, module, module.forward, unpadding)))
        yield


def _attend_mpnet(
    module: MPNetSelfAttention,
    forward: Callable[..., tuple[Tensor, ...]],
    unpadding: _Unpadding,
    states: Tensor,
    mask: Tensor,
    bias: Tensor,
    **kwargs: object,
) -> tuple[Tensor, ...]:
    """Attend with a bias per head and distance, as MPNet does. Shape of the bias: (rows, heads, tokens, tokens)."""
    attention: GroupedAttention | None = unpadding.attention
    if attention is None:
        return forward(states, mask, bias, **kwargs)
    qkv = [split_heads(layer(states), module.attention_head_size) for layer in (module.q, module.k, module.v)]
    # Rounding can make a group longer than the batch. Pad the bias for the added tokens, which are masked.
    extra = max(max(group.length for group in attention.groups) - bias.shape[-1], 0)
    bias = functional.pad(bias[:1], (0, extra, 0, extra))
    outputs = [
        _attend(module.dropout, states, bias[..., : states[0].shape[2], : states[0].shape[2]], mask)
        for states, mask in _split_states(attention, qkv)
    ]
    return (module.o(attention.join(outputs).flatten(2)),)


def _attend_deberta(
    module: DisentangledSelfAttention,
    forward: Callable[..., tuple[Tensor, None]],
    unpadding: _Unpadding,
    states: Tensor,
    mask: Tensor,
    output_attentions: bool = False,
    *,
    rel_embeddings: Tensor | None = None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """Attend with products of tokens and distances, as DeBERTa-v2 of transformers does (He et al. 2021, section 3.1).

    The score of query i and key j is q_i k_j + q_i K(i - j) + k_j Q(i - j), where K (c2p, content to position) and Q
    (p2c, position to content) are projected embeddings of distances. transformers multiplies each token by all
    distances of the model, 512 in DeBERTa-v3, and then looks up the distances in the text. This function multiplies
    only by the distances in a group, which is faster for padded batches too.
    """
    # 1. Project the states, and split them into groups.
    attention: GroupedAttention | None = unpadding.attention
    if attention is None and (not module.training or output_attentions or rel_embeddings is None):
        return forward(states, mask, output_attentions, rel_embeddings=rel_embeddings, **kwargs)
    projections = module.query_proj, module.key_proj, module.value_proj
    query, key, value = (split_heads(project(states), module.attention_head_size) for project in projections)
    qkv = (query, key, value)
    groups = [(qkv, mask.bool())] if attention is None else _split_states(attention, qkv)
    # 2. Project the embeddings of the distances.
    longest = max(query.shape[2] for (query, *_), _ in groups)
    distances = {} if rel_embeddings is None else _project_distances(module, rel_embeddings, longest)
    scale = (module.attention_head_size * (1 + len({"c2p", "p2c"} & {*module.pos_att_type}))) ** -0.5
    # 3. Attend in each group.
    outputs = []
    for (query, key, value), mask in groups:
        length, bias = query.shape[2], torch.zeros(())
        query = query * scale
        if "c2p" in distances:
            # i - j decreases from key to key, so reverse the distances.
            nearby = distances["c2p"][:, longest - length : longest + length].flip(1)
            bias = bias + _multiply_distances(query, nearby)
        if "p2c" in distances:
            nearby = distances["p2c"][:, longest - length + 1 : longest + length + 1]
            bias = bias + _multiply_distances(key, nearby * scale).transpose(2, 3)
        outputs.append(_attend(module.dropout, (query, key, value), bias, mask, scale=1.0))
    return (outputs[0] if attention is None else attention.join(outputs)).flatten(2), None


def _split_states(attention: GroupedAttention, qkv: Sequence[Tensor]) -> list[tuple[States, Tensor]]:
    """Split queries, keys and values into the groups of a batch, each with a mask."""
    query, key, value = map(attention.split, qkv)
    masks = [group.is_attended for group in attention.groups]
    return list(zip(zip(query, key, value, strict=True), masks, strict=True))


def _project_distances(module: DisentangledSelfAttention, embeddings: Tensor, longest: int) -> Tensors:
    """Compute the keys (c2p) and queries (p2c) of the distances from -longest to longest.

    Shape: (heads, 2 * longest + 1, width).
    """
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    span, distances = module.pos_ebd_size, torch.arange(-longest, longest + 1)
    if module.position_buckets > 0:
        distances = make_log_bucket_position(distances, module.position_buckets, module.max_relative_positions)
    # Large distances share an embedding, so project each embedding in use once, and then look it up.
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


def _multiply_distances(states: Tensor, distances: Tensor) -> Tensor:
    """Multiply each token i by its distance to each token j of its row.

    In this example, every token is 1, and the distance with index n is n:

    >>> states, distances = torch.ones(1, 1, 4, 1), torch.arange(8.0).view(1, 8, 1)
    >>> _multiply_distances(states, distances)[0, 0].int().tolist()
    [[3, 4, 5, 6], [2, 3, 4, 5], [1, 2, 3, 4], [0, 1, 2, 3]]

    Args:
        states: Shape: (rows, heads, length, width).
        distances: The distance from i to j has the index length - 1 - i + j. Shape: (heads, 2 * length, width).

    Returns:
        the products. Shape: (rows, heads, length, length).
    """
    rows, heads, length, _ = states.shape
    # Compute one product per head, (heads, rows * length, 2 * length). Token i needs columns from length - 1 - i on:
    # each token starts one column before the one before. Cut the flat products into rows of 2 * length - 1. Each row
    # then starts with the first column that its token needs.
    products = states.transpose(0, 1).flatten(1, 2) @ distances.transpose(1, 2)
    shifted = products.view(heads, rows, -1)[..., length - 1 : -1]
    return shifted.view(heads, rows, length, -1)[..., :length].transpose(0, 1)


def _attend(dropout: nn.Module, states: States, bias: Tensor, mask: Tensor, *, scale: float | None = None) -> Tensor:
    """Attend by plain products: (rows, heads, length, width) to (rows, length, heads, width)."""
    query, key, value = states
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.matmul(query if scale == 1 else query * scale, key.transpose(2, 3)) + bias
    # Use the lowest finite number: a softmax over only -inf is NaN.
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.matmul(dropout(scores.softmax(dim=-1).to(value.dtype)), value).transpose(1, 2)
