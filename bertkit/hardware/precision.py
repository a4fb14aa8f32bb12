"""Device and precision: decided by looking at the machine, said in one line, overridable."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

_OVERFLOWS = ("deberta",)  # its attention mask is a number that bf16 cannot hold
_WORTHWHILE = 1.3  # a smaller gain would not show in a whole step
_SLOWER = 0.7  # products that are about as fast are taken too, so that the choice is the same every time
_FP32_ERROR = 1e-5  # float32 products of these sizes are off by 5e-7, bf16 products by 3e-3


@dataclass(frozen=True)
class Machine:
    """What a run computes on and with; `reason` is for people.

    `matmul_backend` says which library multiplies fp32 matrices on a CPU: torch's own choice, or oneDNN.
    """

    device: str
    precision: str
    threads: int
    reason: str
    matmul_backend: str = "torch"


def detect_hardware(wanted: str, model_type: str = "") -> Machine:
    """Choose the device and the precision (``auto``: bf16 where a trial product shows that it is faster)."""
    import torch

    device, threads, name = _describe()
    if model_type in _OVERFLOWS and wanted == "auto":
        wanted, why = "fp32", f"a model of type {model_type} overflows in bf16"
    elif wanted == "auto":
        gain = _gain(device, torch.bfloat16)
        wanted = "bf16" if gain >= _WORTHWHILE else "fp32"
        why = f"bf16 matrix products are {gain:.1f} times as fast here"
    else:
        why = "as asked"
    products = "torch"
    if wanted == "fp32" and device == "cpu" and onednn_is_exact():
        gain = _gain(device, torch.float32)
        products = "onednn" if gain >= _SLOWER else "torch"
        why += f"; products of oneDNN, as exact, are {gain:.1f} times as fast as torch's"
    return Machine(device, wanted, threads, f"{name}: {wanted} ({why})", products)


def restore_hardware(before: dict[str, Any], why: str) -> Machine:
    """Compute as a record of an earlier `Machine` says, as far as this machine can."""
    device, threads, name = _describe()
    products = before.get("matmul_backend", "torch") if device == "cpu" and onednn_is_exact() else "torch"
    return Machine(device, before["precision"], threads, f"{name}: {before['precision']} ({why})", products)


def use_matmul_backend(machine: Machine) -> None:
    """Let torch multiply fp32 matrices as was decided for this machine."""
    import torch

    torch.backends.mkldnn.matmul.fp32_precision = "bf16" if machine.matmul_backend == "onednn" else "none"  # type: ignore[attr-defined]


def onednn_is_exact() -> bool:
    """Tell whether oneDNN, allowed to round fp32 products to bf16, computes them in float32 all the same.

    torch hands fp32 products to oneDNN only with that permission. A CPU without bf16 matrix units makes no use of it;
    so a trial product beside float64 decides, not a list of CPUs.
    """
    import torch

    random = torch.Generator().manual_seed(0)
    left, right = torch.randn(256, 512, generator=random), torch.randn(512, 128, generator=random)
    exact = left.double() @ right.double()
    with _onednn():
        found = left @ right
    return bool((found - exact).norm() < _FP32_ERROR * exact.norm())


@contextmanager
def _onednn() -> Iterator[None]:
    import torch

    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before


def _describe() -> tuple[str, int, str]:
    """Give the device, the threads and both in words."""
    import torch

    # oneDNN compiles a product for each shape it meets, in 2 ms, and would forget it after some 60 shapes of batches
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "4096")
    threads = torch.get_num_threads()
    if torch.cuda.is_available():
        return "cuda", threads, torch.cuda.get_device_name()
    return "cpu", threads, f"CPU, {threads} thread{'s' if threads > 1 else ''}"


def _gain(device: str, dtype: Any) -> float:
    """Tell how many times as fast trial products are in a type (in float32: through oneDNN) as torch's in float32."""
    import torch

    clock = time.perf_counter if device == "cuda" else time.process_time  # of a CPU other work may take a part

    def seconds(operand: torch.Tensor) -> float:
        start = clock()
        for _ in range(4):
            operand @ operand
        if device == "cuda":
            torch.cuda.synchronize()
        return clock() - start

    plain = torch.ones(640, 640, device=device)
    other = plain.to(dtype)
    usual, wanted = math.inf, math.inf
    for _ in range(8):  # taking turns, the first to warm up, and the fastest counts, since other work disturbs
        usual = min(usual, seconds(plain))
        with _onednn() if dtype == torch.float32 else nullcontext():
            wanted = min(wanted, seconds(other))
    return usual / wanted
