"""A pretend accelerator: tensors that say they lie on a device, and hold their values in a tensor on the CPU.

Operations compute on the CPU what they would there, to the bit, and are as strict as those of a GPU: they refuse
tensors of two devices. What makes the program wait for a device is noted. torch is patched for the whole process, so
tests run in processes of their own; see `tests.conftest.zygote`.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
import types
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "pretend"
DEVICE = torch.device("cpu")  # until `register`
ROOT = Path(__file__).parents[2]
EVERY = torch.library.Library("_", "IMPL")
LIBRARY = torch.library.Library("aten", "IMPL")
aten = torch.ops.aten

READS = {aten._local_scalar_dense: "item", aten.equal: "equal"}
# The shape of the result is known only once the device has computed it.
DATA_DEPENDENT = {
    *(aten.nonzero, aten.masked_select, aten.unique_dim, aten._unique2, aten.unique_consecutive, aten.bincount),
    *(aten.repeat_interleave, aten.argwhere),
}
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
COPIES = {aten.copy_, aten._to_copy}
# Like a GPU, these take tensors of the CPU too: copies, index tensors, and lengths of packed sequences.
ACROSS = COPIES | INDEXING | {aten._pack_padded_sequence, aten._pad_packed_sequence}


class PretendTensor(torch.Tensor):
    """A tensor on the pretend device; `raw` holds its values on the CPU."""

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> PretendTensor:
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=DEVICE,
            requires_grad=False,
        )
        tensor.raw = raw
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operation, types, arguments=(), keywords=None):
        return compute(operation, arguments, keywords or {})

    def __repr__(self) -> str:
        return f"{self.raw!r} on {NAME}"

    def __reduce_ex__(self, protocol):
        return self.raw.__reduce_ex__(protocol)

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            memo[id(self)] = self.detach().clone().requires_grad_(self.requires_grad)
            memo[id(self)].__dict__ |= {name: value for name, value in self.__dict__.items() if name != "raw"}
        return memo[id(self)]

    def untyped_storage(self):
        return self.raw.untyped_storage()

    def data_ptr(self):
        return self.raw.data_ptr()

    def tolist(self):
        note("tolist")
        return self.raw.tolist()

    def numpy(self, *arguments, **keywords):
        raise TypeError(f"can't convert {DEVICE} device type tensor to numpy. Use Tensor.cpu() first")

    def __array__(self, *arguments):
        return self.numpy()


class Mode(TorchDispatchMode):
    """Sends operations without any pretend tensor here too, which may make one or name the device."""

    def __torch_dispatch__(self, operation, types, arguments=(), keywords=None):
        return compute(operation, arguments, keywords or {})


def compute(operation, arguments, keywords):
    """Compute an operation on the CPU; its results lie on the device that it would have put them on."""
    leaves = [*leaves_of(arguments), *leaves_of(keywords.values())]
    ours = [leaf for leaf in leaves if isinstance(leaf, PretendTensor)]
    named = [leaf for leaf in leaves if isinstance(leaf, torch.device)]
    is_here = named[0].type == NAME if named else bool(ours)
    if not ours and not is_here:
        return operation(*arguments, **keywords)
    packet = operation.overloadpacket
    if packet is aten._fused_sdp_choice:
        return 0  # attention by plain products, as a device without kernels of its own computes it
    check_devices(operation, leaves, is_here)
    note_waits(packet, arguments, keywords, is_here)
    made = operation(*map(to_raw, arguments), **{name: to_raw(value) for name, value in keywords.items()})
    if packet is aten.copy_ and not isinstance(leaves[0], PretendTensor):
        return made
    given = {id(leaf.raw): leaf for leaf in ours}  # in-place operations return the tensor that they were given

    def wrap(value):
        if isinstance(value, torch.Tensor):
            return given[id(value)] if id(value) in given else PretendTensor(value) if is_here else value
        return type(value)(map(wrap, value)) if isinstance(value, (list, tuple)) else value

    if packet is aten._pack_padded_sequence:
        return wrap(made[0]), made[1]  # lengths stay on the CPU
    return wrap(made)


def leaves_of(values):
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from leaves_of(value)
        else:
            yield value


def to_raw(value):
    if isinstance(value, PretendTensor):
        return value.raw
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == NAME else value
    return type(value)(map(to_raw, value)) if isinstance(value, (list, tuple)) else value


def check_devices(operation, leaves, is_here) -> None:
    """Refuse what a GPU refuses: tensors of two devices, and random numbers of the CPU's generator.

    A tensor without axes is a number, which element-wise operations take from the CPU.
    """
    name = operation.name()
    takes_numbers = torch.Tag.pointwise in operation.tags or "_foreach" in name or "fill" in name
    of_cpu = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not isinstance(leaf, PretendTensor)]
    strange = [leaf for leaf in of_cpu if leaf.dim() or not takes_numbers]
    is_mixed = strange and any(isinstance(leaf, PretendTensor) for leaf in leaves)
    if is_mixed and operation.overloadpacket not in ACROSS:
        raise RuntimeError(f"Expected all tensors to be on the same device, but found {DEVICE} and cpu ({operation})")
    if is_here and any(isinstance(leaf, torch.Generator) for leaf in leaves):
        raise RuntimeError(f"Expected a '{NAME}' device type for generator but found 'cpu' ({operation})")


def note_waits(packet, arguments, keywords, is_here) -> None:
    """Note what makes the program wait: a value that is read, a shape that values decide, a copy that is waited for."""
    if packet in READS:
        note(READS[packet])
    elif packet in DATA_DEPENDENT and not keywords.get("output_size"):
        note("nonzero")
    elif packet in INDEXING:
        if any(isinstance(each, PretendTensor) and each.dtype == torch.bool for each in arguments[1]):
            note("nonzero")
    elif packet in COPIES:
        # `_to_copy` has one tensor, `copy_` a target and a source
        *target, source = arguments[: 1 + (packet is aten.copy_)]
        comes = isinstance(target[0], PretendTensor) if target else is_here
        is_async = comes and (keywords.get("non_blocking") or True in arguments[2:])
        if comes != isinstance(source, PretendTensor) and not is_async:
            note("to device" if comes else "to cpu")


# --- Waits ---

waits: list[str] = []
"""What the program has waited for, each with the line that asked for it and the line of bertkit that led there."""


def note(what: str) -> None:
    """Note a wait for the device; those of the backward pass have no line."""
    frame, lines = sys._getframe(1), []
    while frame is not None:
        file = frame.f_code.co_filename
        if f"{os.sep}torch{os.sep}" not in file and file != __file__:
            lines.append(f"{file.rpartition('/site-packages/')[2].removeprefix(f'{ROOT}/')}:{frame.f_lineno}")
        frame = frame.f_back
    ours = next((line for line in lines if line.startswith("bertkit/")), "backward")
    waits.append(f"{what}: {' by '.join(dict.fromkeys([*lines[:1], ours]))}")


class Event:
    """A mark in the device's work, which is done as soon as it is asked for."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.seconds = 0.0

    def record(self, stream=None) -> None:
        self.seconds = time.perf_counter()

    def synchronize(self) -> None:
        note("synchronize")

    def elapsed_time(self, end: Event) -> float:
        return 1000 * (end.seconds - self.seconds)


class Backend(types.ModuleType):
    """What torch asks of a device: `torch.pretend`."""

    Event = Event

    def __init__(self) -> None:
        super().__init__(f"torch.{NAME}")
        self.is_on = False
        # torch asks C++ for these, where a device that is written in Python has nothing
        for function in (self.synchronize, self.empty_cache, self.reset_peak_memory_stats, self.max_memory_allocated):
            setattr(torch.accelerator, function.__name__, function)
        for name in ("memory_allocated", "memory_reserved", "max_memory_reserved"):
            setattr(torch.accelerator, name, self.max_memory_allocated)
        torch.accelerator.get_memory_info = lambda device=None: (2**30, 2**31)

    def is_available(self) -> bool:
        return self.is_on

    def device_count(self) -> int:
        return int(self.is_on)

    def is_initialized(self) -> bool:
        return self.is_on

    def _is_in_bad_fork(self) -> bool:
        return False

    def current_device(self) -> int:
        return 0

    def set_device(self, device) -> None:
        pass

    def get_device_name(self, device=None) -> str:
        return "a pretend accelerator"

    def get_device_properties(self, device=None) -> types.SimpleNamespace:
        return types.SimpleNamespace(total_memory=2**31)

    def get_device_capability(self, device=None) -> tuple[int, int]:
        return 0, 0

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def manual_seed_all(self, seed: int) -> None:
        pass  # torch.manual_seed has seeded the generator of the CPU, which draws

    def get_rng_state(self, device=None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state, device=None) -> None:
        torch.set_rng_state(state)

    def synchronize(self, device=None) -> None:
        note("synchronize")

    def empty_cache(self) -> None:
        pass

    def reset_peak_memory_stats(self, device=None) -> None:
        pass

    def max_memory_allocated(self, device=None) -> int:
        return 2**20


def register() -> None:
    """Let torch know the device."""
    global DEVICE
    _setup_privateuseone_for_python_backend(NAME, backend_module=Backend())
    DEVICE = torch.device(NAME, 0)
    # autocast changes nothing on it
    EVERY.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    LIBRARY.impl("_thnn_fused_lstm_cell", lstm_cell, "AutogradPrivateUse1")


def lstm_cell(from_input, from_hidden, cell, input_bias=None, hidden_bias=None):
    """Compute a step of an LSTM, which torch takes for one operation of a device: output, cell, and no workspace."""
    gates = from_input + from_hidden
    for bias in (input_bias, hidden_bias):
        gates = gates if bias is None else gates + bias
    enter, forget, new, leave = gates.chunk(4, dim=1)
    cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * cell.tanh(), cell, cell.new_empty(0)


def without_gradients(mode=True):
    """Stand in for `torch.inference_mode`, whose tensors have no version, which a wrapper wants."""
    return torch.no_grad(mode) if callable(mode) else torch.no_grad() if mode else contextlib.nullcontext()


def keep_ties(module, function, recurse=True, original=torch.nn.Module._apply):
    """Move a module, whose weights are new objects on the device, and let those that were tied be one again."""
    holders = [(each, name, weight) for each in module.modules() for name, weight in each._parameters.items()]
    original(module, function, recurse)
    moved = {}
    for each, name, weight in holders:
        each._parameters[name] = moved.setdefault(id(weight), each._parameters[name])
    return module


def turn_on() -> None:
    """Let there be an accelerator in this process from now on, which torch, Accelerate and bertkit find."""
    from bertkit.hardware import precision

    register()
    precision._MIN_GAIN = math.inf  # it has no bf16, whatever a trial measures
    torch.pretend.is_on = True
    os.environ["ACCELERATE_TORCH_DEVICE"] = str(DEVICE)
    torch.inference_mode = without_gradients
    torch.Tensor.pin_memory = lambda tensor, device=None: tensor
    torch.nn.Module._apply = keep_ties
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor makes a tensor on the CPU and moves it
    Mode().__enter__()
