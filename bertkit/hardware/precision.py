"""Device and precision, chosen by trial on this machine; the user can override both."""

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

_WORTHWHILE = 1.3  # gain in products; a smaller one would not show in a whole step
# Well below 1, so that noise does not change the choice between backends of equal speed.
_NOT_SLOWER = 0.7
# Size of a product in a trial: fewer tokens for large widths, and more on a GPU to keep it busy.
_TOKENS, _TOKENS_OF_GPU, _MULTIPLICATIONS = 1024, 16384, 2**31
_WIDEST = 8192  # a config may name any number
# A trial ends after _SECONDS, but not before _MIN_ROUNDS rounds (two if rounds are slow).
_MIN_ROUNDS, _MAX_ROUNDS, _SECONDS, _LONG = 6, 20, 0.08, 0.4
# A dtype that a CPU emulates is ten times slower. An eighth of the tokens is enough to detect this within a second.
_PARTS, _EMULATED = 8, 1 / 3
# For smaller hidden sizes, the time of a product is mostly overhead, so a trial would measure noise.
_NARROW = 128
_WIDTHS = (768, 3072)  # BERT base; for models whose widths are unknown
# Maximum relative error: fp32 products of these sizes are off by 5e-7, bf16 products by 3e-3.
_FP32_ERROR = 1e-5


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
        """Device, threads and precision, without the reasons for them."""
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
        avoid_bf16: Whether ``auto`` is fp32, because the model overflows in bf16.
        widths: Hidden and intermediate size of the model for the trial, or None if they are unknown.
        threads: Number of threads, or None for the number that fits.
    """
    import torch

    device, threads, name = _name_device(threads, "its share")
    widths = widths or _WIDTHS
    if precision == "auto" and avoid_bf16:
        precision, reason = "fp32", "this model overflows in bf16"
    elif precision == "auto" and not device.has_bf16:
        precision, reason = "fp32", "it has no bf16"
    elif precision == "auto":
        gain = _gain(device, torch.bfloat16, widths)
        precision = "bf16" if gain >= _WORTHWHILE else "fp32"
        reason = f"bf16 matrix products of this model's sizes are {gain:.1f} times as fast on this machine"
    else:
        reason = "as requested"
    _check_precision(precision, device, name)
    backend = "torch"
    if precision == "fp32" and device.is_cpu and widths[0] >= _NARROW and onednn_is_exact():
        gain = _gain(device, torch.float32, widths)
        backend = "onednn" if gain >= _NOT_SLOWER else "torch"
        reason += f"; products of oneDNN, as exact, are {gain:.1f} times as fast as torch's"
    reason = "; ".join(filter(None, (reason, device.note)))
    return ComputeConfig(device.type, precision, threads, f"{name}: {precision} ({reason})", backend)


def compute_as_stored() -> str:
    """Find, log and return the device for a model that computes in the dtype of its weights."""
    device, _, name = _name_device(None, "")
    log.info("; ".join(filter(None, (name, device.note))))
    return device.type


def bf16_is_faster_on_cpu() -> bool:
    """Return whether bf16 products are faster on the CPU, for work that always runs on the CPU."""
    import torch

    use_threads()
    return _gain(Device("cpu"), torch.bfloat16, _WIDTHS) >= _WORTHWHILE


def product_widths(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the hidden and the intermediate size of a config, or None if it names none.

    >>> product_widths({"hidden_size": 384, "intermediate_size": 1536}), product_widths({"dim": 768})
    ((384, 1536), None)
    """
    hidden = config.get("hidden_size", config.get("dim"))
    intermediate = config.get("intermediate_size", config.get("hidden_dim"))
    named = [size for size in (hidden, intermediate) if isinstance(size, int) and size > 0]
    return (named[0], named[1]) if len(named) == 2 else None


def restore_hardware(before: dict[str, Any], reason: str, threads: int | None = None) -> ComputeConfig:
    """Return a `ComputeConfig` with the precision and backend of an earlier record, as far as this machine has them.

    Without a number of threads, it uses all cores. On another device, the reason names the earlier one.

    Raises:
        UnavailableError: If this device does not compute in that precision.
    """
    device, threads, name = _name_device(threads, reason)
    precision, earlier = before["precision"], before.get("device", device.type)
    _check_precision(precision, device, name)
    backend = before.get("matmul_backend", "torch") if device.is_cpu and onednn_is_exact() else "torch"
    recorded = f"recorded on {earlier}" if earlier != device.type else ""
    reason = "; ".join(filter(None, (reason, recorded, device.note)))
    return ComputeConfig(device.type, precision, threads, f"{name}: {precision} ({reason})", backend)


def _check_precision(precision: str, device: Device, name: str) -> None:
    if precision == "bf16" and not device.has_bf16:
        raise UnavailableError(f"{name} has no bf16", "choose fp32 or --device cpu")


def use_matmul_backend(machine: ComputeConfig) -> None:
    """Set torch's backend for fp32 matrix products to the backend of a machine; on a GPU, to TF32."""
    import torch

    if machine.device != "cpu":
        # torch.compile cannot read the newer setting.
        torch.set_float32_matmul_precision("high")
        return
    torch.backends.mkldnn.matmul.fp32_precision = "bf16" if machine.matmul_backend == "onednn" else "none"  # type: ignore[attr-defined]


def onednn_is_exact() -> bool:
    """Return whether oneDNN computes fp32 products exactly even if it is allowed to round them to bf16.

    torch hands fp32 products to oneDNN only with that permission, which a CPU without bf16 matrix units does not use. A
    trial product, compared with float64, decides; a list of CPUs would be out of date.
    """
    import torch

    random = torch.Generator().manual_seed(0)
    states, weights = torch.randn(256, 512, generator=random), torch.randn(512, 128, generator=random)
    exact = states.double() @ weights.double()
    with _onednn():
        product = states @ weights
    return bool((product - exact).norm() < _FP32_ERROR * exact.norm())


@contextmanager
def _onednn() -> Iterator[None]:
    """Multiply fp32 matrices with oneDNN inside the block."""
    import torch

    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before


def _name_device(threads: int | None, reason: str) -> tuple[Device, int, str]:
    """Return the device, the number of threads, and a name for both with the reason of the number."""
    # oneDNN compiles a product for each shape in 2 ms. Its default cache overflows after some 60 shapes of batches.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "4096")
    used, device = use_threads(threads, reason), find_device()
    if not device.is_cpu:
        return device, used.number, device.name
    keep_freed_memory()
    return device, used.number, f"{device.name}, {used.text}" + (f" ({used.reason})" if used.reason else "")


def _gain(device: Device, dtype: torch.dtype, widths: tuple[int, int]) -> float:
    """Time a layer's two largest products in a dtype (float32: by oneDNN), and return their gain over torch's fp32.

    The gain in bf16 includes the casts of autocast, which take a large part of the time where widths are small.
    """
    import torch

    hidden, intermediate = (min(width, _WIDEST) for width in widths)
    tokens = max(1, min(_TOKENS, _MULTIPLICATIONS // (hidden * intermediate)))
    if device.pins_memory:
        tokens = _TOKENS_OF_GPU
    elif device.is_cpu and dtype != torch.float32 and hidden >= _NARROW:
        gain = _time_products(device, dtype, hidden, intermediate, tokens // _PARTS)
        if gain < _EMULATED:
            return gain
    return _time_products(device, dtype, hidden, intermediate, tokens)


def _time_products(device: Device, dtype: torch.dtype, hidden: int, intermediate: int, tokens: int) -> float:
    """Return the speedup of a dtype over fp32 for the matrix products of one layer."""
    import torch
    from torch.nn.functional import linear

    # Other processes may share the CPU, so the time of this process is measured.
    clock = time.process_time if device.is_cpu else time.perf_counter
    states = torch.ones(tokens, hidden, device=device.type)
    up, down = (torch.ones(shape, device=device.type) for shape in ((intermediate, hidden), (hidden, intermediate)))

    def seconds(trial: AbstractContextManager[Any]) -> float:
        start = clock()
        with trial:
            between = linear(states, up)
            # Between the two products, a layer computes in fp32, except on a GPU. XLA skips unused results.
            result = linear(between if device.pins_memory else between.float(), down).float()  # noqa: F841
        device.synchronize()
        return clock() - start

    usual, trial, rounds, elapsed, start = math.inf, math.inf, 0, 0.0, clock()
    # The fastest of alternating rounds counts, because other work only slows down; the first rounds warm up.
    while rounds < 2 or (rounds < _MAX_ROUNDS and elapsed < (_LONG if rounds < _MIN_ROUNDS else _SECONDS)):
        usual = min(usual, seconds(nullcontext()))
        trial = min(trial, seconds(_onednn() if dtype == torch.float32 else torch.autocast(device.type, dtype)))
        rounds, elapsed = rounds + 1, clock() - start
    return usual / trial
