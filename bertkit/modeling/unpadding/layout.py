"""Where the tokens of a batch lie without padding, and how they get there and back.

From the first layer to the last, the tokens of all rows lie one after another in a single row without padding. Most of
a layer computes each token by itself and does not notice. Attention does notice, so it gets the rows back, in groups of
similar length.

A batch of three tokens and one, padded to (2, 3). The shorter row comes first in the single row, which is rounded up to
32 tokens:

>>> layout = Layout(torch.tensor([[1, 1, 1], [1, 0, 0]]))
>>> padded = torch.tensor([[[1.0], [2.0], [3.0]], [[4.0], [0.0], [0.0]]])
>>> layout.in_batch.indices.tolist(), layout.unpad(padded)[0, :5, 0].tolist()
([3, 0, 1, 2], [4.0, 1.0, 2.0, 3.0, 0.0])
>>> torch.equal(layout.pad(layout.unpad(padded)), padded)
True
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from bertkit.hardware.device import Device
from bertkit.hardware.precision import Machine
from bertkit.modeling.architectures import architecture_of
from bertkit.modeling.info import Model
from bertkit.tokens.features import Item

_Count = TypeVar("_Count", int, torch.Tensor)

# tokens of a batch, lengths and rows of a group are rounded up to these
_TOKENS, _LENGTHS, _ROWS = 32, 8, 4
States = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Queries, keys and values."""
Attend = Callable[..., tuple[torch.Tensor, Any]]
"""Computes attention as the functions of transformers do."""

_GROUP_COST = 20_000  # pairs of tokens whose attention takes as long as one more group does


@dataclass(frozen=True)
class Group:
    """Rows of similar length, padded to the longest.

    Args:
        rows: indices into the batch, shortest first.
        is_real: which tokens are real, (rows, length). Rows that rounding up adds hold none.
    """

    rows: torch.Tensor
    is_real: torch.Tensor

    @property
    def length(self) -> int:
        """Tokens of a row, padding included."""
        return self.is_real.shape[1]

    @property
    def is_attended(self) -> torch.Tensor:
        """Which tokens others attend to, (rows, 1, 1, length).

        All in a row that holds none: softmax over nothing is NaN.
        """
        return (self.is_real | ~self.is_real.any(dim=1, keepdim=True))[:, None, None]

    def mask(self, attended: torch.Tensor) -> torch.Tensor:
        """Cut the group's mask out of that of the batch, (rows, 1, tokens, tokens), true where a token is attended to.

        What is no token attends to anything: softmax over nothing is NaN.
        """
        rows, length = self.is_real.shape
        kept = min(length, attended.shape[-1])
        mask = torch.zeros(rows, 1, length, length, dtype=torch.bool)
        mask[: len(self.rows), :, :kept, :kept] = attended[self.rows, :, :kept, :kept]
        return mask | ~self.is_real[:, None, :, None]


class SingleRow:
    """Where each token of a batch lies in a single row without padding, and how tokens get there and back.

    Args:
        shape: of the batch, (rows, tokens).
        in_batch: indices of all real tokens into the padded batch (rows * tokens), in their order in the single row; on
            the CPU.
        tokens: of the single row, at least as many.
        device: of the model.
    """

    def __init__(self, shape: torch.Size, in_batch: torch.Tensor, tokens: int, device: torch.device) -> None:
        self.shape, self.tokens, self.device = shape, tokens, device
        self.in_batch = _IndexMap(in_batch, shape.numel(), device)
        self._kept: dict[int, tuple[torch.Tensor, Any]] = {}

    def unpad(self, values: torch.Tensor) -> torch.Tensor:
        """Turn (rows, tokens, width) into (1, real tokens, width)."""
        return _Gather.apply(values.flatten(0, 1), self.in_batch, self.tokens)[None]  # type: ignore[no-any-return, no-untyped-call]

    def unpad_positions(self, values: torch.Tensor) -> torch.Tensor:
        """Turn what is computed of positions alone, (rows or 1, tokens, width), into (1, real tokens, width)."""
        rows = values.expand(self.shape[0], -1, -1)
        return self.once(values, lambda: self.in_batch.gather(rows.flatten(0, 1), self.tokens)[None])

    def pad(self, values: torch.Tensor) -> torch.Tensor:
        """Turn (1, real tokens, width) into (rows, tokens, width), with zeros as padding."""
        return _Scatter.apply(values[0], self.in_batch).view(*self.shape, -1)  # type: ignore[no-any-return, no-untyped-call]

    def once(self, source: torch.Tensor, compute: Callable[[], Item]) -> Item:
        """Return what is computed of a tensor that several layers read; computed for the first of them."""
        if id(source) not in self._kept:
            # the source is kept too, so that its id stays its own
            self._kept[id(source)] = (source, compute())
        computed: Item = self._kept[id(source)][1]
        return computed


class Layout(SingleRow):
    """Where each token of a batch lies without padding, row after row with the shortest first, and in its group.

    Sizes are rounded up, since oneDNN compiles each product anew for every shape, which takes as long as several of
    them.

    Args:
        mask: 1 at real tokens, 0 at padding, of shape (rows, tokens).
    """

    def __init__(self, mask: torch.Tensor) -> None:
        # The indices of all real tokens: `in_batch` in the padded batch (rows * tokens), and `_in_groups`, by heads, in
        # the padded groups laid end to end. A gather and three scatters per layer then replace a loop over rows.
        order = mask.sum(dim=1).argsort(stable=True)
        real = mask[order].bool()
        lengths = real.sum(dim=1)
        in_batch = (order[:, None] * mask.shape[1] + torch.arange(mask.shape[1]))[real]
        super().__init__(mask.shape, in_batch, _round_up(len(in_batch), _TOKENS), mask.device)
        self.groups: list[Group] = []
        for start, end in group_rows(_round_up(lengths, _LENGTHS).tolist()):
            # rows are sorted, so a group is a slice of them and its last row is the longest
            rows, length = _round_up(end - start, _ROWS), int(_round_up(lengths[end - 1], _LENGTHS))
            is_real = torch.zeros(rows, length, dtype=torch.bool)
            is_real[: end - start] = torch.arange(length) < lengths[start:end, None]
            self.groups.append(Group(order[start:end], is_real))
        self._maps: dict[int, _IndexMap] = {}

    def split(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Turn (1, heads, real tokens, width) into (rows, heads, length, width) for each group.

        A single scatter fills all groups, which are contiguous views of its result, as products want them. Padding has
        the values of some token: nobody attends to it, and what it attends to is dropped.
        """
        heads, width = values.shape[1], values.shape[3]
        flat = values.transpose(1, 2).reshape(-1, width)
        sizes = [heads * group.is_real.numel() for group in self.groups]
        padded = _Scatter.apply(flat, self._in_groups(heads), False).split(sizes)  # type: ignore[no-untyped-call]
        return [values.view(-1, heads, group.length, width) for values, group in zip(padded, self.groups, strict=True)]

    def join(self, values: list[torch.Tensor]) -> torch.Tensor:
        """Turn (rows, length, heads, width) of each group into (1, real tokens, heads, width)."""
        heads, width = values[0].shape[2:]
        flat = torch.cat([values.transpose(1, 2).reshape(-1, width) for values in values])
        gathered = _Gather.apply(flat, self._in_groups(heads), self.tokens * heads)  # type: ignore[no-untyped-call]
        return gathered.view(1, -1, heads, width)  # type: ignore[no-any-return]

    def _in_groups(self, heads: int) -> _IndexMap:
        """Map the heads of all real tokens, (tokens * heads), to those of the groups, (rows, heads, length) each."""
        if heads not in self._maps:
            indices, size, head = [], 0, torch.arange(heads)
            for group in self.groups:
                row, position = group.is_real.nonzero(as_tuple=True)
                indices.append(size + (row[:, None] * heads + head) * group.length + position[:, None])
                size += heads * group.is_real.numel()
            self._maps[heads] = _IndexMap(torch.cat(indices).flatten(), size, self.device)
        return self._maps[heads]

    def attend(
        self, attend_padded: Attend, module: nn.Module, states: States, mask: torch.Tensor, **named: object
    ) -> torch.Tensor:
        """Attend group by group: states of (1, heads, real tokens, width) to (1, real tokens, heads, width).

        Each group is computed as a padded batch of its own, (rows, heads, length, width), so attention costs the
        squares of the groups' lengths and not that of the whole. Its mask is the layer's, which may be one of several
        types.
        """
        groups = zip(*map(self.split, states), self.masks(mask), strict=True)
        return self.join([attend_padded(module, *group, **named)[0] for group in groups])

    def masks(self, attended: torch.Tensor) -> list[torch.Tensor]:
        """Cut the mask of each group out of that of the batch, once per batch and type of layer."""
        return self.once(attended, lambda: [group.mask(attended) for group in self.groups])


def _round_up(count: _Count, step: int) -> _Count:
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


class _IndexMap:
    """The rows of a longer matrix that belong to those of a shorter one, by index, and those that stay zero.

    They are found on the CPU and then moved, because a GPU would have to be waited for.
    """

    def __init__(self, indices: torch.Tensor, size: int, device: torch.device) -> None:
        sources = torch.zeros(size, dtype=torch.int64)
        sources[indices] = torch.arange(len(indices))
        is_empty = torch.ones(size, dtype=torch.bool)
        is_empty[indices] = False
        maps = (indices, sources, is_empty.nonzero()[:, 0])
        self.indices, self.sources, self.empty = (each.to(device, non_blocking=True) for each in maps)

    def gather(self, values: torch.Tensor, size: int) -> torch.Tensor:
        """Gather the rows of the longer matrix, (all, width), and fill up with rows of zeros: (size, width)."""
        gathered = values.new_empty(size, values.shape[1])
        torch.index_select(values, 0, self.indices, out=gathered[: len(self.indices)])
        gathered[len(self.indices) :] = 0
        return gathered

    def scatter(self, values: torch.Tensor, *, zeros: bool = True) -> torch.Tensor:
        """Scatter the first rows of a matrix to their indices: (all, width), with `zeros` or the first row elsewhere.

        Gathering them, and zeroing what is left, takes a sixth of the time of copying them into zeros.
        """
        scattered = values.index_select(0, self.sources)
        return scattered.index_fill_(0, self.empty, 0) if zeros else scattered


class _Gather(torch.autograd.Function):
    """`_IndexMap.gather`, whose gradient is scattered: indices are distinct, so nothing needs to be summed."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, index: _IndexMap, size: int) -> torch.Tensor:
        ctx.index = index
        return index.gather(values, size)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.index.scatter(gradients[0]), None, None


class _Scatter(torch.autograd.Function):
    """`_IndexMap.scatter`, whose gradient is gathered."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, index: _IndexMap, zeros: bool = True) -> torch.Tensor:
        ctx.index, ctx.size = index, len(values)
        return index.scatter(values, zeros=zeros)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.index.gather(gradients[0], ctx.size), None, None


VarlenAttention = Callable[..., Any]
"""`torch.nn.attention.varlen.varlen_attn`, or a function with its arguments."""

_DROPOUTS = ("attention_probs_dropout_prob", "attention_dropout")  # fields of configs
_WIDEST, _STEP = 256, 8  # of a head, as flash attention takes it


class VarlenLayout(SingleRow):
    """Where each token of a batch lies without padding, row after row.

    Args:
        mask: 1 at real tokens, 0 at padding, of shape (rows, tokens), on the CPU.
        attend: computes attention.
        device: of the model.
    """

    def __init__(self, mask: torch.Tensor, attend: VarlenAttention, device: torch.device) -> None:
        in_batch = mask.flatten().nonzero()[:, 0]
        super().__init__(mask.shape, in_batch, len(in_batch), device)
        lengths = mask.sum(dim=1)
        lengths = lengths[lengths > 0]
        # (rows + 1,): where each row begins, and where the last one ends
        edges = nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
        self.attend_rows, self.edges = attend, edges.to(device, non_blocking=True)
        self.longest = int(lengths.max())

    def attend(
        self, attend_padded: Attend, module: nn.Module, states: States, mask: torch.Tensor, **named: Any
    ) -> torch.Tensor:
        """Attend within each row: states of (1, heads, real tokens, width) to (1, real tokens, heads, width).

        transformers names a window by the number of tokens from a token to the last that it sees, itself included; the
        kernel takes those beside it, to the left and to the right.

        Raises:
            ValueError: attention has dropout.
        """
        if named.get("dropout"):
            raise ValueError("variable-length attention has no dropout")
        options = {"scale": named.get("scaling")}
        if (window := named.get("sliding_window")) is not None:
            options["window_size"] = (window - 1, window - 1)
        if states[0].shape[1] != states[1].shape[1]:
            options["enable_gqa"] = True
        # Rotary positions are computed in fp32 by some models. The kernel wants (tokens, heads, width) of one dtype.
        rows = [each[0].transpose(0, 1).to(states[-1].dtype) for each in states]
        ends = (self.edges, self.edges, self.longest, self.longest)
        attended: torch.Tensor = self.attend_rows(*rows, *ends, **options)
        return attended[None]


def torch_varlen() -> VarlenAttention:
    """Return torch's own function."""
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn


def why_no_varlen(model: Model, machine: Machine) -> str | None:
    """Say why a model cannot attend by `torch_varlen` in training on a GPU; None where it can."""
    config = model.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if machine.precision != "bf16":
        return f"variable-length attention is not computed in {machine.precision}"
    if architecture_of(config).attends_relatively:
        return f"variable-length attention has no relative positions, as {config.model_type} has"
    if any(getattr(config, name, 0.0) for name in _DROPOUTS):
        return "variable-length attention has no dropout, and this model has some"
    if width > _WIDEST or width % _STEP:
        return f"variable-length attention takes no heads of width {width}"
    if not Device(machine.device).has_varlen:
        return "torch has no flash attention for this GPU"
    shared = getattr(config, "num_key_value_heads", None) not in (None, config.num_attention_heads)
    wanted = {"window_size": getattr(config, "sliding_window", None), "enable_gqa": shared}
    known = inspect.signature(torch_varlen()).parameters
    if missing := [name for name, value in wanted.items() if value and name not in known]:
        return f"variable-length attention takes no {missing[0]} in torch {torch.__version__}"
    return None
