"""Tensors on a device that keep a reference to their copy on the CPU.

Reading a number from a device, or the indices of a mask, waits until the device has finished all earlier work. But the
values of a batch were on the CPU before: `to_device` stores a reference to the tensor that it moved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bertkit.hardware.device import Device

if TYPE_CHECKING:
    import torch
    from torch import Tensor


_COPY = "bertkit_host_copy"  # attribute of a device tensor that holds its copy in host memory


def to_device(values: Tensor, device: torch.device | str) -> Tensor:
    """Move a tensor to a device, asynchronously from pinned memory, and store a reference to its CPU copy."""
    moved = values.to(device, non_blocking=True)
    Device(moved.device.type).share_rows(moved)
    return moved if moved is values else _keep(moved, values)


def on_host(values: Tensor) -> Tensor:
    """Return a tensor's CPU copy, or copy it from the device, which waits for the device."""
    copy = host_copy(values)
    return values.cpu() if copy is None else copy


def host_copy(values: Tensor) -> Tensor | None:
    """Return the CPU copy of `values`, or of the tensor that they are a view of, or None without a copy."""
    if values.device.type == "cpu":
        return values
    copy: Tensor | None = getattr(values, _COPY, None)
    base = values._base
    if copy is None and base is not None and base.numel() == values.numel() and values.is_contiguous():
        copy = getattr(base, _COPY, None)
        return None if copy is None else copy.reshape(values.shape)
    return copy


def derive(values: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """Compute a function of a tensor, and the same function of its CPU copy, if there is one."""
    copy, derived = host_copy(values), compute(values)
    return derived if copy is None or copy is values else _keep(derived, compute(copy))


def find_indices(values: Tensor, test: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
    """Return the indices of the elements that pass a test, as one tensor per axis on the device of `values`."""
    return tuple(test(on_host(values)).nonzero().T.contiguous().to(values.device, non_blocking=True))


def select(values: Tensor, mask: Tensor) -> Tensor:
    """Return the values for which a mask is true, like boolean indexing, but without waiting for the device."""
    return values[find_indices(mask, lambda mask: mask)]


def _keep(moved: Tensor, copy: Tensor) -> Tensor:
    setattr(moved, _COPY, copy)
    return moved
