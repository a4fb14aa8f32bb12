"""Device and precision of a run: chosen by trial on this machine, unless the user sets them."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bertkit.errors import UnavailableError
from bertkit.hardware.device import Device, find_device
from bertkit.hardware.process import keep_freed_memory, use_threads
from bertkit.progress import log

if TYPE_CHECKING:
    import torch

_MIN_GAIN = 1.3  # for matrix products; a smaller gain would not show in a complete step
# Well below 1, so that noise does not change the choice between backends of equal speed.
_MIN_ONEDNN_GAIN = 0.7
# Size of a product in a trial: fewer tokens for large widths, and more on a GPU to keep it busy.
_TOKENS, _GPU_TOKENS, _MULTIPLICATIONS = 1024, 16384, 2**31
_MAX_WIDTH = 8192  # a config can contain any number
# A trial ends after _SECONDS, but not before _MIN_ROUNDS rounds. Slow rounds end it after _MAX_SECONDS and two rounds.
_MIN_ROUNDS, _MAX_ROUNDS, _SECONDS, _MAX_SECONDS = 6, 20, 0.08, 0.4
# A dtype that a CPU emulates is ten times slower. An eighth of the tokens is enough to detect this within a second.
_PARTS, _EMULATED_GAIN = 8, 1 / 3
# For smaller hidden sizes, the time of a product is mostly overhead, so a trial would measure noise.
_MIN_WIDTH = 128
_WIDTHS = (768, 3072)  # BERT base; used if a model's widths are unknown
# Maximum relative error: fp32 products of these sizes are off by 5e-7, bf16 products by 3e-3.
_MAX_FP32_ERROR = 1e-5


@dataclass(frozen=True)
class ComputeConfig:
    """Device of a run with its precision and threads; `reason` explains the choice.

    `matmul_backend` is the library that multiplies fp32 matrices on a CPU: ``torch`` (its own choice) or ``onednn``.
    """

    device: str
    precision: str
    threads: int
    reason: str
    matmul_backend: str = "torch"

    @property
    def summary(self) -> str:
        """Device, threads and precision, without the reasons."""
        return f"{self.reason.partition(f': {self.precision}')[0]}: {self.precision}"

    def announce(self, action: str = "") -> None:
        """Log the device and the precision, and at level DEBUG the reason."""
        log.info(f"{action}{self.summary}")
        log.debug(self.reason)


def detect_hardware(
    precision: str, *, avoid_bf16: bool = False, widths: tuple[int, int] | None = None, threads: int | None = None
) -> ComputeConfig:
    """Choose the device and the precision.

    Args:
        precision: ``fp32``, ``bf16``, or ``auto``: bf16 if its matrix products are faster in a trial.
        avoid_bf16: Whether ``auto`` means fp32, because the model overflows in bf16.
        widths: Hidden and intermediate size of the model for the trial, or None if they are unknown.
        threads: Number of threads, or None for the number that suits the machine.
    """
    import torch

    device, threads, name = _name_device(threads, "its share")
    widths = widths or _WIDTHS
    if precision == "auto" and avoid_bf16:
        precision, reason = "fp32", "this model overflows in bf16"
    elif precision == "auto" and not device.has_bf16:
        precision, reason = "fp32", "it has no bf16"
    elif precision == "auto":
        gain = _measure_gain(device, torch.bfloat16, widths)
        precision = "bf16" if gain >= _MIN_GAIN else "fp32"
        reason = f"bf16 matrix products of this model's sizes are {gain:.1f} times as fast on this machine"
    else:
        reason = "as requested"
    _check_precision(precision, device, name)
    backend = "torch"
    if precision == "fp32" and device.is_cpu and widths[0] >= _MIN_WIDTH and onednn_is_exact():
        gain = _measure_gain(device, torch.float32, widths)
        backend = "onednn" if gain >= _MIN_ONEDNN_GAIN else "torch"
        reason += f"; products of oneDNN, as exact, are {gain:.1f} times as fast as torch's"
    reason = "; ".join(filter(None, (reason, device.note)))
    return ComputeConfig(device.type, precision, threads, f"{name}: {precision} ({reason})", backend)


def detect_device() -> str:
    """Return and log the device for a model that computes in the dtype of its weights."""
    device, _, name = _name_device(None, "")
    log.info("; ".join(filter(None, (name, device.note))))
    return device.type


def bf16_is_faster_on_cpu() -> bool:
    """Return whether bf16 products are faster on the CPU, for work that always runs on the CPU."""
    import torch

    use_threads()
    return _measure_gain(Device("cpu"), torch.bfloat16, _WIDTHS) >= _MIN_GAIN


def product_widths(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the hidden and the intermediate size of a config, or None if one is missing.

    >>> product_widths({"hidden_size": 384, "intermediate_size": 1536}), product_widths({"dim": 768})
    ((384, 1536), None)
    """
    hidden = config.get("hidden_size", config.get("dim"))
    intermediate = config.get("intermediate_size", config.get("hidden_dim"))
    sizes = [size for size in (hidden, intermediate) if isinstance(size, int) and size > 0]
    return (sizes[0], sizes[1]) if len(sizes) == 2 else None


def restore_hardware(record: dict[str, Any], reason: str, threads: int | None = None) -> ComputeConfig:
    """Return this machine's device with the precision of an earlier record and, if available, its backend.

    Without a number of threads, all cores are used. If the device is another one, the reason names the earlier device.

    Raises:
        UnavailableError: If this device does not compute in that precision.
    """
    device, threads, name = _name_device(threads, reason)
    precision, earlier_device = record["precision"], record.get("device", device.type)
    _check_precision(precision, device, name)
    backend = record.get("matmul_backend", "torch") if device.is_cpu and onednn_is_exact() else "torch"
    origin = f"recorded on {earlier_device}" if earlier_device != device.type else ""
    reason = "; ".join(filter(None, (reason, origin, device.note)))
    return ComputeConfig(device.type, precision, threads, f"{name}: {precision} ({reason})", backend)


def _check_precision(precision: str, device: Device, name: str) -> None:
    if precision == "bf16" and not device.has_bf16:
        raise UnavailableError(f"{name} has no bf16", "choose fp32 or --device cpu")


def use_matmul_backend(machine: ComputeConfig) -> None:
    """Set torch's backend for fp32 matrix products on a CPU; on a GPU, use TF32."""
    import torch

    if machine.device != "cpu":
        # torch.compile cannot read the newer setting.
        torch.set_float32_matmul_precision("high")
        return
    torch.backends.mkldnn.matmul.fp32_precision = "bf16" if machine.matmul_backend == "onednn" else "none"  # type: ignore[attr-defined]


def onednn_is_exact() -> bool:
    """Return whether oneDNN computes fp32 products exactly although it is allowed to round them to bf16.

    torch passes fp32 products to oneDNN only with that permission, which CPUs without bf16 matrix units do not use. The
    function compares a product with float64, because a list of CPUs would become outdated.
    """
    import torch

    random = torch.Generator().manual_seed(0)
    states, weights = torch.randn(256, 512, generator=random), torch.randn(512, 128, generator=random)
    exact = states.double() @ weights.double()
    with _onednn():
        product = states @ weights
    return bool((product - exact).norm() < _MAX_FP32_ERROR * exact.norm())


@contextmanager
def _onednn() -> Iterator[None]:
    """Multiply fp32 matrices with oneDNN inside the `with` block."""
    import torch

    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    original = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = original


def _name_device(threads: int | None, reason: str) -> tuple[Device, int, str]:
    """Return the device, the number of threads, and a text that names both with the reason for the number."""
    # oneDNN compiles a product for each shape, which takes 2 ms. Its default cache is full after some 60 batch shapes.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "4096")
    used_threads, device = use_threads(threads, reason), find_device()
    if not device.is_cpu:
        return device, used_threads.number, device.name
    keep_freed_memory()
    reason = f" ({used_threads.reason})" if used_threads.reason else ""
    return device, used_threads.number, f"{device.name}, {used_threads.text}{reason}"


def _measure_gain(device: Device, dtype: torch.dtype, widths: tuple[int, int]) -> float:
    """Return the speedup of a layer's two largest products in a dtype (float32: with oneDNN) over torch's fp32.

    For bf16, the time includes the casts of autocast, which take a large part of it if widths are small.
    """
    import torch

    hidden, intermediate = (min(width, _MAX_WIDTH) for width in widths)
    tokens = max(1, min(_TOKENS, _MULTIPLICATIONS // (hidden * intermediate)))
    if device.pins_memory:
        tokens = _GPU_TOKENS
    elif device.is_cpu and dtype != torch.float32 and hidden >= _MIN_WIDTH:
        gain = _time_products(device, dtype, hidden, intermediate, tokens // _PARTS)
        if gain < _EMULATED_GAIN:
            return gain
    return _time_products(device, dtype, hidden, intermediate, tokens)


def _time_products(device: Device, dtype: torch.dtype, hidden: int, intermediate: int, tokens: int) -> float:
    """Return the speedup of a dtype over torch's fp32 for the two products of a feed-forward network."""
    import torch
    from torch.nn.functional import linear

    # On a CPU, measure only the time of this process, because other processes may use the CPU too.
    clock = time.process_time if device.is_cpu else time.perf_counter
    states = torch.ones(tokens, hidden, device=device.type)
    up, down = (torch.ones(shape, device=device.type) for shape in ((intermediate, hidden), (hidden, intermediate)))

    def time_once(context: AbstractContextManager[Any]) -> float:
        start = clock()
        with context:
            between = linear(states, up)
            # Between the products, a layer computes in fp32, except on a GPU. XLA would skip an unused result.
            result = linear(between if device.pins_memory else between.float(), down).float()  # noqa: F841
        device.synchronize()
        return clock() - start

    fp32_seconds, seconds, rounds, elapsed, start = math.inf, math.inf, 0, 0.0, clock()
    # The fastest of alternating rounds counts, because other work can only slow a round down.
    while rounds < 2 or (rounds < _MAX_ROUNDS and elapsed < (_MAX_SECONDS if rounds < _MIN_ROUNDS else _SECONDS)):
        fp32_seconds = min(fp32_seconds, time_once(nullcontext()))
        seconds = min(seconds, time_once(_onednn() if dtype == torch.float32 else torch.autocast(device.type, dtype)))
        rounds, elapsed = rounds + 1, clock() - start
    return fp32_seconds / seconds
