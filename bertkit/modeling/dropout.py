"""Dropout whose random numbers cost next to nothing on a CPU, keyed by seed, process and step.

On a CPU, torch draws the random numbers of dropout one by one from one generator, which takes a sixth of a step of a
small encoder. Here, each step has its own generator, from which the model's layers draw in their order, so a resume
needs no saved state. Sixteen bits decide about each value, so its probability is exact to 2**-16. Attention is computed
by plain products, because torch's fused attention has only its own dropout. In bf16, attention over short rows is
computed this way without dropout, too, because the gradients of fused attention then take up to ten times as long.

The mask of a number has only ones or only zeros; dropped numbers become 0, and the others are scaled:

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
from torch import Tensor, nn
from torch.nn import functional
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

from bertkit.modeling.info import Config, Model, patch_attention, patch_forward

_NAME = "bertkit-dropout"  # registered name of the attention function
# Number of fp32 values that a CPU computes at once. A softmax over fewer values takes ten times as long per value.
_VECTOR = 16
# In bf16, plain products are faster than fused attention for rows of at most this many tokens.
_MAX_SHORT_ROW = 256


def get_dropout_rates(config: Config) -> dict[str, float]:
    """Return the probabilities of dropout in the encoder, by the name of their field in the config."""
    rates = {name: value for name, value in vars(config).items() if "dropout" in name and "classifier" not in name}
    return {name: float(value) for name, value in rates.items() if isinstance(value, (int, float))}


def set_dropout(config: Config, rate: float) -> None:
    """Set all probabilities of dropout in a config."""
    for name in get_dropout_rates(config):
        setattr(config, name, rate)


class DropoutStream:
    """Random numbers for the dropout of one process."""

    def __init__(self, seed: int, process: int = 0) -> None:
        self.seed, self.process = seed, process
        self.step = -1
        self.move_to(0)

    def move_to(self, step: int) -> None:
        """Start a step; all micro-batches of one step draw from its generator."""
        if step != self.step:
            self.step = step
            self.generator = np.random.SFC64(np.random.SeedSequence((self.seed, self.process, step)))

    def state(self) -> Any:
        """Return the position of the stream, to draw the same masks again later."""
        return self.generator.state

    def load_state(self, state: Any) -> None:
        """Move the stream to a position that `state` returned."""
        self.generator.state = state

    def draw_mask(self, shape: torch.Size, p: float) -> Tensor:
        """Draw int16 values of `shape`, all bits 0 with probability `p`, else all bits 1.

        One 64-bit draw decides about four values: each 16 bits are compared with a threshold, as a signed number. That
        avoids a conversion to float, and the -1 of a negated True is already the mask of `_Masked`.
        """
        # `quarters` (count,) is a view of 64-bit numbers as 16-bit numbers. Comparison and negation overwrite it, so
        # nothing else of this size is allocated.
        count = math.prod(shape)
        quarters = self.generator.random_raw(-(-count // 4)).view(np.int16)[:count]
        return torch.from_numpy(quarters).ge_(round(p * 2**16) - 2**15).neg_().view(shape)

    def drop(self, values: Tensor, p: float, scale: float = 1.0) -> Tensor:
        """Zero each value with probability `p`, and scale the others."""
        # The mask has to be as wide as the values. A cast from int16 to int32 extends the sign, so -1
        # keeps all its bits.
        mask = self.draw_mask(values.shape, p)
        return _Masked.apply(values, mask if values.element_size() == 2 else mask.int(), scale)  # type: ignore[no-any-return, no-untyped-call]


class _Masked(torch.autograd.Function):
    """Keep the values whose bits in the mask are all 1, set the others to 0, and scale.

    Values and mask are viewed as integers of the same width. One bitwise AND is three times as fast as a product.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, mask: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(mask)
        ctx.scale = scale
        return _Masked.mask(values, mask, scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        # The mask selects the gradients as it selects the values, so the values need not be saved.
        (mask,) = ctx.saved_tensors
        return _Masked.mask(gradients[0].contiguous(), mask, ctx.scale), None, None

    @staticmethod
    def mask(values: Tensor, mask: Tensor, scale: float) -> Tensor:
        """Mask and scale values, contiguous and as wide as the mask."""
        masked = (values.view(mask.dtype) & mask).view(values.dtype)
        return masked if scale == 1 else masked.mul_(scale)


@contextmanager
def fast_dropout(model: Model, stream: DropoutStream) -> Iterator[None]:
    """Draw the dropout of all layers from a stream inside the `with` block, and of attention if it is sdpa."""
    layers = [module for module in model.modules() if type(module) is nn.Dropout]
    with ExitStack() as patches:
        for layer in layers:
            patches.enter_context(patch_forward(layer, partial(_drop_values, layer, stream)))
        if model.config._attn_implementation == "sdpa":
            attend = partial(_attend, stream)
            patches.enter_context(patch_attention(model, _NAME, attend, can_split_rows=True))
        # A head that reads a batch in two passes has to draw the same numbers again.
        model.dropout_stream = stream
        patches.callback(delattr, model, "dropout_stream")
        yield


def _drop_values(layer: nn.Dropout, stream: DropoutStream, values: Tensor) -> Tensor:
    if not layer.training or layer.p == 0:
        return values
    return stream.drop(values.contiguous(), layer.p, 1 / (1 - layer.p))


def _attend(
    stream: DropoutStream,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **named: object,
) -> tuple[Tensor, None]:
    """Attend as transformers' own functions do: (rows, heads, tokens, width) to (rows, tokens, heads, width).

    The mask is boolean, true for tokens that can be attended to. Scaling follows the last product, which has fewer
    values than the matrix of weights (rows, heads, tokens, tokens).
    """
    # Some models compute rotary positions of queries and keys in fp32, and autocast casts them back.
    query, key = query.to(value.dtype), key.to(value.dtype)
    is_slow_fused = query.dtype == torch.bfloat16 and query.requires_grad and key.shape[2] <= _MAX_SHORT_ROW
    if not (dropout or is_slow_fused):
        attended: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, **named
        )
        return attended
    key, value = (repeat_kv(states, query.shape[1] // states.shape[1]) for states in (key, value))
    missing = max(_VECTOR - key.shape[2], 0)
    if missing:
        key, value = (functional.pad(states, (0, 0, 0, missing)) for states in (key, value))
    # The query (rows, heads, tokens, width) is scaled, and not the scores (rows, heads, tokens, tokens), which are
    # larger if a text has more tokens than the width of a head.
    scores = torch.matmul(query * (scaling or query.size(-1) ** -0.5), key.transpose(2, 3))
    if attention_mask is not None or missing:
        tokens, mask = key.shape[2] - missing, attention_mask
        if mask is None:
            mask = torch.ones(1, 1, 1, tokens, dtype=torch.bool, device=scores.device)
        # The bias is 0 for tokens of the mask, and the lowest number for all others and for the added keys. That is
        # finite, because a softmax over only -inf is NaN. A sum has no gradient to compute, unlike a fill.
        bias = torch.zeros(*mask.shape[:-1], tokens + missing, dtype=scores.dtype, device=scores.device)
        lowest = torch.finfo(scores.dtype).min
        bias[..., :tokens].masked_fill_(~mask, lowest)
        bias[..., tokens:] = lowest
        scores = scores.add_(bias)
    weights = _softmax(scores)
    dropped = stream.drop(weights, dropout) if dropout else weights
    return torch.matmul(dropped, value).mul_(1 / (1 - dropout)).transpose(1, 2), None


def _softmax(scores: Tensor) -> Tensor:
    """Compute the softmax over the last axis in the dtype of the scores, with sums in fp32."""
    if scores.dtype == torch.bfloat16 and scores.shape[-1] < 2 * _VECTOR:
        return scores.float().softmax(dim=-1).to(scores.dtype)
    # Autocast would store the result in fp32, too.
    with torch.autocast(scores.device.type, enabled=False):
        return scores.softmax(dim=-1)
