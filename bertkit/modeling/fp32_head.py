"""A head that is computed in float32 while the encoder runs under autocast."""

from __future__ import annotations

import functools
from typing import Any


def compute_head_in_fp32(model: Any) -> None:
    """Compute the layers of the head, and the pooler before it, in float32 under autocast too.

    They cost nothing. In bf16, two answers that differ by less than a hundredth would be the same, and the pooler alone
    would make the scores of MiniLM on STS-B 2.6 times as inexact as the encoder makes them.
    """
    import torch

    def exact(layer: Any, inputs: Any) -> Any:
        with torch.autocast(inputs.device.type, enabled=False):
            return torch.nn.functional.linear(inputs.float(), layer.weight, layer.bias)

    parts = [part for name, part in model.named_children() if name != model.base_model_prefix]
    parts += [part for name, part in model.base_model.named_children() if name == "pooler"]
    for part in parts:
        for layer in part.modules():
            if type(layer) is torch.nn.Linear:
                layer.forward = functools.partial(exact, layer)  # type: ignore[method-assign]
