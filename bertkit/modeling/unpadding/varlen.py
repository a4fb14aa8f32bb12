"""Attention without padding on a GPU: torch's own for rows of any lengths, which lie one after another.

It takes the edges of the rows in place of masks, and is computed in bf16 by flash attention. It has neither dropout nor
a bias of positions.

Of a batch of three tokens and one, padded to (2, 3), the four tokens lie in a row, and the edges tell which is whose:

>>> layout = VarlenLayout(torch.tensor([[1, 1, 1], [1, 0, 0]]), print, torch.device("cpu"))
>>> layout.in_batch.indices.tolist(), layout.edges.tolist(), layout.longest
([0, 1, 2, 3], [0, 3, 4], 3)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from bertkit.hardware.device import Device
from bertkit.hardware.precision import Machine
from bertkit.modeling.architectures import architecture_of
from bertkit.modeling.info import Model
from bertkit.modeling.unpadding.layout import Attend, SingleRow, States

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
        window = named.get("sliding_window")
        reach = -1 if window is None else window - 1
        # Rotary positions are computed in fp32 by some models. The kernel wants (tokens, heads, width) of one dtype.
        rows = [each[0].transpose(0, 1).to(states[-1].dtype) for each in states]
        ends = (self.edges, self.edges, self.longest, self.longest)
        shares_keys = states[0].shape[1] != states[1].shape[1]
        attended: torch.Tensor = self.attend_rows(
            *rows, *ends, scale=named.get("scaling"), window_size=(reach, reach), enable_gqa=shares_keys
        )
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
    return None
