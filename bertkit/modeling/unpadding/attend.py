"""Attention over packed batches: three classes that restrict attention to the tokens of a row.

The packed tokens ``a b c d e f`` belong to the rows ``a b c``, ``d`` and ``e f``. A token attends only to its row.

* `GroupedAttention` is for training on a CPU. It pads rows of similar length to small batches, for example ``d`` and
  ``e f`` to (2, 2), and ``a b c`` to (1, 3). Any attention function with a mask can compute them, with any dropout.
* `VarlenAttention` is for training on a GPU. The kernel of flash-attention takes the packed tokens and `cu_seqlens`.
* `EqualLengthAttention` is for inference on a CPU. Texts are sorted by length, so most neighbors have the same length,
  and consecutive rows of one length need neither padding nor a mask.
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

# The number of packed tokens, the lengths and the rows of a group are rounded up to multiples of these numbers.
_TOKENS_STEP, _LENGTH_STEP, _ROWS_STEP = 32, 8, 4
# Number of token pairs whose attention takes as long as the overhead of one more group.
_GROUP_COST = 20_000


@dataclass(frozen=True)
class Group:
    """Rows of similar length, padded to the longest.

    Args:
        rows: Indices of the rows in the batch, the shortest row first.
        is_real: Mask of the real tokens. It can have more rows than `rows`, without real tokens. Shape: (rows, length).
    """

    rows: Tensor
    is_real: Tensor

    @property
    def length(self) -> int:
        """Number of tokens of each row, including padding."""
        return self.is_real.shape[1]

    @property
    def is_attended(self) -> Tensor:
        """Mask of the tokens that are attended to: the real tokens of each row. Shape: (rows, 1, 1, length).

        In a row without real tokens, all tokens are attended to, because the softmax over an empty set is NaN.
        """
        return (self.is_real | ~self.is_real.any(dim=1, keepdim=True))[:, None, None]

    def cut_mask(self, batch_mask: Tensor) -> Tensor:
        """Cut this group's rows out of the batch's attention mask, true for tokens that are attended to.

        Padding attends to all tokens, because the softmax over an empty set is NaN. Shape: (rows, 1, length, length).
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
    rows * length² over the groups, instead of rows * tokens² for the batch. The numbers of rows and the lengths of
    groups are rounded up, so oneDNN compiles fewer matrix products. Rows of 3, 1, 2 and 300 tokens form two groups:

    >>> mask = (torch.arange(300) < torch.tensor([3, 1, 2, 300])[:, None]).long()
    >>> [(group.rows.tolist(), tuple(group.is_real.shape)) for group in GroupedAttention(mask, print).groups]
    [([1, 2, 0], (4, 8)), ([3], (4, 304))]

    Args:
        mask: 1 for real tokens, 0 for padding, on the CPU. Shape: (rows, tokens).
        attend_padded: Attention function for a padded batch.
    """

    def __init__(self, mask: Tensor, attend_padded: AttentionFunction) -> None:
        self.packed = PackedBatch(mask, sort_rows=True, multiple_of=_TOKENS_STEP)
        self.attend_padded = attend_padded
        self.groups: list[Group] = []
        lengths = self.packed.lengths
        for start, end in group_rows(round_up(lengths, _LENGTH_STEP).tolist()):
            rows = round_up(end - start, _ROWS_STEP)
            # Rows are sorted, so the last row is the longest.
            length = int(round_up(lengths[end - 1], _LENGTH_STEP))
            is_real = torch.zeros(rows, length, dtype=torch.bool)
            is_real[: end - start] = torch.arange(length) < lengths[start:end, None]
            self.groups.append(Group(self.packed.order[start:end], is_real))
        self._maps: dict[int, IndexMap] = {}

    def attend(self, module: nn.Module, states: States, mask: Tensor, **kwargs: object) -> Tensor:
        """Attend in each group, and join the outputs.

        Args:
            module: Attention module of the layer.
            states: Queries, keys and values. Shape of each: (1, heads, packed tokens, width).
            mask: Attention mask of the padded batch, which can differ between types of layers.
            kwargs: Other arguments of the attention function.

        Returns:
            the outputs. Shape: (1, packed tokens, heads, width).
        """
        masks = self.packed.compute_once(mask, lambda: [group.cut_mask(mask) for group in self.groups])
        groups = zip(*map(self.split, states), masks, strict=True)
        return self.join([self.attend_padded(module, *group, **kwargs)[0] for group in groups])

    def split(self, values: Tensor) -> list[Tensor]:
        """Turn (1, heads, packed tokens, width) into (rows, heads, length, width) for each group.

        One scatter fills all groups, as contiguous views of its result. Padding gets the values of an arbitrary token:
        no token attends to padding, and the outputs of padding are dropped.
        """
        heads, width = values.shape[1], values.shape[3]
        states = values.transpose(1, 2).reshape(-1, width)
        sizes = [heads * group.is_real.numel() for group in self.groups]
        padded = torch.split(self._map_heads(heads).scatter(states, zeros=False), sizes)
        return [values.view(-1, heads, group.length, width) for values, group in zip(padded, self.groups, strict=True)]

    def join(self, values: list[Tensor]) -> Tensor:
        """Turn (rows, length, heads, width) of each group into (1, packed tokens, heads, width)."""
        heads, width = values[0].shape[2:]
        outputs = torch.cat([values.transpose(1, 2).reshape(-1, width) for values in values])
        return self._map_heads(heads).gather(outputs, self.packed.size * heads).view(1, -1, heads, width)

    def _map_heads(self, heads: int) -> IndexMap:
        """Return the map from (packed tokens, heads) to the groups (rows, heads, length), all flattened.

        With two heads, and one group of the rows ``d .`` and ``e f``, the packed order d0 d1 e0 e1 f0 f1 is mapped to
        the positions 0, 2, 4, 6, 5 and 7 of the group: d0 . d1 . e0 f0 e1 f1.
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
    """Split rows, sorted by length, into groups with the lowest total cost. Returns (start, end) per group.

    A group costs rows * length², with the length of its longest row, and a fixed overhead. This is a dynamic program:
    the lowest cost of the first `end` rows is the minimum, over `start`, of the lowest cost of the first `start` rows
    plus the cost of a group from `start` to `end` - 1. It takes rows² operations, vectorized over `start`.

    >>> group_rows([5, 6, 6, 100, 101])
    [(0, 3), (3, 5)]
    """
    squares = np.square(lengths, dtype=np.int64)
    lowest_costs = np.zeros(len(lengths) + 1, dtype=np.int64)
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    for end in range(1, len(lengths) + 1):
        # costs[i] is the lowest total cost if the last group has the rows i to end - 1; row end - 1 is the longest.
        costs = lowest_costs[:end] + np.arange(end, 0, -1) * squares[end - 1] + _GROUP_COST
        starts[end] = costs.argmin()
        lowest_costs[end] = costs[starts[end]]
    groups = []
    end = len(lengths)
    # The start of a group is the end of the group before it.
    while end:
        groups.append((int(starts[end]), end))
        end = int(starts[end])
    return groups[::-1]


_DROPOUTS = ("attention_probs_dropout_prob", "attention_dropout")  # fields of configs
_MAX_HEAD_WIDTH, _HEAD_WIDTH_STEP = 256, 8  # limits of flash-attention


class VarlenAttention:
    """Attention within the rows of packed tokens by one kernel, for training on a GPU.

    Args:
        mask: 1 for real tokens, 0 for padding, on the CPU. Shape: (rows, tokens).
        varlen: Attention function, see `load_varlen`.
        device: Device of the model.
    """

    def __init__(self, mask: Tensor, varlen: VarlenFunction, device: torch.device) -> None:
        self.packed, self.varlen = PackedBatch(mask, device=device), varlen
        # Remove rows without tokens, which repeat a value.
        cu_seqlens = torch.unique_consecutive(self.packed.cu_seqlens).to(device, non_blocking=True)
        # First for queries, then for keys and values.
        self.row_limits = (cu_seqlens, cu_seqlens, self.packed.max_seqlen, self.packed.max_seqlen)

    def attend(self, module: nn.Module, states: States, mask: Tensor, **kwargs: Any) -> Tensor:
        """Attend within each row; see `GroupedAttention.attend`.

        The window of transformers includes the token itself; the kernel's window is the number of other tokens per
        side.

        Raises:
            ValueError: If attention has dropout.
        """
        if kwargs.get("dropout"):
            raise ValueError("variable-length attention has no dropout")
        options = {"scale": kwargs.get("scaling")}
        if (window := kwargs.get("sliding_window")) is not None:
            options["window_size"] = (window - 1, window - 1)
        if states[0].shape[1] != states[1].shape[1]:
            options["enable_gqa"] = True
        # (tokens, heads, width), all in the values' dtype: rotary models pass queries and keys in fp32.
        tokens = [values[0].transpose(0, 1).to(states[-1].dtype) for values in states]
        outputs: Tensor = self.varlen(*tokens, *self.row_limits, **options)
        return outputs[None]


def load_varlen() -> VarlenFunction:
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
        return f"variable-length attention does not support the relative positions of {config.model_type}"
    if any(getattr(config, name, 0.0) for name in _DROPOUTS):
        return "variable-length attention has no dropout, and this model has some"
    if width > _MAX_HEAD_WIDTH or width % _HEAD_WIDTH_STEP:
        return f"variable-length attention does not support heads of width {width}"
    if not Device(machine.device).has_varlen:
        return "torch has no flash attention for this GPU"
    # Older torch releases lack some arguments.
    has_shared_keys = getattr(config, "num_key_value_heads", None) not in (None, config.num_attention_heads)
    required = {"window_size": getattr(config, "sliding_window", None), "enable_gqa": has_shared_keys}
    parameters = inspect.signature(load_varlen()).parameters
    if missing := [name for name, value in required.items() if value and name not in parameters]:
        return f"variable-length attention does not support {missing[0]} in torch {torch.__version__}"
    return None


# Up to this number of tokens, plain products are faster than torch's attention function.
_MAX_SHORT_TEXT = 48
_BLOCK_TEXTS = 32  # short texts per product
# torch's softmax is several times slower if the last axis is not a multiple of this number.
_SOFTMAX_STEP = 16


class EqualLengthAttention:
    """Attention in runs of consecutive rows with the same length, for inference on a CPU.

    Rows of lengths 3, 3, 3, 5 and 3 have three runs: (3 rows, 3 tokens), (1 row, 5 tokens) and (1 row, 3 tokens).

    Args:
        mask: 1 for real tokens, 0 for padding. Shape: (rows, tokens).
    """

    def __init__(self, mask: Tensor) -> None:
        rows, tokens = mask.shape
        # The collator has already rounded the length of a single row.
        self.packed = PackedBatch(mask, multiple_of=_TOKENS_STEP if rows > 1 else tokens)
        lengths, counts = torch.unique_consecutive(self.packed.lengths, return_counts=True)
        self.runs = list(zip(counts.tolist(), lengths.tolist(), strict=True))

    def take_first(self, states: Tensor) -> Tensor:
        """Select the states of the first token of each row: (packed tokens, width) to (rows, width)."""
        return states[self.packed.cu_seqlens[:-1]]

    def attend(self, queries: Tensor, keys_values: Tensor, *, first_only: bool) -> Tensor:
        """Attend within each row.

        Args:
            queries: Shape: (packed tokens, heads, size), or (rows, heads, size) with `first_only`.
            keys_values: Shape: (packed tokens, 2, heads, size).
            first_only: Whether only the first token of each row has a query.

        Returns:
            the outputs. Shape: (packed tokens, heads * size), or (rows, heads * size) with `first_only`.
        """
        outputs, query_end, key_end = [], 0, 0
        for rows, length in self.runs:
            query_start, query_end = query_end, query_end + rows * (1 if first_only else length)
            key_start, key_end = key_end, key_end + rows * length
            if length:
                run_queries = queries[query_start:query_end].view(rows, -1, *queries.shape[1:])
                run_keys_values = keys_values[key_start:key_end].view(rows, length, *keys_values.shape[1:])
                outputs.append(attend_in_blocks(run_queries, run_keys_values))
            else:
                outputs.append(queries[query_start:query_end].flatten(1))
        # Return arbitrary values for the tokens that rounding adds, because no token reads them.
        return torch.cat([*outputs, queries[query_end:].flatten(1)])


def attend_equal_lengths(queries: Tensor, keys_values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attend within rows of one length.

    Args:
        queries: One query per token, or one for the first token. Shape: (rows, queries, heads, size).
        keys_values: Shape: (rows, tokens, 2, heads, size).
        mask: True for tokens that are attended to, or None for all. Shape: (rows, 1, tokens, tokens).

    Returns:
        the outputs. Shape: (rows * queries, heads * size).
    """
    # (rows, heads, tokens, size), both
    keys, values = keys_values.permute(2, 0, 3, 1, 4)
    mask = None if mask is None else mask[:, :, : queries.shape[1]]
    outputs = functional.scaled_dot_product_attention(queries.transpose(1, 2), keys, values, mask)
    return outputs.transpose(1, 2).reshape(-1, queries.shape[2] * queries.shape[3])


def attend_in_blocks(queries: Tensor, keys_values: Tensor) -> Tensor:
    """Compute `attend_equal_lengths` on a CPU without a mask, up to rounding.

    For short texts in bf16, plain products take half the time of torch's function after oneDNN has compiled them. It
    compiles code for each shape, so texts are computed in blocks of one size.
    """
    is_short = queries.dtype == torch.bfloat16 and 1 < queries.shape[1] <= _MAX_SHORT_TEXT
    end = len(queries) - len(queries) % _BLOCK_TEXTS if is_short else 0
    blocks = [slice(start, start + _BLOCK_TEXTS) for start in range(0, end, _BLOCK_TEXTS)]
    outputs = [_attend_short(queries[block], keys_values[block]) for block in blocks]
    if len(queries) > end:
        outputs.append(attend_equal_lengths(queries[end:], keys_values[end:]))
    return torch.cat(outputs) if len(outputs) > 1 else outputs[0]


def _attend_short(queries: Tensor, keys_values: Tensor) -> Tensor:
    """Compute `attend_equal_lengths` by plain products, with keys padded to a multiple of `_SOFTMAX_STEP`."""
    rows, tokens, _, heads, size = keys_values.shape
    padding = -tokens % _SOFTMAX_STEP
    # (rows * heads, tokens + padding, size), both
    keys, values = (
        functional.pad(part, (0, 0, 0, padding)).flatten(0, 1) for part in keys_values.permute(2, 0, 3, 1, 4)
    )
    head_queries = queries.transpose(1, 2).reshape(-1, tokens, size)
    scores = torch.bmm(head_queries, keys.transpose(1, 2)).float().mul_(size**-0.5)
    scores[..., tokens:] = float("-inf")
    outputs = torch.bmm(scores.softmax(dim=-1).to(values.dtype), values)
    return outputs.view(rows, heads, tokens, size).transpose(1, 2).reshape(rows * tokens, heads * size)
