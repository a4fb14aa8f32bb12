"""Packing of a batch's real tokens into a single row without padding, and the inverse.

Rows of a batch are padded to the longest row. In this batch, letters are tokens, and dots are padding:

    a b c
    d . .
    e f .

Most parts of a layer compute each token separately: projections, feed-forward networks and norms. They return the same
states if the six tokens come as a single row, ``a b c d e f``, and then compute no padding. Only attention must know
which tokens belong to the same row (`bertkit.modeling.unpadding.attend`).

Three values, named as in flash-attention, describe the packed row. `indices` are the positions of the tokens in the
padded batch, counted row by row. `cu_seqlens` are cumulative sequence lengths: row i has the packed tokens from
``cu_seqlens[i]`` to ``cu_seqlens[i + 1] - 1``. `max_seqlen` is the length of the longest row.

>>> mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0]])
>>> packed = PackedBatch(mask)
>>> packed.indices.tolist(), packed.cu_seqlens.tolist(), packed.max_seqlen
([0, 1, 2, 3, 6, 7], [0, 3, 4, 6], 3)

`unpad` turns hidden states (rows, tokens, width) into (packed tokens, width), and `pad` restores them, with zeros as
padding:

>>> states = torch.tensor([[10.0, 11.0, 12.0], [20.0, 0.0, 0.0], [30.0, 31.0, 0.0]])[:, :, None]
>>> packed.unpad(states)[:, 0].tolist()
[10.0, 11.0, 12.0, 20.0, 30.0, 31.0]
>>> torch.equal(packed.pad(packed.unpad(states)), states)
True
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from bertkit.tokens.features import Item

_Count = TypeVar("_Count", int, Tensor)


class PackedBatch:
    """Layout of the real tokens of a batch in a single row.

    Rows can be sorted by length, and the number of packed tokens rounded up. For the batch in the module's docstring:

    >>> mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0]])
    >>> packed = PackedBatch(mask, sort_rows=True, multiple_of=4)
    >>> packed.order.tolist(), packed.indices.tolist(), packed.cu_seqlens.tolist()
    ([1, 2, 0], [3, 6, 7, 0, 1, 2], [0, 1, 3, 6])
    >>> packed.unpad(torch.arange(1, 10).view(3, 3)).tolist()
    [4, 7, 8, 1, 2, 3, 0, 0]

    Args:
        mask: 1 for real tokens, 0 for padding, on the CPU. Shape: (rows, tokens).
        sort_rows: Whether to sort the rows by length, the shortest first.
        multiple_of: Divisor of the number of packed tokens, which is rounded up. oneDNN compiles a matrix product for
            each new shape, which takes as long as computing several products.
        device: Device of the tensors to pack; by default the CPU.

    Attributes:
        shape: Shape of the padded batch, (rows, tokens).
        order: Index of each packed row in the batch. Shape: (rows,).
        lengths: Number of tokens of each packed row. Shape: (rows,).
        indices: Position of each packed token in the padded batch, on the device. Shape: (packed tokens,).
        cu_seqlens: First packed token of each row, and the number of tokens; int32, on the CPU. Shape: (rows + 1,).
        max_seqlen: Number of tokens of the longest row.
        size: Number of packed tokens, after rounding up.
    """

    def __init__(
        self, mask: Tensor, *, sort_rows: bool = False, multiple_of: int = 1, device: torch.device | None = None
    ) -> None:
        lengths = mask.sum(dim=1)
        self.shape = mask.shape
        self.order = lengths.argsort(stable=True) if sort_rows else torch.arange(len(mask))
        self.lengths = lengths[self.order]
        self.cu_seqlens = functional.pad(self.lengths.cumsum(0), (1, 0)).int()
        self.max_seqlen = int(lengths.max())

        rows, columns = mask[self.order].nonzero(as_tuple=True)
        indices = self.order[rows] * mask.shape[1] + columns
        self.size = round_up(len(indices), multiple_of)
        self._map = IndexMap(indices, mask.numel(), device or mask.device)
        self.indices = self._map.indices
        self._cache: dict[int, tuple[Tensor, Any]] = {}

    def unpad(self, values: Tensor) -> Tensor:
        """Pack values of a padded batch: (rows, tokens, ...) to (packed tokens, ...). Added tokens at the end are 0."""
        return self._map.gather(values.flatten(0, 1), self.size)

    def pad(self, values: Tensor) -> Tensor:
        """Restore the padded batch: (packed tokens, ...) to (rows, tokens, ...), with zeros as padding."""
        return self._map.scatter(values).view(*self.shape, *values.shape[1:])

    def compute_once(self, source: Tensor, compute: Callable[[], Item]) -> Item:
        """Return ``compute()``, cached per `source`, a tensor that all layers share."""
        if id(source) not in self._cache:
            # Keep a reference to the tensor, so that no other tensor gets its id.
            self._cache[id(source)] = (source, compute())
        value: Item = self._cache[id(source)][1]
        return value


class IndexMap:
    """Mapping from the rows of a short matrix to rows of a long matrix, to gather rows and to scatter them back.

    Both directions are differentiable. Because indices are distinct, the gradients are also copies of rows.

    >>> index_map = IndexMap(torch.tensor([3, 0]), 4, torch.device("cpu"))
    >>> matrix = torch.tensor([[10.0], [11.0], [12.0], [13.0]])
    >>> index_map.gather(matrix, 3)[:, 0].tolist(), index_map.scatter(torch.tensor([[1.0], [2.0]]))[:, 0].tolist()
    ([13.0, 10.0, 0.0], [2.0, 0.0, 0.0, 1.0])

    Args:
        indices: Index of each row of the short matrix in the long matrix, distinct, on the CPU.
        size: Number of rows of the long matrix.
        device: Device of both matrices.
    """

    def __init__(self, indices: Tensor, size: int, device: torch.device) -> None:
        # Scatter by gathering: `sources` has the row of the short matrix for each row of the long matrix, and `empty`
        # the rows without a source. Compute both on the CPU, because a GPU would make the program wait.
        sources = torch.zeros(size, dtype=torch.int64)
        sources[indices] = torch.arange(len(indices))
        is_empty = torch.ones(size, dtype=torch.bool)
        is_empty[indices] = False
        maps = (indices, sources, is_empty.nonzero()[:, 0])
        self.indices, self.sources, self.empty = (tensor.to(device, non_blocking=True) for tensor in maps)

    def gather(self, values: Tensor, size: int) -> Tensor:
        """Gather rows of the long matrix, and append rows of zeros. Shape: (size, ...)."""
        return _Gather.apply(values, self, size)  # type: ignore[no-any-return, no-untyped-call]

    def scatter(self, values: Tensor, *, zeros: bool = True) -> Tensor:
        """Scatter the rows of the short matrix; other rows are 0 or, without `zeros`, copies of its first row."""
        return _Scatter.apply(values, self, zeros)  # type: ignore[no-any-return, no-untyped-call]

    def copy_gathered(self, values: Tensor, size: int) -> Tensor:
        """Gather rows without computing gradients; see `gather`."""
        gathered = values.new_empty(size, *values.shape[1:])
        torch.index_select(values, 0, self.indices, out=gathered[: len(self.indices)])
        gathered[len(self.indices) :] = 0
        return gathered

    def copy_scattered(self, values: Tensor, *, zeros: bool = True) -> Tensor:
        """Scatter rows without computing gradients; see `scatter`. Copying rows into zeros takes six times as long."""
        scattered = values.index_select(0, self.sources)
        return scattered.index_fill_(0, self.empty, 0) if zeros else scattered


class _Gather(torch.autograd.Function):
    """Differentiable `IndexMap.copy_gathered`: the gradient is scattered."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, index_map: IndexMap, size: int) -> Tensor:
        ctx.index_map = index_map
        return index_map.copy_gathered(values, size)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.index_map.copy_scattered(gradients[0]), None, None


class _Scatter(torch.autograd.Function):
    """Differentiable `IndexMap.copy_scattered`: the gradient is gathered."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, index_map: IndexMap, zeros: bool) -> Tensor:
        ctx.index_map, ctx.size = index_map, len(values)
        return index_map.copy_scattered(values, zeros=zeros)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.index_map.copy_gathered(gradients[0], ctx.size), None, None


def round_up(count: _Count, step: int) -> _Count:
    """Round an integer, or each integer of a tensor, up to a multiple of `step`."""
    return (count + step - 1) // step * step
