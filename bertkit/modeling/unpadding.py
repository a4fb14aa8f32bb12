"""Layers that compute nothing on padding, for batches on a CPU whose rows differ in length.

From the first layer to the last, the tokens of all rows lie one after another in a single row without padding. Most of
a layer computes each token by itself and does not notice. Attention does notice, so it gets the rows back, in groups of
similar length. Embeddings and heads see padded batches as before, and logits and gradients are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from bertkit.modeling.architectures import architecture_of, layers_of
from bertkit.modeling.info import info_of, patched_attention

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_NAME = "bertkit-unpadded"  # of the attention, as transformers registers it
_WORTHWHILE = 0.85  # share of real tokens above which a batch stays padded
_TOKENS, _LENGTHS, _ROWS = 32, 8, 4  # tokens of a batch, lengths and rows of a group are rounded up to these
_GROUP_COST = 20_000  # pairs of tokens whose attention takes as long as one more group does


@dataclass(frozen=True)
class _Group:
    """Rows of similar length, padded to the longest; `mask` (rows, 1, length, length) is true at real keys."""

    rows: int
    length: int
    mask: torch.Tensor


class _Layout:
    """Where each token of a batch lies without padding, row after row with the shortest first, and in its group.

    Sizes are rounded up, since oneDNN compiles each product anew for every shape, which takes as long as several of
    them.

    Args:
        mask: 1 at real tokens, 0 at padding, of shape (rows, tokens).
    """

    def __init__(self, mask: torch.Tensor) -> None:
        # Indices of all real tokens, (real tokens,): `in_batch` into the padded batch (rows * tokens), `in_groups` into
        # the padded groups laid end to end. A gather and three scatters per layer then replace a loop over rows.
        order = mask.sum(dim=1).argsort(stable=True)
        real = mask[order].bool()
        lengths = real.sum(dim=1)
        self.shape = mask.shape
        self.in_batch = (order[:, None] * mask.shape[1] + torch.arange(mask.shape[1]))[real]
        self.tokens = _round_up(len(self.in_batch), _TOKENS)
        self.groups: list[_Group] = []
        filled = []
        for start, end in group_rows(_round_up(lengths, _LENGTHS).tolist()):
            # Rows are sorted, so a group is a slice of them and its last row is the longest. Rows that rounding up
            # adds hold no token.
            rows, length = _round_up(end - start, _ROWS), int(_round_up(lengths[end - 1], _LENGTHS))
            real_tokens = torch.zeros(rows, length, dtype=torch.bool)
            real_tokens[: end - start] = torch.arange(length) < lengths[start:end, None]
            attended = real_tokens.clone()
            attended[end - start :] = True  # rows of rounding up attend to anything: softmax over nothing is NaN
            self.groups.append(_Group(rows, length, attended[:, None, None].expand(rows, 1, length, length)))
            filled.append(real_tokens.flatten())
        self.in_groups = torch.cat(filled).nonzero()[:, 0]
        self.sizes = [group.rows * group.length for group in self.groups]


def _round_up(count: Any, step: int) -> Any:
    """Round a number, or a tensor of them, up to a multiple of `step`."""
    return (count + step - 1) // step * step


def group_rows(lengths: list[int]) -> list[tuple[int, int]]:
    """Split rows of rising lengths into the cheapest groups: padded pairs of tokens, and a fixed cost per group.

    A dynamic program over ends: the least cost of the first `end` rows is that of the first `start` rows plus that of
    one group of the rest, for the best `start`. It costs rows² in all, vectorized over starts.

    >>> group_rows([5, 6, 6, 100, 101])
    [(0, 3), (3, 5)]
    """
    squares = np.square(lengths, dtype=np.int64)
    least = np.zeros(len(lengths) + 1, dtype=np.int64)
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    for end in range(1, len(lengths) + 1):
        # `costs` (end,) are those of a last group from each start up to `end`. All its rows are padded to the longest,
        # so attention computes length² pairs of tokens for each.
        costs = least[:end] + np.arange(end, 0, -1) * squares[end - 1] + _GROUP_COST
        starts[end] = costs.argmin()
        least[end] = costs[starts[end]]
    groups = []
    end = len(lengths)
    # back from the last row: the start of a group is the end of the group before it
    while end:
        groups.append((int(starts[end]), end))
        end = int(starts[end])
    return groups[::-1]


def _gather(values: torch.Tensor, indices: torch.Tensor, size: int) -> torch.Tensor:
    """Gather distinct rows of (all, width) by index, and fill up with rows of zeros: (size, width)."""
    gathered = values.new_zeros(size, values.shape[1])
    torch.index_select(values, 0, indices, out=gathered[: len(indices)])
    return gathered


def _scatter(values: torch.Tensor, indices: torch.Tensor, size: int) -> torch.Tensor:
    """Scatter the first rows of a matrix to distinct indices of a matrix of zeros: (size, width)."""
    return values.new_zeros(size, values.shape[1]).index_copy_(0, indices, values[: len(indices)])


class _Gather(torch.autograd.Function):
    """`_gather`, whose gradient is scattered: indices are distinct, so nothing needs to be summed."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, indices: torch.Tensor, size: int) -> torch.Tensor:
        ctx.save_for_backward(indices)
        ctx.size = len(values)
        return _gather(values, indices, size)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _scatter(gradients[0], ctx.saved_tensors[0], ctx.size), None, None


class _Scatter(torch.autograd.Function):
    """`_scatter`, whose gradient is gathered."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, indices: torch.Tensor, size: int) -> torch.Tensor:
        ctx.save_for_backward(indices)
        ctx.size = len(values)
        return _scatter(values, indices, size)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _gather(gradients[0], ctx.saved_tensors[0], ctx.size), None, None


class _Unpadding:
    """What a model's hooks and its attention share about the batch that it reads."""

    def __init__(self, attend: Any) -> None:
        self.attend_padded = attend
        self.mask: torch.Tensor | None = None
        self.layout: _Layout | None = None

    def note_mask(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Keep the mask of a batch with enough padding, as a hook before the encoder."""
        mask = named.get("attention_mask")
        self.mask = self.layout = None
        # Evaluations sort all rows by length and have little padding. In training, gathers and scatters have to cost
        # less than the padding that they save.
        if module.training and mask is not None and mask.dim() == 2 and mask.float().mean() < _WORTHWHILE:
            self.mask = mask

    def unpad(self, layer: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Turn (rows, tokens, width) into (1, real tokens, width), as a hook before the first layer."""
        if self.mask is None:
            return None
        self.layout = _Layout(self.mask)
        states, *others = arguments
        real = _Gather.apply(states.flatten(0, 1), self.layout.in_batch, self.layout.tokens)  # type: ignore[no-untyped-call]
        return real[None], *others

    def pad(self, layer: nn.Module, arguments: tuple[Any, ...], states: torch.Tensor) -> torch.Tensor | None:
        """Put the padding back as zeros, as a hook after the last layer: (rows, tokens, width)."""
        if self.layout is None:
            return None
        # a last layer for the first token only runs after this and reads a padded batch, so the layout ends here
        indices, (rows, tokens) = self.layout.in_batch, self.layout.shape
        self.layout = None
        return _Scatter.apply(states[0], indices, rows * tokens).view(rows, tokens, -1)  # type: ignore[no-any-return, no-untyped-call]

    def attend(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **named: Any,
    ) -> tuple[torch.Tensor, Any]:
        """Attend as transformers' own functions do, and group by group where padding is left out.

        There the tokens of all rows lie in one: (1, heads, real tokens, width). Each group is computed as a padded
        batch of its own, (rows, heads, length, width), so attention costs the squares of the groups' lengths and not
        that of the whole.
        """
        if self.layout is None:
            return self.attend_padded(module, query, key, value, attention_mask, **named)  # type: ignore[no-any-return]
        layout, heads, width = self.layout, query.shape[1], query.shape[3]

        # (1, heads, real tokens, width) becomes one (rows, heads, length, width) per group. A single scatter fills all
        # groups, which are views of its result.
        def in_groups(values: torch.Tensor) -> list[torch.Tensor]:
            flat = values.transpose(1, 2).reshape(-1, heads * width)
            padded = _Scatter.apply(flat, layout.in_groups, sum(layout.sizes)).split(layout.sizes)  # type: ignore[no-untyped-call]
            return [
                values.view(group.rows, group.length, heads, width).transpose(1, 2)
                for values, group in zip(padded, layout.groups, strict=True)
            ]

        attended = [
            self.attend_padded(module, *query_key_value, group.mask, **named)[0].reshape(-1, heads * width)
            for *query_key_value, group in zip(*map(in_groups, (query, key, value)), layout.groups, strict=True)
        ]
        # the groups end to end, (rows * length of all groups, heads * width), and back to the real tokens alone
        real = _Gather.apply(torch.cat(attended), layout.in_groups, layout.tokens)  # type: ignore[no-untyped-call]
        return real.view(1, -1, heads, width), None


@contextmanager
def unpadded(model: PreTrainedModel) -> Iterator[None]:
    """Let a model in training compute nothing on padding, where its layers are known and nobody reads their outputs.

    The attention in force is called for groups of rows, so it must be sdpa or a patch that allows that.
    """
    paths, implementation = info_of(model).speed_paths, model.config._attn_implementation
    layers = _layers_without_padding(model) if paths.attention_splits_rows(implementation) else []
    if not layers:
        yield
        return
    unpadding = _Unpadding(ALL_ATTENTION_FUNCTIONS[implementation])
    paths.unpadded_layers = tuple(layers)
    with ExitStack() as patches:
        patches.callback(setattr, paths, "unpadded_layers", ())
        patches.enter_context(patched_attention(model, _NAME, unpadding.attend, splits_rows=False))
        for hook in (
            model.base_model.register_forward_pre_hook(unpadding.note_mask, with_kwargs=True),
            layers[0].register_forward_pre_hook(unpadding.unpad),
            layers[-1].register_forward_hook(unpadding.pad),
        ):
            patches.callback(hook.remove)
        yield


def _layers_without_padding(model: PreTrainedModel) -> list[nn.Module]:
    """List the layers that compute all tokens: not a last one for CLS only, and none where hooks read layers."""
    layers = layers_of(model) if architecture_of(model.config).can_unpad else []
    if any(layer._forward_hooks for layer in layers):
        return []
    return [layer for layer in layers if layer is not info_of(model).speed_paths.cls_only_layer]
