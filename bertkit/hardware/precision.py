"""Device and precision: chosen by trial on this machine, explained in one line, and overridable."""

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
# well below 1, so that noise does not change the choice where both are about as fast
_NOT_SLOWER = 0.7
# of a product that is tried: fewer tokens where widths are large, and more on a GPU, which would be idle with so few
_TOKENS, _TOKENS_OF_GPU, _MULTIPLICATIONS = 1024, 16384, 2**31
_WIDEST = 8192  # a config may name any number
# of a trial: the time ends it, but not before the least turns, of which two will do where they are long
_LEAST_TURNS, _TURNS, _SECONDS, _LONG = 6, 20, 0.08, 0.4
# a dtype that a CPU emulates is ten times as slow: an eighth of the tokens tells, and all would take seconds
_PARTS, _EMULATED = 8, 1 / 3
# hidden size below which a product takes no longer than its call, so that a trial would tell chance
_NARROW = 128
_WIDTHS = (768, 3072)  # of BERT base, tried where those of a model are not known
# relative; fp32 products of these sizes are off by 5e-7, bf16 products by 3e-3
_FP32_ERROR = 1e-5


@dataclass(frozen=True)
class Machine:
    """The device of a run, and how it computes there; `reason` explains the choice to people.

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
        """Log what computes, and at level DEBUG why so."""
        log.info(f"{action}{self.summary}")
        log.debug(self.reason)


def detect_hardware(
    precision: str, *, avoid_bf16: bool = False, widths: tuple[int, int] | None = None, threads: int | None = None
) -> Machine:
    """Choose the device and the precision.

    Args:
        precision: ``fp32``, ``bf16``, or ``auto``: bf16 where a trial shows that its matrix products are faster.
        avoid_bf16: whether ``auto`` is fp32, since the model overflows in bf16.
        widths: hidden and intermediate size of the model, whose products are tried; None where they are not known.
        threads: Number of threads, or None for the number that fits.
    """
    import torch

    device, threads, name = _name_device(threads, "its share")
    widths = widths or _WIDTHS
    if precision == "auto" and avoid_bf16:
        precision, why = "fp32", "this model overflows in bf16"
    elif precision == "auto" and not device.has_bf16:
        precision, why = "fp32", "it has no bf16"
    elif precision == "auto":
        gain = _gain(device, torch.bfloat16, widths)
        precision = "bf16" if gain >= _WORTHWHILE else "fp32"
        why = f"bf16 matrix products of this model's sizes are {gain:.1f} times as fast here"
    else:
        why = "as asked"
    _check_precision(precision, device, name)
    backend = "torch"
    if precision == "fp32" and device.is_cpu and widths[0] >= _NARROW and onednn_is_exact():
        gain = _gain(device, torch.float32, widths)
        backend = "onednn" if gain >= _NOT_SLOWER else "torch"
        why += f"; products of oneDNN, as exact, are {gain:.1f} times as fast as torch's"
    why = "; ".join(filter(None, (why, device.note)))
    return Machine(device.type, precision, threads, f"{name}: {precision} ({why})", backend)


def compute_as_stored() -> str:
    """Find the device for a model that is computed in the dtype it is loaded in, say which one it is, and return it."""
    device, _, name = _name_device(None, "")
    log.info("; ".join(filter(None, (name, device.note))))
    return device.type


def bf16_is_faster_on_cpu() -> bool:
    """Tell whether bf16 products are faster on the CPU, for work that no other device does."""
    import torch

    use_threads()
    return _gain(Device("cpu"), torch.bfloat16, _WIDTHS) >= _WORTHWHILE


def product_widths(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the hidden and the intermediate size that a config names; None where it names none.

    >>> product_widths({"hidden_size": 384, "intermediate_size": 1536}), product_widths({"dim": 768})
    ((384, 1536), None)
    """
    hidden = config.get("hidden_size", config.get("dim"))
    intermediate = config.get("intermediate_size", config.get("hidden_dim"))
    named = [size for size in (hidden, intermediate) if isinstance(size, int) and size > 0]
    return (named[0], named[1]) if len(named) == 2 else None


def restore_hardware(before: dict[str, Any], why: str, threads: int | None = None) -> Machine:
    """Return a `Machine` with the precision and backend of an earlier one's record, as far as this machine has them.

    It has so many threads, or without a number those that fit. On another device, the reason names the earlier one.

    Raises:
        UnavailableError: this device does not compute in that precision.
    """
    device, threads, name = _name_device(threads, why)
    precision, earlier = before["precision"], before.get("device", device.type)
    _check_precision(precision, device, name)
    backend = before.get("matmul_backend", "torch") if device.is_cpu and onednn_is_exact() else "torch"
    why = "; ".join(filter(None, (why, f"but there on {earlier}" if earlier != device.type else "", device.note)))
    return Machine(device.type, precision, threads, f"{name}: {precision} ({why})", backend)


def _check_precision(precision: str, device: Device, name: str) -> None:
    if precision == "bf16" and not device.has_bf16:
        raise UnavailableError(f"{name} has no bf16", "choose --precision fp32 or --device cpu")


def use_matmul_backend(machine: Machine) -> None:
    """Let torch multiply fp32 matrices with the backend that was chosen for this machine; on a GPU, in TF32."""
    import torch

    if machine.device != "cpu":
        # the newer setting is one that torch.compile cannot read
        torch.set_float32_matmul_precision("high")
        return
    torch.backends.mkldnn.matmul.fp32_precision = "bf16" if machine.matmul_backend == "onednn" else "none"  # type: ignore[attr-defined]


def onednn_is_exact() -> bool:
    """Tell whether oneDNN computes fp32 products exactly although it may round them to bf16.

    torch hands fp32 products to oneDNN only with that permission, which a CPU without bf16 matrix units does not use. A
    trial product, compared with float64, decides; a list of CPUs would be out of date.
    """
    import torch

    random = torch.Generator().manual_seed(0)
    left, right = torch.randn(256, 512, generator=random), torch.randn(512, 128, generator=random)
    exact = left.double() @ right.double()
    with _onednn():
        product = left @ right
    return bool((product - exact).norm() < _FP32_ERROR * exact.norm())


@contextmanager
def _onednn() -> Iterator[None]:
    """Let oneDNN multiply fp32 matrices for a while."""
    import torch

    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before


def _name_device(threads: int | None, why: str) -> tuple[Device, int, str]:
    """Return the device, the number of threads, and a name for both with the reason of the number."""
    # oneDNN compiles a product for each shape in 2 ms. Its default cache overflows after some 60 shapes of batches.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "4096")
    used, device = use_threads(threads, why), find_device()
    if not device.is_cpu:
        return device, used.number, device.name
    keep_freed_memory()
    return device, used.number, f"{device.name}, {used.text}" + (f" ({used.why})" if used.why else "")


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
    """Time the products of so many tokens by turns, and return the gain of the dtype."""
    import torch
    from torch.nn.functional import linear

    # other work may share the CPU
    clock = time.process_time if device.is_cpu else time.perf_counter
    states = torch.ones(tokens, hidden, device=device.type)
    up, down = (torch.ones(shape, device=device.type) for shape in ((intermediate, hidden), (hidden, intermediate)))

    def seconds(trial: AbstractContextManager[Any]) -> float:
        start = clock()
        with trial:
            between = linear(states, up)
            # a layer computes in fp32 between the two, but on a GPU; XLA computes nothing that is dropped
            kept = linear(between if device.pins_memory else between.float(), down).float()  # noqa: F841
        device.synchronize()
        return clock() - start

    usual, trial, turns, elapsed, start = math.inf, math.inf, 0, 0.0, clock()
    # by turns, the first as warm-up; the fastest counts, since other work only slows down. Right after the start of a
    # machine, several turns wait for pages of the libraries
    while turns < 2 or (turns < _TURNS and elapsed < (_LONG if turns < _LEAST_TURNS else _SECONDS)):
        usual = min(usual, seconds(nullcontext()))
        trial = min(trial, seconds(_onednn() if dtype == torch.float32 else torch.autocast(device.type, dtype)))
        turns, elapsed = turns + 1, clock() - start
    return usual / trial
