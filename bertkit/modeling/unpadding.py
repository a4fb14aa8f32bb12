"""Layers that compute nothing on padding, on a CPU: where rows of a batch are of unlike length.

Between the first layer and the last, the tokens of all rows lie one after another in one row, without padding. Most of
a layer looks at each token by itself and does not notice. Attention does, so its rows are cut out, and those of like
length are computed together. Embeddings and heads see batches as ever, and logits and gradients are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from bertkit.modeling.cls_only import ALIKE

_NAME = "bertkit-unpadded"  # of the attention, as transformers registers it
_WORTHWHILE = 0.85  # share of real tokens above which a batch is computed as it is
_TOKENS, _LENGTHS, _ROWS = 32, 8, 4  # what the tokens of a batch, and lengths and rows of a group, are multiples of
_GROUP_COSTS = 20_000  # pairs of tokens whose attention takes as long as one group more


@dataclass(frozen=True)
class _Group:
    """Rows of like length, padded to the longest."""

    rows: int
    length: int
    mask: torch.Tensor


class _Layout:
    """Where the tokens of a batch are, which lie row after row, shortest first.

    Sizes are rounded up: oneDNN compiles its products for every shape it meets, which takes as long as some of them.

    Args:
        mask: 1 at real tokens, 0 at padding, of shape (rows, tokens).
    """

    def __init__(self, mask: torch.Tensor) -> None:
        order = mask.sum(dim=1).argsort(stable=True)
        real = mask[order].bool()
        lengths = real.sum(dim=1)
        self.shape = mask.shape
        self.in_batch = (order[:, None] * mask.shape[1] + torch.arange(mask.shape[1]))[real]
        self.tokens = _round_up(len(self.in_batch), _TOKENS)
        self.groups: list[_Group] = []
        filled = []
        for start, end in group_rows(_round_up(lengths, _LENGTHS).tolist()):
            rows, length = _round_up(end - start, _ROWS), int(_round_up(lengths[end - 1], _LENGTHS))
            part = torch.zeros(rows, length, dtype=torch.bool)
            part[: end - start] = torch.arange(length) < lengths[start:end, None]
            attended = part.clone()
            attended[end - start :] = True  # rows that are not there, since a mean over nothing is not a number
            self.groups.append(_Group(rows, length, attended[:, None, None].expand(rows, 1, length, length)))
            filled.append(part.flatten())
        self.in_groups = torch.cat(filled).nonzero()[:, 0]
        self.sizes = [group.rows * group.length for group in self.groups]


def _round_up(count: Any, step: int) -> Any:
    return (count + step - 1) // step * step


def group_rows(lengths: list[int]) -> list[tuple[int, int]]:
    """Split rows of rising lengths into groups that cost least: their padded pairs of tokens, and something each.

    >>> group_rows([5, 6, 6, 100, 101])
    [(0, 3), (3, 5)]
    """
    squares = np.square(lengths, dtype=np.int64)
    least = np.zeros(len(lengths) + 1, dtype=np.int64)
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    for end in range(1, len(lengths) + 1):
        costs = least[:end] + np.arange(end, 0, -1) * squares[end - 1] + _GROUP_COSTS
        starts[end] = costs.argmin()
        least[end] = costs[starts[end]]
    groups = []
    end = len(lengths)
    while end:
        groups.append((int(starts[end]), end))
        end = int(starts[end])
    return groups[::-1]


def _take(values: torch.Tensor, places: torch.Tensor, size: int) -> torch.Tensor:
    """Give some rows of a matrix, each at most once, and so many zeros after them that there are `size` rows."""
    taken = values.new_zeros(size, values.shape[1])
    torch.index_select(values, 0, places, out=taken[: len(places)])
    return taken


def _put(values: torch.Tensor, places: torch.Tensor, size: int) -> torch.Tensor:
    """Give a matrix of `size` rows, zero but for some, which are the first of another."""
    return values.new_zeros(size, values.shape[1]).index_copy_(0, places, values[: len(places)])


class _Take(torch.autograd.Function):
    """`_take`, whose gradient is put back."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, places: torch.Tensor, size: int) -> torch.Tensor:
        ctx.save_for_backward(places)
        ctx.size = len(values)
        return _take(values, places, size)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _put(gradients[0], ctx.saved_tensors[0], ctx.size), None, None


class _Put(torch.autograd.Function):
    """`_put`, whose gradient is taken out."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, places: torch.Tensor, size: int) -> torch.Tensor:
        ctx.save_for_backward(places)
        ctx.size = len(values)
        return _put(values, places, size)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _take(gradients[0], ctx.saved_tensors[0], ctx.size), None, None


class _Unpadding:
    """What a model's hooks and its attention know of the batch that it is reading."""

    def __init__(self, attend: Any) -> None:
        self.attend_padded = attend
        self.mask: torch.Tensor | None = None
        self.layout: _Layout | None = None

    def note_mask(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Keep the mask of a batch that is worth it, as a hook before the encoder."""
        mask = named.get("attention_mask")
        self.mask = self.layout = None
        if module.training and mask is not None and mask.dim() == 2 and mask.float().mean() < _WORTHWHILE:
            self.mask = mask

    def unpad(self, layer: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Take the padding out of (rows, tokens, width), as a hook before the first layer."""
        if self.mask is None:
            return None
        self.layout = _Layout(self.mask)
        states, *others = arguments
        taken = _Take.apply(states.flatten(0, 1), self.layout.in_batch, self.layout.tokens)  # type: ignore[no-untyped-call]
        return taken[None], *others

    def pad(self, layer: nn.Module, arguments: tuple[Any, ...], states: torch.Tensor) -> torch.Tensor | None:
        """Put the padding back, as a hook after the last layer."""
        if self.layout is None:
            return None
        places, (rows, tokens) = self.layout.in_batch, self.layout.shape
        self.layout = None
        return _Put.apply(states[0], places, rows * tokens).view(rows, tokens, -1)  # type: ignore[no-any-return, no-untyped-call]

    def attend(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **named: Any,
    ) -> tuple[torch.Tensor, Any]:
        """Attend as transformers' own functions do; without padding, (1, heads, all tokens, width), group by group."""
        if self.layout is None:
            return self.attend_padded(module, query, key, value, attention_mask, **named)  # type: ignore[no-any-return]
        layout, heads, width = self.layout, query.shape[1], query.shape[3]

        def in_groups(values: torch.Tensor) -> list[torch.Tensor]:
            flat = values.transpose(1, 2).reshape(-1, heads * width)
            parts = _Put.apply(flat, layout.in_groups, sum(layout.sizes)).split(layout.sizes)  # type: ignore[no-untyped-call]
            return [
                part.view(group.rows, group.length, heads, width).transpose(1, 2)
                for part, group in zip(parts, layout.groups, strict=True)
            ]

        attended = [
            self.attend_padded(module, *three, group.mask, **named)[0].reshape(-1, heads * width)
            for *three, group in zip(*map(in_groups, (query, key, value)), layout.groups, strict=True)
        ]
        found = _Take.apply(torch.cat(attended), layout.in_groups, layout.tokens)  # type: ignore[no-untyped-call]
        return found.view(1, -1, heads, width), None


@contextmanager
def unpadded(model: Any) -> Iterator[None]:
    """Let a model in training compute nothing on padding, where its layers are known and nobody watches them."""
    before = model.config._attn_implementation
    layers = _known_layers(model)
    if not layers or before not in ("sdpa", "bertkit"):
        yield
        return
    unpadding = _Unpadding(ALL_ATTENTION_FUNCTIONS[before])
    AttentionInterface.register(_NAME, unpadding.attend)
    AttentionMaskInterface.register(_NAME, sdpa_mask)
    model.set_attn_implementation(_NAME)
    hooks = [
        model.base_model.register_forward_pre_hook(unpadding.note_mask, with_kwargs=True),
        layers[0].register_forward_pre_hook(unpadding.unpad),
        layers[-1].register_forward_hook(unpadding.pad),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        model.set_attn_implementation(before)


def _known_layers(model: Any) -> list[Any]:
    """Give the layers that compute all tokens: not a short last one, and none where somebody reads what each gives."""
    name = {"distilbert": "transformer", **dict.fromkeys(ALIKE, "encoder")}.get(model.config.model_type)
    encoder = getattr(model.base_model, name or "", None)  # a model of several encoders has none of its own
    if encoder is None or getattr(model.config, "is_decoder", False):
        return []
    layers = list(encoder.layer)
    watched = any(layer._forward_hooks for layer in layers)
    return [] if watched else [layer for layer in layers if "forward" not in vars(layer)]
