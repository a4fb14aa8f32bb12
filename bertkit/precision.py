"""Device and precision: decided by looking at the machine, said in one line, overridable."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import Any

_OVERFLOWS = ("deberta",)  # its attention mask is a number that bf16 cannot hold
_WORTHWHILE = 1.3  # a smaller gain would not show in a whole step


@dataclass(frozen=True)
class Machine:
    """What a run computes on and with; `reason` is for people."""

    device: str
    precision: str
    threads: int
    reason: str


def look_at_machine(wanted: str, why: str = "as asked", model_type: str = "") -> Machine:
    """Choose the device and the precision (``auto``: bf16 where a trial product shows that it is faster)."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    threads = torch.get_num_threads()
    name = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {threads} thread{'s' if threads > 1 else ''}"
    if wanted != "auto":
        return Machine(device, wanted, threads, f"{name}: {wanted}, {why}")
    if model_type in _OVERFLOWS:
        return Machine(device, "fp32", threads, f"{name}: fp32 (a model of type {model_type} overflows in bf16)")
    gain = _gain_of_bf16(torch.device(device))
    chosen = "bf16" if gain >= _WORTHWHILE else "fp32"
    return Machine(
        device, chosen, threads, f"{name}: {chosen} (bf16 matrix products are {gain:.1f} times as fast here)"
    )


def _gain_of_bf16(device: Any) -> float:
    import torch

    def seconds(dtype: torch.dtype) -> float:
        left = torch.ones(512, 768, dtype=dtype, device=device)
        right = torch.ones(768, 768, dtype=dtype, device=device)
        best = float("inf")
        for _ in range(6):  # the first turns warm up, the fastest counts
            start = time.perf_counter()
            for _ in range(4):
                left @ right
            if device.type == "cuda":
                torch.cuda.synchronize()
            best = min(best, time.perf_counter() - start)
        return best

    return seconds(torch.float32) / seconds(torch.bfloat16)


def keep_head_exact(model: Any) -> None:
    """Compute the layers of the head in float32 under autocast too.

    They cost nothing, and in bf16 two answers that differ by less than a hundredth would be the same.
    """
    import torch

    def exact(layer: Any, inputs: Any) -> Any:
        with torch.autocast(inputs.device.type, enabled=False):
            return torch.nn.functional.linear(inputs.float(), layer.weight, layer.bias)

    for name, part in model.named_children():
        for layer in part.modules() if name != model.base_model_prefix else ():
            if type(layer) is torch.nn.Linear:
                layer.forward = functools.partial(exact, layer)  # type: ignore[method-assign]
