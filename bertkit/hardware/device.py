"""Choice of the device, its features, and timing. No other module names a type of accelerator.

torch names CUDA and ROCm ``cuda``, Apple's GPUs ``mps`` and Intel's ``xpu``; other packages add more types. XLA is not
a `torch.accelerator`: it is used if the user requests it, or if it is the only accelerator.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bertkit.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from torch import nn

DEVICE = "BERTKIT_DEVICE"
"""Environment variable that names the device if the command line does not."""

_MIN_FLASH_CAPABILITY = (8, 0)  # NVIDIA GPUs with torch's flash attention
_PINNING_TYPES = ("cuda", "xpu")
_MPS_FALLBACK = "PYTORCH_ENABLE_MPS_FALLBACK"
_MIN_BF16_MACOS = (14, 0)


@dataclass(frozen=True)
class Device:
    """Device that torch computes on, and its features; the module `precision` finds its fastest dtype by trial."""

    type: str

    @property
    def is_cpu(self) -> bool:
        """Whether the device is the CPU."""
        return self.type == "cpu"

    @property
    def shapes_may_change(self) -> bool:
        """Whether tensors of new shapes cost nothing; XLA compiles a graph for each shape."""
        return self.type != "xla"

    @property
    def count(self) -> int:
        """Number of devices among which one process divides the rows of a batch; above 1 only on XLA."""
        return int(_xla_runtime().global_runtime_device_count()) if self.type == "xla" else 1

    @property
    def name(self) -> str:
        """Product name of the device."""
        if self.is_cpu:
            return "CPU"
        if self.type == "xla":
            count = f"{self.count} x " if self.count > 1 else ""
            return f"{count}{_xla_runtime().device_type()} (XLA)"
        if self.type == "mps":
            brand = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True)
            return f"{brand.stdout.strip() or 'Apple'} (MPS)"
        get_name = getattr(self._module, "get_device_name", None)
        return str(get_name()) if get_name else self.type

    @property
    def note(self) -> str:
        """Remark for the log, usually empty."""
        if self.type == "mps" and os.environ.get(_MPS_FALLBACK) == "1":
            return f"operations that MPS lacks run on the CPU ({_MPS_FALLBACK}=1)"
        return ""

    @property
    def memory(self) -> int | None:
        """Bytes of device memory, or None if the device can use all memory of the system."""
        if self.type == "mps":
            return int(self._module.recommended_max_memory())
        get_properties = None if self.is_cpu else getattr(self._module, "get_device_properties", None)
        return int(get_properties().total_memory) if get_properties else None

    @property
    def has_bf16(self) -> bool:
        """Whether autocast to bf16 works, even if it is slow."""
        if self.is_cpu or self.type == "xla":
            return True
        if self.type == "mps":
            import torch

            return bool(torch.backends.mps.is_macos_or_newer(*_MIN_BF16_MACOS))
        is_supported = getattr(self._module, "is_bf16_supported", None)
        return is_supported is None or bool(is_supported())

    @property
    def has_fused_optimizer(self) -> bool:
        """Whether torch's AdamW can update all weights in one kernel."""
        from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

        return self.type in _get_fused_kernels_supported_devices()

    @property
    def pins_memory(self) -> bool:
        """Whether copies from pinned memory are asynchronous."""
        return self.type in _PINNING_TYPES

    @property
    def has_varlen(self) -> bool:
        """Whether torch's flash attention can compute texts of different lengths without padding."""
        if self.type != "cuda":
            return False
        import torch

        flash = torch.backends.cuda.is_flash_attention_available()
        return flash and torch.cuda.get_device_capability() >= _MIN_FLASH_CAPABILITY

    @property
    def has_graphs(self) -> bool:
        """Whether the device can launch all kernels of a captured step at once."""
        return self.type == "cuda"

    @property
    def has_events(self) -> bool:
        """Whether events can time the device's work without waiting for it."""
        return not self.is_cpu and hasattr(self._module, "Event")

    @property
    def tracks_memory(self) -> bool:
        """Whether torch records the peak memory of the device."""
        return not self.is_cpu and hasattr(self._module, "max_memory_allocated")

    @property
    def _module(self) -> Any:
        """Torch's module for the type, such as `torch.cuda`, or None for XLA."""
        import torch

        return None if self.type == "xla" else torch.get_device_module(self.type)

    def synchronize(self) -> None:
        """Wait until the device has finished all work."""
        if self.type == "xla":
            import torch_xla

            torch_xla.sync(wait=True)
        elif not self.is_cpu:
            self._module.synchronize()

    def inference_mode(self) -> AbstractContextManager[Any]:
        """Return a context without gradients; on XLA it is `no_grad`, because inference mode forbids views there."""
        import torch

        return torch.inference_mode() if self.shapes_may_change else torch.no_grad()

    def end_graph(self) -> None:
        """Compile and start the operations since the last call as one graph on XLA; do nothing on other devices."""
        if not self.shapes_may_change:
            import torch_xla

            torch_xla.sync()

    def padded_rows(self, rows: int) -> int:
        """Return the number of rows, rounded up to a multiple of the number of devices."""
        return -(-rows // self.count) * self.count

    def share_rows(self, values: Any) -> None:
        """Distribute the rows of a tensor, and of all results computed from it, evenly among the devices."""
        if self.count > 1 and values.dim() and len(values) % self.count == 0:
            import numpy as np
            from torch_xla.distributed import spmd

            mesh = spmd.Mesh(np.arange(self.count), (self.count,), ("rows",))
            spmd.mark_sharding(values, mesh, ("rows", *[None] * (values.dim() - 1)))

    def empty_cache(self) -> None:
        """Return unused memory in torch's cache to the device."""
        if not self.is_cpu and hasattr(self._module, "empty_cache"):
            self._module.empty_cache()

    def restart_peak_memory(self) -> None:
        """Reset the peak memory; requires `tracks_memory`."""
        self.empty_cache()
        self._module.reset_peak_memory_stats()

    def peak_memory(self) -> int:
        """Return the peak memory in bytes since the last reset; requires `tracks_memory`."""
        return int(self._module.max_memory_allocated())

    def mark(self) -> Any:
        """Record a point of time for `seconds_between`; without events, wait for the device."""
        if self.has_events:
            event = self._module.Event(enable_timing=True)
            event.record()
            return event
        self.synchronize()
        return time.perf_counter()

    def seconds_between(self, marks: Sequence[Any]) -> list[float]:
        """Return the seconds from each mark to the next."""
        if not self.has_events:
            return [end - start for start, end in pairwise(marks)]
        # The device runs behind the program. All times are known when it has reached the last mark.
        marks[-1].synchronize()
        return [start.elapsed_time(end) / 1000 for start, end in pairwise(marks)]


# --- Choice of the device ---


@dataclass
class _Process:
    """State of this process."""

    option: str | None = None
    """The value of `--device`."""


_PROCESS = _Process()


def prepare(option: str | None) -> None:
    """Store the value of `--device`, and prevent transformers and Accelerate from using XLA on another device.

    If torch_xla is installed, both always use it, unless an environment variable forbids it before their import.

    Raises:
        UsageError: If the option is not a type of device.
        UnavailableError: If torch_xla is installed, and the device is not available.
    """
    _PROCESS.option = option
    if not requested_device().isidentifier():
        remedy = "name only its type, such as cuda; CUDA_VISIBLE_DEVICES chooses one of several GPUs"
        raise UsageError(f"--device {requested_device()} is not a type of device", remedy)
    if importlib.util.find_spec("torch_xla"):
        os.environ["USE_TORCH_XLA"] = "1" if find_device().type == "xla" else "0"


def requested_device() -> str:
    """Return the type of device that `--device` or an environment variable requests, or ``auto``."""
    # `accelerate launch --cpu` sets ACCELERATE_USE_CPU.
    return _PROCESS.option or os.environ.get(DEVICE) or ("cpu" if _is_on("ACCELERATE_USE_CPU") else "auto")


def get_device(model: nn.Module) -> Device:
    """Return the device that holds a model's weights."""
    return Device(next(model.parameters()).device.type)


def find_device() -> Device:
    """Return the device to compute on: the requested device, or an accelerator if available.

    Raises:
        UnavailableError: If the requested device is not available.
    """
    requested = requested_device()
    if requested == "cpu":
        return Device("cpu")
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    types = ["cpu"] if accelerator is None else [accelerator.type, "cpu"]
    if requested == "auto":
        return Device("xla" if accelerator is None and _xla_is_accelerator() else types[0])
    if requested in types or (requested == "xla" and importlib.util.find_spec("torch_xla") and _xla_runtime()):
        return Device(requested)
    package = "torch_xla" if requested == "xla" else f"a build of torch for it; {torch.__version__} may lack it"
    raise UnavailableError(f"--device {requested}: not available, only {' and '.join(types)}", f"install {package}")


@contextmanager
def on_cpu() -> Iterator[None]:
    """Make `find_device` return the CPU inside the `with` block, regardless of the requested device."""
    option, _PROCESS.option = _PROCESS.option, "cpu"
    try:
        yield
    finally:
        _PROCESS.option = option


def check_requested_device(**recomputing_settings: object) -> None:
    """Check that the requested device is available, before rows are read or files are moved.

    Args:
        **recomputing_settings: Values of recipe keys that compute layers twice per step; ``__`` stands for a dot.

    Raises:
        UnavailableError: If the device is not available, or on XLA several processes train or layers run twice.
    """
    setting = next((name.replace("__", ".") for name, value in recomputing_settings.items() if value), None)
    if requested_device() != "cpu" and (setting or requested_device() != "auto"):
        device = find_device()
        check_single_process(device)
        if setting and device.type == "xla":
            raise UnavailableError(f"{setting}: torch cannot compute layers twice per step on XLA", "leave it out")


def is_launched() -> bool:
    """Return whether a launcher has started several processes, including this one."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def check_launch(*, fsdp: bool) -> None:
    """Check that the launcher's settings fit the training, before rows are read.

    Raises:
        UsageError: If the launcher requires DeepSpeed or Megatron-LM, or only one of launcher and recipe requires FSDP.
    """
    for name in ("DeepSpeed", "Megatron_LM"):
        if _is_on(f"ACCELERATE_USE_{name.upper()}"):
            remedy = "launch without it, and split large encoders by --set training.fsdp=true"
            raise UsageError(f"bertkit does not train with {name.replace('_', '-')}", remedy)
    if _is_on("ACCELERATE_USE_FSDP") and not fsdp:
        raise UsageError("the launcher requires FSDP, but the recipe does not", "add --set training.fsdp=true")
    # bertkit splits the weights before Accelerate gets them.
    os.environ.pop("ACCELERATE_USE_FSDP", None)
    if fsdp and not is_launched():
        raise UsageError("training.fsdp with one process", "start several, e.g. by torchrun, or leave it out")


def _is_on(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true", "yes")


def check_single_process(device: Device) -> None:
    """Check that only one process trains on XLA, because it uses all XLA devices of its machine.

    Raises:
        UnavailableError: If several processes train on XLA.
    """
    if device.shapes_may_change:
        return
    processes = max(int(os.environ.get("WORLD_SIZE", "1")), int(_xla_runtime().process_count()))
    if processes > 1:
        message = f"bertkit trains on XLA in one process, not in {processes}"
        raise UnavailableError(message, "start one process; it shares batches among all devices of its machine")


def use_local_device() -> None:
    """Select the accelerator of this process by its rank on the machine."""
    import torch

    if find_device().type not in ("cpu", "xla"):
        torch.accelerator.set_device_index(int(os.environ.get("LOCAL_RANK", "0")))


def set_accelerate_device(device: str) -> None:
    """Make Accelerate use this device, even if its own choice would be another one.

    Raises:
        UnavailableError: If there are several processes on XLA.
    """
    check_single_process(Device(device))
    from accelerate import PartialState

    # The environment variable would override the choice of the CPU.
    if device == "cpu":
        os.environ.pop("ACCELERATE_TORCH_DEVICE", None)
    elif device != "xla" and PartialState.default_device.fget(None).type != device:
        os.environ.setdefault("ACCELERATE_TORCH_DEVICE", f"{device}:{os.environ.get('LOCAL_RANK', '0')}")


def leave_process_group() -> None:
    """Leave the process group, if this process is in one; otherwise, NCCL warns of leaked resources."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def check_accelerate(accelerate_device: str, device: str) -> None:
    """Check that Accelerate uses bertkit's device.

    Raises:
        UnavailableError: If it uses another one, e.g. because a program imports bertkit and torch_xla is installed.
    """
    if accelerate_device != device:
        variable = "USE_TORCH_XLA=0" if accelerate_device == "xla" else f"{DEVICE}={accelerate_device}"
        message = f"Accelerate computes on {accelerate_device}, but bertkit on {device}"
        raise UnavailableError(message, f"set {variable} before Python starts, or choose --device {accelerate_device}")


def count_graphs() -> tuple[int, float]:
    """Return the number of XLA graphs that this process has compiled, and the seconds of compilation."""
    if "torch_xla" not in sys.modules:
        return 0, 0.0
    from torch_xla.debug import metrics

    times = metrics.metric_data("CompileTime")
    return int(metrics.counter_value("UncachedCompile") or 0), (times[1] / 1e9 if times else 0.0)


def missing_operation_error(error: BaseException) -> UnavailableError | None:
    """Return the error for an operation that Apple's GPUs lack, or None for any other error."""
    if not isinstance(error, NotImplementedError) or "MPS device" not in str(error):
        return None
    message = " ".join(str(error).split(". ")[0].split())
    return UnavailableError(message, f"set {_MPS_FALLBACK}=1 to compute it on the CPU, or choose --device cpu")


def _xla_is_accelerator() -> bool:
    """Return whether torch_xla has an accelerator; on a CPU, torch is faster without XLA."""
    if not importlib.util.find_spec("torch_xla") or os.environ.get("PJRT_DEVICE", "").upper() == "CPU":
        return False
    return str(_xla_runtime().device_type()) != "CPU"


def _xla_runtime() -> Any:
    """Return torch_xla's runtime; several devices are in SPMD mode, so a program sees them as one device."""
    from torch_xla import runtime

    if not runtime.is_spmd() and runtime.global_runtime_device_count() > 1:
        runtime.use_spmd()  # before the first tensor
    return runtime
