"""Dropout whose random numbers cost next to nothing on a CPU, keyed by seed, process and step.

On a CPU, torch draws the random numbers of dropout one by one from one generator, which takes a sixth of a step of a
small encoder. Here every step has a generator of its own, from which the model's layers draw in their order, so a
resume needs no saved state. Sixteen bits decide about each value, so its probability is exact to 2**-16. Attention is
computed as plain products, because torch's fused attention knows only its own dropout; in bf16 also without dropout,
where rows are short, because the gradients of fused attention then take up to ten times as long.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

from bertkit.modeling.info import info_of, patched_attention

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_NAME = "bertkit-dropout"  # of the attention, as transformers registers it
_SHORT = 256  # tokens of a row up to which plain products are faster than fused attention in bf16


class DropoutStream:
    """The random numbers of one process's dropout."""

    def __init__(self, seed: int, process: int = 0) -> None:
        self.seed, self.process = seed, process
        self.step = -1
        self.move_to(0)

    def move_to(self, step: int) -> None:
        """Start a step; all micro-batches of one step draw from its generator."""
        if step != self.step:
            self.step = step
            self.numbers = np.random.SFC64(np.random.SeedSequence((self.seed, self.process, step)))

    def draw_mask(self, shape: torch.Size, p: float) -> torch.Tensor:
        """Draw int16 values of `shape`, all bits 0 with probability `p`, else all bits 1.

        One 64-bit draw decides about four values: each 16 bits are compared with a threshold, as a signed number. That
        avoids a conversion to float, and the -1 of a negated True is already the mask of `_Masked`.
        """
        # `drawn` (count,) are the 16-bit quarters of 64-bit numbers, seen without a copy. Comparison and negation
        # overwrite them, so nothing else of this size is allocated.
        count = math.prod(shape)
        drawn = self.numbers.random_raw(-(-count // 4)).view(np.int16)[:count]
        return torch.from_numpy(drawn).ge_(round(p * 2**16) - 2**15).neg_().view(shape)

    def drop(self, values: torch.Tensor, p: float) -> torch.Tensor:
        """Zero each value with probability `p`; the others are not scaled."""
        # The mask has to be as wide as the values. A cast from int16 to int32 extends the sign, so -1
        # keeps all its bits.
        mask = self.draw_mask(values.shape, p)
        return _Masked.apply(values, mask if values.element_size() == 2 else mask.int())  # type: ignore[no-any-return, no-untyped-call]


class _Masked(torch.autograd.Function):
    """Keep values where all bits of the mask are 1, and zero the others.

    Both are seen as integers of the same width, so one bitwise AND does it, three times as fast as a product.
    """

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(mask)
        return (values.view(mask.dtype) & mask).view(values.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        # the gradient passes where its value was kept, so the values need not be saved
        (mask,) = ctx.saved_tensors
        (gradient,) = gradients
        return (gradient.contiguous().view(mask.dtype) & mask).view(gradient.dtype), None


@contextmanager
def fast_dropout(model: PreTrainedModel, stream: DropoutStream) -> Iterator[None]:
    """Let every dropout layer of a model draw from a stream, and its attention too where that is torch's."""
    layers = [module for module in model.modules() if type(module) is nn.Dropout]
    paths = info_of(model).speed_paths
    with ExitStack() as patches:
        # an attribute of the instance comes before the method of its class, so deleting it restores the layer
        for layer in layers:
            layer.forward = partial(_drop, layer, stream)  # type: ignore[method-assign]
            patches.callback(delattr, layer, "forward")
        if model.config._attn_implementation == "sdpa":
            attend = partial(_attend, stream)
            patches.enter_context(patched_attention(model, _NAME, attend, splits_rows=True))
        paths.dropout = stream
        patches.callback(setattr, paths, "dropout", None)
        yield


def _drop(layer: nn.Dropout, stream: DropoutStream, values: torch.Tensor) -> torch.Tensor:
    if not layer.training or layer.p == 0:
        return values
    return stream.drop(values.contiguous(), layer.p) / (1 - layer.p)


def _attend(
    stream: DropoutStream,
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as transformers' own functions do: (rows, heads, tokens, width) to (rows, tokens, heads, width).

    The mask is boolean, true where a token may be attended to. Values are scaled after the last product, which has
    fewer of them than the matrix of weights (rows, heads, tokens, tokens).
    """
    is_slow_fused = query.dtype == torch.bfloat16 and query.requires_grad and key.shape[2] <= _SHORT
    if not (dropout or is_slow_fused):
        attended: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, **others
        )
        return attended
    key, value = (repeat_kv(states, query.shape[1] // states.shape[1]) for states in (key, value))
    # The query (rows, heads, tokens, width) is scaled, and not the scores (rows, heads, tokens, tokens), which are
    # larger where texts are longer than a head is wide.
    scores = torch.matmul(query * (scaling or query.size(-1) ** -0.5), key.transpose(2, 3))
    if attention_mask is not None:
        # the lowest finite number, because a softmax over nothing but -inf is NaN
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1).to(query.dtype)
    summed = torch.matmul(stream.drop(weights, dropout) if dropout else weights, value) / (1 - dropout)
    return summed.transpose(1, 2).contiguous(), None
