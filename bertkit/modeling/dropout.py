"""Dropout with random numbers that cost next to nothing on a CPU, keyed by seed, process and step.

On a CPU, torch draws the random numbers of dropout one by one from one generator, which takes a sixth of a step of a
small encoder. This module makes a generator per step, from which the model's layers draw in order, so a resumed run
needs no saved state. Sixteen random bits decide whether to drop a value, so the dropout rate is exact to 2**-16.

Attention is computed by plain products, because torch's fused attention accepts no other dropout. In bf16, the
gradients of fused attention over short rows take up to ten times as long, so plain products are used there even without
dropout.

The mask of a value is all ones (-1, keep) or all zeros (0, drop). Kept values are scaled:

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

# fp32 values per SIMD register. A softmax over fewer values takes ten times as long per value.
_SIMD_WIDTH = 16
# For rows of at most this many tokens in bf16, plain products are faster than fused attention.
_MAX_SHORT_ROW = 256


def get_dropout_rates(config: Config) -> dict[str, float]:
    """Return the dropout rates of an encoder by the names of the config fields."""
    rates = {name: value for name, value in vars(config).items() if "dropout" in name and "classifier" not in name}
    return {name: float(value) for name, value in rates.items() if isinstance(value, (int, float))}


def set_dropout(config: Config, rate: float) -> None:
    """Set all dropout rates of an encoder in its config."""
    for name in get_dropout_rates(config):
        setattr(config, name, rate)


class DropoutStream:
    """Random numbers for the dropout of one process."""

    def __init__(self, seed: int, process: int = 0) -> None:
        self.seed, self.process = seed, process
        self.step = -1
        self.move_to(0)

    def move_to(self, step: int) -> None:
        """Make a new generator if the step changes; all micro-batches of a step draw from one generator."""
        if step != self.step:
            self.step = step
            self.generator = np.random.SFC64(np.random.SeedSequence((self.seed, self.process, step)))

    def state(self) -> Any:
        """Return the state of the generator, to draw the same masks again later."""
        return self.generator.state

    def load_state(self, state: Any) -> None:
        """Restore a state that `state` returned."""
        self.generator.state = state

    def draw_mask(self, shape: torch.Size, p: float) -> Tensor:
        """Draw an int16 mask of `shape`: 0 (all bits 0) with probability `p`, else -1 (all bits 1).

        A 64-bit draw is viewed as four signed 16-bit integers, and each of these is compared with a threshold. So no
        conversion to float is needed, and the negated result (True -> -1) is the mask of `_Masked`.

        With p = 0.25, the threshold is 0.25 * 65,536 - 32,768 = -16,384. The draws -30,000, -16,384, 5 and 30,000
        become the masks 0, -1, -1 and -1.
        """
        # Comparison and negation overwrite `draws` (count,), so nothing else of this size is allocated.
        count = math.prod(shape)
        draws = self.generator.random_raw(-(-count // 4)).view(np.int16)[:count]
        return torch.from_numpy(draws).ge_(round(p * 2**16) - 2**15).neg_().view(shape)

    def drop(self, values: Tensor, p: float, scale: float = 1.0) -> Tensor:
        """Zero each value with probability `p`, and scale the others."""
        # For 32-bit values, the mask is cast to int32. The cast extends the sign, so -1 still has all bits set.
        mask = self.draw_mask(values.shape, p)
        return _Masked.apply(values, mask if values.element_size() == 2 else mask.int(), scale)  # type: ignore[no-any-return, no-untyped-call]


class _Masked(torch.autograd.Function):
    """Bitwise AND of values and mask, both viewed as integers, times `scale`.

    This keeps values with the mask -1, and sets values with the mask 0 to 0, three times as fast as a product.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, mask: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(mask)
        ctx.scale = scale
        return _Masked.mask(values, mask, scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        # The backward pass masks the gradients like the values, so it needs only the mask.
        (mask,) = ctx.saved_tensors
        return _Masked.mask(gradients[0].contiguous(), mask, ctx.scale), None, None

    @staticmethod
    def mask(values: Tensor, mask: Tensor, scale: float) -> Tensor:
        """Mask and scale contiguous values with as many bits as the mask's."""
        masked = (values.view(mask.dtype) & mask).view(values.dtype)
        return masked if scale == 1 else masked.mul_(scale)


@contextmanager
def fast_dropout(model: Model, stream: DropoutStream) -> Iterator[None]:
    """Draw the dropout of all layers, and of sdpa attention, from a stream inside the `with` block."""
    layers = [module for module in model.modules() if type(module) is nn.Dropout]
    with ExitStack() as patches:
        for layer in layers:
            patches.enter_context(patch_forward(layer, partial(_drop_values, layer, stream)))
        if model.config._attn_implementation == "sdpa":
            attend = partial(_attend, stream)
            patches.enter_context(patch_attention(model, "bertkit-dropout", attend, can_split_rows=True))
        # A head that reads a batch in two passes replays the stream in the second.
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
    **kwargs: object,
) -> tuple[Tensor, None]:
    """Attend as transformers' own functions do: (rows, heads, tokens, width) to (rows, tokens, heads, width).

    The mask is boolean, true for tokens that can be attended to. The 1 / (1 - dropout) of dropout is applied to the
    output, which has fewer values than the weights (rows, heads, tokens, tokens).
    """
    # 1. Use fused attention if it is faster. Rotary models pass queries and keys in fp32, and values in bf16.
    query, key = query.to(value.dtype), key.to(value.dtype)
    is_slow_fused = query.dtype == torch.bfloat16 and query.requires_grad and key.shape[2] <= _MAX_SHORT_ROW
    if not (dropout or is_slow_fused):
        outputs: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, **kwargs
        )
        return outputs

    # 2. Pad keys and values to the width of a SIMD register, and compute the scores.
    key, value = (repeat_kv(states, query.shape[1] // states.shape[1]) for states in (key, value))
    missing = max(_SIMD_WIDTH - key.shape[2], 0)
    if missing:
        key, value = (functional.pad(states, (0, 0, 0, missing)) for states in (key, value))
    # Scale the query: scores (rows, heads, tokens, tokens) have more values if tokens exceed the width of a head.
    scores = torch.matmul(query * (scaling or query.size(-1) ** -0.5), key.transpose(2, 3))
    if attention_mask is not None or missing:
        tokens, mask = key.shape[2] - missing, attention_mask
        if mask is None:
            mask = torch.ones(1, 1, 1, tokens, dtype=torch.bool, device=scores.device)
        # Add 0 for allowed tokens, and the lowest finite number for other tokens and padded keys: a softmax over only
        # -inf is NaN. Unlike `masked_fill` of the scores, a sum costs nothing in the backward pass.
        bias = torch.zeros(*mask.shape[:-1], tokens + missing, dtype=scores.dtype, device=scores.device)
        lowest = torch.finfo(scores.dtype).min
        bias[..., :tokens].masked_fill_(~mask, lowest)
        bias[..., tokens:] = lowest
        scores = scores.add_(bias)

    # 3. Drop weights, and compute the weighted sum of the values.
    weights = _softmax(scores)
    weights = stream.drop(weights, dropout) if dropout else weights
    return torch.matmul(weights, value).mul_(1 / (1 - dropout)).transpose(1, 2), None


def _softmax(scores: Tensor) -> Tensor:
    """Compute the softmax over the last axis in the dtype of the scores, with sums in fp32."""
    if scores.dtype == torch.bfloat16 and scores.shape[-1] < 2 * _SIMD_WIDTH:
        return scores.float().softmax(dim=-1).to(scores.dtype)
    # Autocast would return fp32.
    with torch.autocast(scores.device.type, enabled=False):
        return scores.softmax(dim=-1)
