"""Attention over a batch without padding: three ways to keep the rows apart.

The packed tokens ``a b c d e f`` belong to the rows ``a b c``, ``d`` and ``e f``. A token attends to its row only.

* `GroupedAttention` trains on a CPU. It pads rows of similar length to small batches: ``d`` and ``e f`` to (2, 2), for
  example, and ``a b c`` to (1, 3). Any attention function that takes a mask can compute these, with any dropout.
* `VarlenAttention` trains on a GPU. The kernel of flash-attention takes the packed tokens with `cu_seqlens`.
* `EqualLengthAttention` predicts on a CPU. Predictions are sorted by length, so that most neighbors have the same
  length, and rows of one length need neither padding nor mask.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bertkit.hardware.device import Device
from bertkit.hardware.precision import ComputeConfig
from bertkit.modeling.architectures import get_architecture
from bertkit.modeling.info import Model
from bertkit.modeling.unpadding.layout import IndexMap, PackedBatch, round_up

States = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values."""
AttentionFunction = Callable[..., tuple[Tensor, Any]]
"""Attention function with the interface of transformers: (module, queries, keys, values, mask, ...)."""
VarlenFunction = Callable[..., Any]
"""`torch.nn.attention.varlen.varlen_attn`, or a function with its arguments."""

_TOKENS = 32  # packed tokens are rounded up to a multiple of this number

# Lengths and rows of a group are rounded up to multiples of these numbers.
_GROUP_LENGTHS, _GROUP_ROWS = 8, 4
# Number of token pairs whose attention takes as long as the overhead of one more group.
_GROUP_COST = 20_000


@dataclass(frozen=True)
class Group:
    """Rows of similar length, padded to the longest.

    Args:
        rows: Indices into the batch, shortest row first.
        is_real: Mask of the real tokens, (rows, length). It can have more rows than `rows`; these have no tokens.
    """

    rows: Tensor
    is_real: Tensor

    @property
    def length(self) -> int:
        """Number of tokens of each row, including padding."""
        return self.is_real.shape[1]

    @property
    def is_attended(self) -> Tensor:
        """Mask of the tokens that others attend to, (rows, 1, 1, length): the real tokens of each row.

        In a row without tokens it is all of them, because the softmax over an empty set is NaN.
        """
        return (self.is_real | ~self.is_real.any(dim=1, keepdim=True))[:, None, None]

    def cut_mask(self, batch_mask: Tensor) -> Tensor:
        """Cut this group's rows out of the attention mask of the batch, (rows, 1, tokens, tokens), true if attended.

        Padding attends to everything, because the softmax over an empty set is NaN.
        """
        rows, length = self.is_real.shape
        # Rounding can make a group longer than the batch.
        shared = min(length, batch_mask.shape[-1])
        mask = torch.zeros(rows, 1, length, length, dtype=torch.bool)
        mask[: len(self.rows), :, :shared, :shared] = batch_mask[self.rows, :, :shared, :shared]
        return mask | ~self.is_real[:, None, :, None]


class GroupedAttention:
    """Attention in groups of rows of similar length, for training on a CPU.

    Each group is computed as a separate padded batch, (rows, heads, length, width). So attention costs the sum of
    rows * length² over the groups, and not rows * tokens² of the whole batch. Rows and lengths of a group are rounded
    up, so that oneDNN compiles fewer matrix products. Rows of 3, 1, 2 and 300 tokens form two groups:

    >>> mask = (torch.arange(300) < torch.tensor([3, 1, 2, 300])[:, None]).long()
    >>> [(group.rows.tolist(), tuple(group.is_real.shape)) for group in GroupedAttention(mask, print).groups]
    [([1, 2, 0], (4, 8)), ([3], (4, 304))]

    Args:
        mask: 1 for real tokens and 0 for padding, (rows, tokens), on the CPU.
        attend_padded: Attention function for a padded batch.
    """

    def __init__(self, mask: Tensor, attend_padded: AttentionFunction) -> None:
        self.packed = PackedBatch(mask, sort_rows=True, multiple_of=_TOKENS)
        self.attend_padded = attend_padded
        self.groups: list[Group] = []
        lengths = self.packed.lengths
        for start, end in group_rows(round_up(lengths, _GROUP_LENGTHS).tolist()):
            # Rows are sorted by length, so a group is a slice of them, and its last row is the longest.
            rows, length = round_up(end - start, _GROUP_ROWS), int(round_up(lengths[end - 1], _GROUP_LENGTHS))
            is_real = torch.zeros(rows, length, dtype=torch.bool)
            is_real[: end - start] = torch.arange(length) < lengths[start:end, None]
            self.groups.append(Group(self.packed.order[start:end], is_real))
        self._maps: dict[int, IndexMap] = {}

    def attend(self, module: nn.Module, states: States, mask: Tensor, **named: object) -> Tensor:
        """Attend group by group.

        Args:
            module: Attention module of the layer.
            states: Queries, keys and values, (1, heads, packed tokens, width).
            mask: Attention mask of the padded batch, which can differ between types of layers.
            named: Other arguments of the attention function.

        Returns:
            (1, packed tokens, heads, width).
        """
        masks = self.packed.compute_once(mask, lambda: [group.cut_mask(mask) for group in self.groups])
        groups = zip(*map(self.split, states), masks, strict=True)
        return self.join([self.attend_padded(module, *group, **named)[0] for group in groups])

    def split(self, values: Tensor) -> list[Tensor]:
        """Turn (1, heads, packed tokens, width) into (rows, heads, length, width) for each group.

        A single scatter fills all groups, which are contiguous views of its result, as matrix products need them.
        Padding gets the values of some token: no token attends to it, and its own result is dropped.
        """
        heads, width = values.shape[1], values.shape[3]
        flat = values.transpose(1, 2).reshape(-1, width)
        sizes = [heads * group.is_real.numel() for group in self.groups]
        padded = torch.split(self._map_heads(heads).scatter(flat, zeros=False), sizes)
        return [values.view(-1, heads, group.length, width) for values, group in zip(padded, self.groups, strict=True)]

    def join(self, values: list[Tensor]) -> Tensor:
        """Turn (rows, length, heads, width) of each group into (1, packed tokens, heads, width)."""
        heads, width = values[0].shape[2:]
        flat = torch.cat([values.transpose(1, 2).reshape(-1, width) for values in values])
        return self._map_heads(heads).gather(flat, self.packed.size * heads).view(1, -1, heads, width)

    def _map_heads(self, heads: int) -> IndexMap:
        """Map the heads of all packed tokens, (tokens * heads), to the groups, which are (rows, heads, length).

        With two heads, tokens ``d``, ``e``, ``f`` and a group of the rows ``d .`` and ``e f``, the heads d0, d1, e0,
        e1, f0, f1 go to the positions 0, 2, 4, 6, 5 and 7 of d0 . d1 . e0 f0 e1 f1.
        """
        if heads not in self._maps:
            indices, size, head = [], 0, torch.arange(heads)
            for group in self.groups:
                row, position = group.is_real.nonzero(as_tuple=True)
                indices.append(size + (row[:, None] * heads + head) * group.length + position[:, None])
                size += heads * group.is_real.numel()
            self._maps[heads] = IndexMap(torch.cat(indices).flatten(), size, self.packed.indices.device)
        return self._maps[heads]


def group_rows(lengths: list[int]) -> list[tuple[int, int]]:
    """Split rows of rising lengths into the cheapest groups, as pairs of the first row and the end.

    A group costs its pairs of tokens, padding included, and a fixed overhead. This is a dynamic program over ends: the
    lowest cost of the first `end` rows is the lowest cost of the first `start` rows plus the cost of one group with the
    remaining rows, for the best `start`. It takes rows² operations, vectorized over `start`.

    >>> group_rows([5, 6, 6, 100, 101])
    [(0, 3), (3, 5)]
    """
    squares = np.square(lengths, dtype=np.int64)
    lowest_costs = np.zeros(len(lengths) + 1, dtype=np.int64)
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    for end in range(1, len(lengths) + 1):
        # Costs (end,) if the last group starts at row 0, 1, ..., end - 1. Its longest row is row end - 1.
        costs = lowest_costs[:end] + np.arange(end, 0, -1) * squares[end - 1] + _GROUP_COST
        starts[end] = costs.argmin()
        lowest_costs[end] = costs[starts[end]]
    groups = []
    end = len(lengths)
    # Walk back from the last row: the start of a group is the end of the group before it.
    while end:
        groups.append((int(starts[end]), end))
        end = int(starts[end])
    return groups[::-1]


_DROPOUTS = ("attention_probs_dropout_prob", "attention_dropout")  # fields of configs
_MAX_HEAD_WIDTH, _HEAD_WIDTH_STEP = 256, 8  # limits of flash-attention


class VarlenAttention:
    """Attention between all packed tokens of a row by one kernel, for training on a GPU.

    Args:
        mask: 1 for real tokens and 0 for padding, (rows, tokens), on the CPU.
        varlen: Attention function, see `torch_varlen`.
        device: Device of the model.
    """

    def __init__(self, mask: Tensor, varlen: VarlenFunction, device: torch.device) -> None:
        self.packed, self.varlen = PackedBatch(mask, device=device), varlen
        # A row without tokens would repeat a value. The kernel gets only rows with tokens.
        cu_seqlens = torch.unique_consecutive(self.packed.cu_seqlens).to(device, non_blocking=True)
        # for queries, and for keys and values
        self.row_limits = (cu_seqlens, cu_seqlens, self.packed.max_seqlen, self.packed.max_seqlen)

    def attend(self, module: nn.Module, states: States, mask: Tensor, **named: Any) -> Tensor:
        """Attend within each row; see `GroupedAttention.attend`.

        transformers counts a sliding window from a token to the last one that it sees, itself included. The kernel
        takes the number of other tokens that it sees on each side.

        Raises:
            ValueError: If attention has dropout.
        """
        if named.get("dropout"):
            raise ValueError("variable-length attention has no dropout")
        options = {"scale": named.get("scaling")}
        if (window := named.get("sliding_window")) is not None:
            options["window_size"] = (window - 1, window - 1)
        if states[0].shape[1] != states[1].shape[1]:
            options["enable_gqa"] = True
        # The kernel takes (tokens, heads, width) of one dtype. Some models compute rotary positions in fp32.
        tokens = [values[0].transpose(0, 1).to(states[-1].dtype) for values in states]
        attended: Tensor = self.varlen(*tokens, *self.row_limits, **options)
        return attended[None]


def torch_varlen() -> VarlenFunction:
    """Return torch's function for variable-length attention."""
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn


def find_varlen_problem(model: Model, machine: ComputeConfig) -> str | None:
    """Return the reason why a model cannot be trained with `VarlenAttention` on a GPU, or None if it can."""
    config = model.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if machine.precision != "bf16":
        return f"variable-length attention is not computed in {machine.precision}"
    if get_architecture(config).has_relative_attention:
        return f"variable-length attention has no relative positions, as {config.model_type} has"
    if any(getattr(config, name, 0.0) for name in _DROPOUTS):
        return "variable-length attention has no dropout, and this model has some"
    if width > _MAX_HEAD_WIDTH or width % _HEAD_WIDTH_STEP:
        return f"variable-length attention takes no heads of width {width}"
    if not Device(machine.device).has_varlen:
        return "torch has no flash attention for this GPU"
    # Older releases of torch lack some arguments.
    has_shared_keys = getattr(config, "num_key_value_heads", None) not in (None, config.num_attention_heads)
    needed = {"window_size": getattr(config, "sliding_window", None), "enable_gqa": has_shared_keys}
    parameters = inspect.signature(torch_varlen()).parameters
    if missing := [name for name, value in needed.items() if value and name not in parameters]:
        return f"variable-length attention takes no {missing[0]} in torch {torch.__version__}"
    return None


# Longest text whose attention is faster with plain products, and number of such texts per block.
_MAX_SHORT_TEXT, _BLOCK = 48, 32
# torch's softmax is several times slower if the last axis is not a multiple of this number.
_SOFTMAX_STEP = 16


class EqualLengthAttention:
    """Attention in runs of consecutive rows with the same length, for inference on a CPU.

    Rows of lengths 3, 3, 3, 5 and 3 are three runs: (3 rows, 3 tokens), (1 row, 5 tokens) and (1 row, 3 tokens).

    Args:
        mask: 1 for real tokens and 0 for padding, (rows, tokens).
    """

    def __init__(self, mask: Tensor) -> None:
        rows, tokens = mask.shape
        # The collator has already rounded the length of a single row.
        self.packed = PackedBatch(mask, multiple_of=_TOKENS if rows > 1 else tokens)
        lengths, counts = torch.unique_consecutive(self.packed.lengths, return_counts=True)
        self.runs = list(zip(counts.tolist(), lengths.tolist(), strict=True))

    def take_first(self, states: Tensor) -> Tensor:
        """Return the states of the first token of each row: (packed tokens, width) to (rows, width)."""
        return states[self.packed.cu_seqlens[:-1]]

    def attend(self, queries: Tensor, keys_values: Tensor, *, first_only: bool) -> Tensor:
        """Attend within each row, from all its tokens or from the first token only.

        Args:
            queries: (packed tokens, heads, size), or (rows, heads, size) with `first_only`.
            keys_values: (packed tokens, 2, heads, size).
            first_only: Whether each row has a single query.

        Returns:
            (packed tokens, heads * size), or (rows, heads * size) with `first_only`.
        """
        attended, query_end, key_end = [], 0, 0
        for rows, length in self.runs:
            query_start, query_end = query_end, query_end + rows * (1 if first_only else length)
            key_start, key_end = key_end, key_end + rows * length
            if length:
                run_queries = queries[query_start:query_end].view(rows, -1, *queries.shape[1:])
                run_keys_values = keys_values[key_start:key_end].view(rows, length, *keys_values.shape[1:])
                attended.append(attend_in_blocks(run_queries, run_keys_values))
            else:
                attended.append(queries[query_start:query_end].flatten(1))
        # No token reads the states of the tokens that rounding adds, so any values will do.
        return torch.cat([*attended, queries[query_end:].flatten(1)])


def attend_equal_lengths(queries: Tensor, keys_values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attend within rows of one length.

    Args:
        queries: (rows, queries, heads, size), one query per token or one for the first token.
        keys_values: (rows, tokens, 2, heads, size).
        mask: Attended tokens of each query, (rows, 1, tokens, tokens); all by default.

    Returns:
        (rows * queries, heads * size).
    """
    # (rows, heads, tokens, size), both
    keys, values = keys_values.permute(2, 0, 3, 1, 4)
    mask = None if mask is None else mask[:, :, : queries.shape[1]]
    attended = functional.scaled_dot_product_attention(queries.transpose(1, 2), keys, values, mask)
    return attended.transpose(1, 2).reshape(-1, queries.shape[2] * queries.shape[3])


def attend_in_blocks(queries: Tensor, keys_values: Tensor) -> Tensor:
    """Compute `attend_equal_lengths` on a CPU without a mask, up to rounding.

    For short texts in bf16, plain products take half the time of torch's function, once oneDNN has compiled them. It
    keeps compiled code for each shape, so texts are taken in blocks of one size.
    """
    is_short = queries.dtype == torch.bfloat16 and 1 < queries.shape[1] <= _MAX_SHORT_TEXT
    in_blocks = len(queries) - len(queries) % _BLOCK if is_short else 0
    starts = range(0, in_blocks, _BLOCK)
    blocks = [_attend_short(queries[start : start + _BLOCK], keys_values[start : start + _BLOCK]) for start in starts]
    if len(queries) > in_blocks:
        blocks.append(attend_equal_lengths(queries[in_blocks:], keys_values[in_blocks:]))
    return torch.cat(blocks) if len(blocks) > 1 else blocks[0]


def _attend_short(queries: Tensor, keys_values: Tensor) -> Tensor:
    """Compute `attend_equal_lengths` by plain products, with keys and values padded to a length that suits softmax."""
    rows, tokens, _, heads, size = keys_values.shape
    padding = -tokens % _SOFTMAX_STEP
    # (rows * heads, tokens + padding, size), both
    keys, values = (
        functional.pad(part, (0, 0, 0, padding)).flatten(0, 1) for part in keys_values.permute(2, 0, 3, 1, 4)
    )
    head_queries = queries.transpose(1, 2).reshape(-1, tokens, size)
    scores = torch.bmm(head_queries, keys.transpose(1, 2)).float().mul_(size**-0.5)
    scores[..., tokens:] = float("-inf")
    attended = torch.bmm(scores.softmax(dim=-1).to(values.dtype), values)
    return attended.view(rows, heads, tokens, size).transpose(1, 2).reshape(rows * tokens, heads * size)
