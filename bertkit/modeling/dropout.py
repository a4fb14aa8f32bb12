"""Dropout whose random numbers cost next to nothing on a CPU, keyed by seed, process and step.

On a CPU, torch draws the random numbers of dropout one by one from one generator, which takes a sixth of a step of a
small encoder. Here every step has a generator of its own, from which the model's layers draw in their order, so a
resume needs no saved state. Sixteen bits decide about each value, so its probability is exact to 2**-16. Attention is
computed as plain products, because torch's fused attention knows only its own dropout; in bf16 also without dropout,
where rows are short, because the gradients of fused attention then take up to ten times as long.

The mask of four numbers is all ones or all zeros in each; dropped numbers are 0, and the others are scaled:

>>> DropoutStream(seed=1).draw_mask(torch.Size([4]), 0.5).tolist()
[-1, -1, 0, 0]
>>> DropoutStream(seed=1).drop(torch.tensor([1.0, 2.0, 3.0, 4.0]), 0.5, scale=2.0).tolist()
[2.0, 4.0, 0.0, 0.0]
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

from bertkit.modeling.info import Config, Model, patched_attention, patched_forward

_NAME = "bertkit-dropout"  # of the attention, as transformers registers it
# numbers of fp32 that a CPU computes at once; a softmax of fewer takes ten times as long for each
_VECTOR = 16
# tokens of a row up to which plain products are faster than fused attention in bf16
_SHORT = 256


def dropout_rates(config: Config) -> dict[str, float]:
    """Return the fields of a config that are probabilities of dropout in the encoder, with their values."""
    rates = {name: value for name, value in vars(config).items() if "dropout" in name and "classifier" not in name}
    return {name: float(value) for name, value in rates.items() if isinstance(value, (int, float))}


def set_dropout(config: Config, rate: float) -> None:
    """Set all probabilities of dropout in a config."""
    for name in dropout_rates(config):
        setattr(config, name, rate)


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

    def state(self) -> Any:
        """Return where the stream is, to draw the same masks again."""
        return self.numbers.state

    def load_state(self, state: Any) -> None:
        """Go back, or on, to where `state` was called."""
        self.numbers.state = state

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

    def drop(self, values: torch.Tensor, p: float, scale: float = 1.0) -> torch.Tensor:
        """Zero each value with probability `p`, and scale the others."""
        # The mask has to be as wide as the values. A cast from int16 to int32 extends the sign, so -1
        # keeps all its bits.
        mask = self.draw_mask(values.shape, p)
        return _Masked.apply(values, mask if values.element_size() == 2 else mask.int(), scale)  # type: ignore[no-any-return, no-untyped-call]


class _Masked(torch.autograd.Function):
    """Keep values where all bits of the mask are 1, zero the others, and scale.

    Both are seen as integers of the same width, so one bitwise AND does it, three times as fast as a product.
    """

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.save_for_backward(mask)
        ctx.scale = scale
        return _Masked.mask(values, mask, scale)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        # the gradient passes where its value was kept, so the values need not be saved
        (mask,) = ctx.saved_tensors
        return _Masked.mask(gradients[0].contiguous(), mask, ctx.scale), None, None

    @staticmethod
    def mask(values: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
        """Mask and scale values, contiguous and as wide as the mask."""
        kept = (values.view(mask.dtype) & mask).view(values.dtype)
        return kept if scale == 1 else kept.mul_(scale)


@contextmanager
def fast_dropout(model: Model, stream: DropoutStream) -> Iterator[None]:
    """Let every dropout layer of a model draw from a stream, and its attention too where that is torch's."""
    layers = [module for module in model.modules() if type(module) is nn.Dropout]
    with ExitStack() as patches:
        for layer in layers:
            patches.enter_context(patched_forward(layer, partial(_drop_values, layer, stream)))
        if model.config._attn_implementation == "sdpa":
            attend = partial(_attend, stream)
            patches.enter_context(patched_attention(model, _NAME, attend, splits_rows=True))
        # A head that reads a batch in two passes has to draw the same numbers again.
        model.dropout_stream = stream
        patches.callback(delattr, model, "dropout_stream")
        yield


def _drop_values(layer: nn.Dropout, stream: DropoutStream, values: torch.Tensor) -> torch.Tensor:
    if not layer.training or layer.p == 0:
        return values
    return stream.drop(values.contiguous(), layer.p, 1 / (1 - layer.p))


def _attend(
    stream: DropoutStream,
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **others: object,
) -> tuple[torch.Tensor, None]:
    """Attend as transformers' own functions do: (rows, heads, tokens, width) to (rows, tokens, heads, width).

    The mask is boolean, true where a token may be attended to. Values are scaled after the last product, which has
    fewer of them than the matrix of weights (rows, heads, tokens, tokens).
    """
    # some models turn queries and keys in fp32, and autocast casts them back
    query, key = query.to(value.dtype), key.to(value.dtype)
    is_slow_fused = query.dtype == torch.bfloat16 and query.requires_grad and key.shape[2] <= _SHORT
    if not (dropout or is_slow_fused):
        attended: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, **others
        )
        return attended
    key, value = (repeat_kv(states, query.shape[1] // states.shape[1]) for states in (key, value))
    missing = max(_VECTOR - key.shape[2], 0)
    if missing:
        key, value = (functional.pad(states, (0, 0, 0, missing)) for states in (key, value))
    # The query (rows, heads, tokens, width) is scaled, and not the scores (rows, heads, tokens, tokens), which are
    # larger where texts are longer than a head is wide.
    scores = torch.matmul(query * (scaling or query.size(-1) ** -0.5), key.transpose(2, 3))
    if attention_mask is not None or missing:
        tokens, mask = key.shape[2] - missing, attention_mask
        if mask is None:
            mask = torch.ones(1, 1, 1, tokens, dtype=torch.bool, device=scores.device)
        # What is added is 0 where a mask is true, and the lowest number elsewhere and for what is missing. It is
        # finite, because a softmax over nothing but -inf is NaN. A sum has no gradient to compute, unlike a fill.
        bias = torch.zeros(*mask.shape[:-1], tokens + missing, dtype=scores.dtype, device=scores.device)
        lowest = torch.finfo(scores.dtype).min
        bias[..., :tokens].masked_fill_(~mask, lowest)
        bias[..., tokens:] = lowest
        scores = scores.add_(bias)
    weights = _softmax(scores)
    dropped = stream.drop(weights, dropout) if dropout else weights
    return torch.matmul(dropped, value).mul_(1 / (1 - dropout)).transpose(1, 2), None


def _softmax(scores: torch.Tensor) -> torch.Tensor:
    """Return the softmax of the last axis in the dtype of the scores; it sums up in fp32."""
    if scores.dtype == torch.bfloat16 and scores.shape[-1] < 2 * _VECTOR:
        return scores.float().softmax(dim=-1).to(scores.dtype)
    # autocast would store the result in fp32 as well
    with torch.autocast(scores.device.type, enabled=False):
        return scores.softmax(dim=-1)
