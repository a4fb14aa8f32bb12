"""Layers that compute nothing on padding, by hooks before and after them and an attention that takes groups of rows.

Embeddings and heads see padded batches as before, and logits and gradients are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import ModelOutput

from bertkit.hardware.tensors import on_host
from bertkit.modeling.architectures import architecture_of, layers_of, shares_layers
from bertkit.modeling.cls_only import is_cls_only, split_heads
from bertkit.modeling.info import LayerOutput, Model, attention_splits_rows, patched_attention, patched_forward
from bertkit.modeling.unpadding.layout import Attend, Layout, States, VarlenAttention, VarlenLayout
from bertkit.tokens.features import Tensors

if TYPE_CHECKING:
    from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention
    from transformers.models.mpnet.modeling_mpnet import MPNetSelfAttention


@contextmanager
def relative_attention(layers: Sequence[nn.Module], batch: _Unpadding) -> Iterator[None]:
    """Let layers attend group by group in training where padding is left out."""
    with ExitStack() as patches:
        for layer in layers:
            for module in layer.modules():
                attend = _biased if hasattr(module, "o") else _disentangled if hasattr(module, "pos_att_type") else None
                if attend is not None:
                    patches.enter_context(patched_forward(module, partial(attend, module, module.forward, batch)))
        yield


def _biased(
    module: MPNetSelfAttention,
    forward: Callable[..., tuple[torch.Tensor, ...]],
    batch: _Unpadding,
    states: torch.Tensor,
    mask: torch.Tensor,
    bias: torch.Tensor,
    **named: object,
) -> tuple[torch.Tensor, ...]:
    """Attend with a bias of each head and distance, (rows, heads, tokens, tokens), as MPNet does."""
    layout = batch.layout
    if layout is None:
        return forward(states, mask, bias, **named)
    projected = [split_heads(layer(states), module.attention_head_size) for layer in (module.q, module.k, module.v)]
    longer = max(max(group.length for group in layout.groups) - bias.shape[-1], 0)
    # nobody attends to what rounding up adds
    bias = functional.pad(bias[:1], (0, longer, 0, longer))
    attended = [
        _attend(module.dropout, states, bias[..., : states[0].shape[2], : states[0].shape[2]], mask)
        for states, mask in _in_groups(layout, projected)
    ]
    return (module.o(layout.join(attended).flatten(2)),)


def _disentangled(
    module: DisentangledSelfAttention,
    forward: Callable[..., tuple[torch.Tensor, None]],
    batch: _Unpadding,
    states: torch.Tensor,
    mask: torch.Tensor,
    output_attentions: bool = False,
    *,
    rel_embeddings: torch.Tensor | None = None,
    **named: object,
) -> tuple[torch.Tensor, None]:
    """Attend with products of tokens and distances, as DeBERTa-v2 does.

    transformers multiplies each token by all distances that the model knows, 512 in DeBERTa-v3, and looks up those that
    occur. Here only the distances that a group has are multiplied.
    """
    layout = batch.layout
    if layout is None and (not module.training or output_attentions or rel_embeddings is None):
        return forward(states, mask, output_attentions, rel_embeddings=rel_embeddings, **named)
    projections = module.query_proj, module.key_proj, module.value_proj
    query, key, value = (split_heads(project(states), module.attention_head_size) for project in projections)
    groups = [((query, key, value), mask.bool())] if layout is None else _in_groups(layout, (query, key, value))
    longest = max(query.shape[2] for (query, *_), _ in groups)
    distances = {} if rel_embeddings is None else _project_distances(module, rel_embeddings, longest)
    scale = (module.attention_head_size * (1 + len({"c2p", "p2c"} & {*module.pos_att_type}))) ** -0.5
    attended = []
    for (query, key, value), mask in groups:
        length, bias = query.shape[2], torch.zeros(())
        query = query * scale
        if "c2p" in distances:  # from key to key, the distance of a query falls
            near = distances["c2p"][:, longest - length : longest + length].flip(1)
            bias = bias + _at_distances(query, near)
        if "p2c" in distances:
            near = distances["p2c"][:, longest - length + 1 : longest + length + 1]
            bias = bias + _at_distances(key, near * scale).transpose(2, 3)
        attended.append(_attend(module.dropout, (query, key, value), bias, mask, scale=1.0))
    joined = attended[0] if layout is None else layout.join(attended)
    return joined.flatten(2), None


def _in_groups(layout: Layout, projected: Sequence[torch.Tensor]) -> list[tuple[States, torch.Tensor]]:
    """Split queries, keys and values into groups, each with its mask."""
    query, key, value = map(layout.split, projected)
    masks = [group.is_attended for group in layout.groups]
    return list(zip(zip(query, key, value, strict=True), masks, strict=True))


def _project_distances(module: DisentangledSelfAttention, embeddings: torch.Tensor, longest: int) -> Tensors:
    """Compute the keys (c2p) and queries (p2c) of the distances from -longest to longest, (heads, distances, width)."""
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    span, distances = module.pos_ebd_size, torch.arange(-longest, longest + 1)
    if module.position_buckets > 0:
        distances = make_log_bucket_position(distances, module.position_buckets, module.max_relative_positions)
    rows = (distances.long() + span).clamp(0, 2 * span - 1)
    known = module.pos_dropout(embeddings[rows[0] : rows[-1] + 1])[None]
    projections: dict[str, Any] = (
        {"c2p": module.key_proj, "p2c": module.query_proj}
        if module.share_att_key
        else {"c2p": getattr(module, "pos_key_proj", None), "p2c": getattr(module, "pos_query_proj", None)}
    )
    return {
        kind: split_heads(project(known), module.attention_head_size)[0].index_select(1, rows - rows[0])
        for kind, project in projections.items()
        if kind in module.pos_att_type
    }


def _at_distances(states: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
    """Multiply tokens by their distances to all others of a row: (rows, heads, length, length).

    Args:
        states: (rows, heads, length, width).
        distances: (heads, 2 * length, width); that of token i to token j is number length - 1 - i + j.

    >>> states, distances = torch.ones(1, 1, 4, 1), torch.arange(8.0).view(1, 8, 1)
    >>> _at_distances(states, distances)[0, 0].int().tolist()
    [[3, 4, 5, 6], [2, 3, 4, 5], [1, 2, 3, 4], [0, 1, 2, 3]]
    """
    rows, heads, length, _ = states.shape
    # One product per head over the tokens of all rows, (heads, rows * length, 2 * length). A row of it is one longer
    # than a step along the diagonal, so a view with rows one shorter moves what row i needs to its beginning.
    products = states.transpose(0, 1).flatten(1, 2) @ distances.transpose(1, 2)
    shifted = products.view(heads, rows, -1)[..., length - 1 : -1]
    return shifted.view(heads, rows, length, -1)[..., :length].transpose(0, 1)


def _attend(
    dropout: nn.Module, states: States, bias: torch.Tensor, mask: torch.Tensor, *, scale: float | None = None
) -> torch.Tensor:
    """Attend as plain products do, (rows, heads, length, width) to (rows, length, heads, width)."""
    query, key, value = states
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.matmul(query if scale == 1 else query * scale, key.transpose(2, 3)) + bias
    # not -inf: softmax over nothing is NaN
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.matmul(dropout(scores.softmax(dim=-1).to(value.dtype)), value).transpose(1, 2)


_NAME = "bertkit-unpadded"  # of the attention, as transformers registers it
_WORTHWHILE = 0.85  # share of real tokens above which a batch stays padded
_READERS = ("output_hidden_states", "output_attentions")


class _Unpadding:
    """What a model's hooks and its attention share about the batch that it reads."""

    def __init__(self, attend: Attend, make_layout: Callable[[torch.Tensor], Layout | VarlenLayout]) -> None:
        self.attend_padded, self.make_layout = attend, make_layout
        self.mask: torch.Tensor | None = None
        self.layout: Any = None

    def note_mask(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Keep the mask of a batch with enough padding, as a hook before the encoder."""
        mask = named.get("attention_mask")
        self.mask = self.layout = None
        is_read = any(named.get(name) or getattr(module.config, name, False) for name in _READERS)
        # Evaluations sort all rows by length and have little padding. In training, gathers and scatters have to cost
        # less than the padding that they save.
        if module.training and not is_read and mask is not None and mask.dim() == 2:
            mask = on_host(mask)
            self.mask = mask if mask.float().mean() < _WORTHWHILE else None

    def unpad(
        self, layer: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Turn (rows, tokens, width) into (1, real tokens, width), as a hook before the first layer."""
        if self.mask is None:
            return None
        self.layout = self.make_layout(self.mask)
        states, *others = arguments
        return (self.layout.unpad(states), *others), named

    def unpad_positions(
        self, layer: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Let rotary positions, which each layer gets of the whole batch, follow the tokens, as a hook before it."""
        positions = named.get("position_embeddings")
        if self.layout is None or positions is None:
            return None
        return arguments, {**named, "position_embeddings": tuple(map(self.layout.unpad_positions, positions))}

    def pad(self, layer: nn.Module, arguments: object, outputs: ModelOutput | LayerOutput) -> ModelOutput | None:
        """Put the padding back as zeros, as a hook after the last layer: (rows, tokens, width)."""
        if self.layout is None:
            return None
        # a last layer for the first token only runs after this and reads a padded batch, so the layout ends here
        layout, self.layout = self.layout, None
        if isinstance(outputs, torch.Tensor):
            return layout.pad(outputs)
        if isinstance(outputs, tuple):
            return layout.pad(outputs[0]), *outputs[1:]
        outputs["last_hidden_state"] = layout.pad(outputs["last_hidden_state"])
        return outputs

    def attend(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **named: object,
    ) -> tuple[torch.Tensor, Any]:
        """Attend as transformers' own functions do, or as the layout does where padding is left out."""
        if self.layout is None or attention_mask is None:
            return self.attend_padded(module, query, key, value, attention_mask, **named)
        return self.layout.attend(self.attend_padded, module, (query, key, value), attention_mask, **named), None


@contextmanager
def unpadded(model: Model, varlen: VarlenAttention | None = None) -> Iterator[tuple[nn.Module, ...]]:
    """Let a model in training compute nothing on padding, where its layers are known and nobody reads their outputs.

    Yields the layers that compute no padding, none if that is not possible.

    The attention in force is called for groups of rows, so it must be sdpa or a patch that allows that, or one with
    relative positions that is known.

    Args:
        model: on its device.
        varlen: attends to the tokens of all rows at once in its place; see `why_no_varlen`.
    """
    layers = _layers_without_padding(model)
    if not layers:
        yield ()
        return
    implementation = model.config._attn_implementation
    make_layout = Layout if varlen is None else partial(VarlenLayout, attend=varlen, device=model.device)
    unpadding = _Unpadding(ALL_ATTENTION_FUNCTIONS.get(implementation), make_layout)
    with ExitStack() as patches:
        if architecture_of(model.config).attends_relatively:
            patches.enter_context(relative_attention(layers, unpadding))
        else:
            patches.enter_context(patched_attention(model, _NAME, unpadding.attend, splits_rows=False))
        before = partial(nn.Module.register_forward_pre_hook, with_kwargs=True)
        for hook in (
            before(model.base_model, unpadding.note_mask),
            before(layers[0], unpadding.unpad),
            *(before(layer, unpadding.unpad_positions) for layer in layers),
            layers[-1].register_forward_hook(unpadding.pad),
        ):
            patches.callback(hook.remove)
        yield tuple(layers)


def _layers_without_padding(model: Model) -> list[nn.Module]:
    """List the layers that compute all tokens: not a last one for CLS only, and none where hooks read layers.

    Layers that share their weights run several times, so the encoder around them stands for all.
    """
    architecture = architecture_of(model.config)
    splits_rows = architecture.attends_relatively or attention_splits_rows(model)
    if not (architecture.can_unpad and splits_rows) or getattr(model.config, "conv_kernel_size", None):
        return []  # a convolution would read across rows
    layers = [model.base_model.encoder] if shares_layers(model.config) else layers_of(model)
    if any(layer._forward_hooks for layer in layers):
        return []
    return [layer for layer in layers if not is_cls_only(layer)]
