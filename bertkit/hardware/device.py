"""The door to devices: which one computes, what it can do, how to wait for it. No other module names an accelerator.

torch names CUDA and ROCm ``cuda``, Apple's GPUs ``mps`` and Intel's ``xpu``; other packages add types of their own. XLA
is none of `torch.accelerator`: it computes where it is asked for, or where it is the only accelerator.
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
"""The variable that names the device where no command line does."""

_FLASH_CAPABILITY = (8, 0)  # of NVIDIA GPUs that torch has flash attention for
_PINS_MEMORY = ("cuda", "xpu")
_MPS_FALLBACK = "PYTORCH_ENABLE_MPS_FALLBACK"
_BF16_MACOS = (14, 0)


@dataclass(frozen=True)
class Device:
    """A device that torch computes on, and what it can do. In which dtype it is faster is a trial of `precision`."""

    type: str

    @property
    def is_cpu(self) -> bool:
        """Whether it is no accelerator."""
        return self.type == "cpu"

    @property
    def shapes_may_change(self) -> bool:
        """Whether tensors of a new shape cost nothing; XLA compiles a graph for each."""
        return self.type != "xla"

    @property
    def count(self) -> int:
        """How many devices share the rows of a batch inside one process, as those of XLA do."""
        return int(_xla_runtime().global_runtime_device_count()) if self.type == "xla" else 1

    @property
    def name(self) -> str:
        """What people call it."""
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
        """What else people should know of it; mostly nothing."""
        if self.type == "mps" and os.environ.get(_MPS_FALLBACK) == "1":
            return f"operations that MPS lacks run on the CPU, by {_MPS_FALLBACK}"
        return ""

    @property
    def memory(self) -> int | None:
        """Bytes of memory that it may run out of long before the system does; None where it has no such limit."""
        if self.type == "mps":
            return int(self._module.recommended_max_memory())
        get_properties = None if self.is_cpu else getattr(self._module, "get_device_properties", None)
        return int(get_properties().total_memory) if get_properties else None

    @property
    def has_bf16(self) -> bool:
        """Whether autocast to bf16 works, at whatever speed."""
        if self.is_cpu or self.type == "xla":
            return True
        if self.type == "mps":
            import torch

            return bool(torch.backends.mps.is_macos_or_newer(*_BF16_MACOS))
        is_supported = getattr(self._module, "is_bf16_supported", None)
        return is_supported is None or bool(is_supported())

    @property
    def has_fused_optimizer(self) -> bool:
        """Whether AdamW updates all weights in one kernel; by the list that torch's optimizers look at."""
        from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

        return self.type in _get_fused_kernels_supported_devices()

    @property
    def pins_memory(self) -> bool:
        """Whether copies from pinned memory need not be waited for."""
        return self.type in _PINS_MEMORY

    @property
    def has_varlen(self) -> bool:
        """Whether torch's flash attention reads packed texts."""
        if self.type != "cuda":
            return False
        import torch

        flash = torch.backends.cuda.is_flash_attention_available()
        return flash and torch.cuda.get_device_capability() >= _FLASH_CAPABILITY

    @property
    def has_graphs(self) -> bool:
        """Whether it launches all kernels of a captured step at once."""
        return self.type == "cuda"

    @property
    def has_events(self) -> bool:
        """Whether events time its work without waiting for it."""
        return not self.is_cpu and hasattr(self._module, "Event")

    @property
    def tracks_memory(self) -> bool:
        """Whether it knows the most memory that it has used."""
        return not self.is_cpu and hasattr(self._module, "max_memory_allocated")

    @property
    def _module(self) -> Any:
        """The module of torch for it, such as `torch.cuda`; XLA has none."""
        import torch

        return None if self.type == "xla" else torch.get_device_module(self.type)

    def synchronize(self) -> None:
        """Wait until it has done all that it was given."""
        if self.type == "xla":
            import torch_xla

            torch_xla.sync(wait=True)
        elif not self.is_cpu:
            self._module.synchronize()

    def inference_mode(self) -> AbstractContextManager[Any]:
        """Return what turns gradients off; XLA has no views of the tensors of torch's inference mode."""
        import torch

        return torch.inference_mode() if self.shapes_may_change else torch.no_grad()

    def end_graph(self) -> None:
        """Begin to compute what it was given; XLA compiles all of that as one graph, and others began long before."""
        if not self.shapes_may_change:
            import torch_xla

            torch_xla.sync()

    def whole_rows(self, rows: int) -> int:
        """Return the rows of a batch that all devices have equal shares of, at least as many."""
        return -(-rows // self.count) * self.count

    def share_rows(self, values: Any) -> None:
        """Let several devices hold equal shares of a tensor's rows, (rows, ...), and so of all that is made of it."""
        if self.count > 1 and values.dim() and len(values) % self.count == 0:
            import numpy as np
            from torch_xla.distributed import spmd

            mesh = spmd.Mesh(np.arange(self.count), (self.count,), ("rows",))
            spmd.mark_sharding(values, mesh, ("rows", *[None] * (values.dim() - 1)))

    def empty_cache(self) -> None:
        """Return memory that is free but kept."""
        if not self.is_cpu and hasattr(self._module, "empty_cache"):
            self._module.empty_cache()

    def restart_peak_memory(self) -> None:
        """Measure the peak of its memory anew; only where `tracks_memory`."""
        self.empty_cache()
        self._module.reset_peak_memory_stats()

    def peak_memory(self) -> int:
        """Return the most bytes of its memory that were used since the restart; only where `tracks_memory`."""
        return int(self._module.max_memory_allocated())

    def mark(self) -> Any:
        """Mark a moment of its work, for `seconds_between`; without events, wait for it."""
        if self.has_events:
            event = self._module.Event(enable_timing=True)
            event.record()
            return event
        self.synchronize()
        return time.perf_counter()

    def seconds_between(self, marks: Sequence[Any]) -> list[float]:
        """Return the seconds from each mark to the next."""
        if not self.has_events:
            return [after - before for before, after in pairwise(marks)]
        # the device runs behind the program, and all times are known only once it has reached the last mark
        marks[-1].synchronize()
        return [before.elapsed_time(after) / 1000 for before, after in pairwise(marks)]


# --- Which one computes ---


@dataclass
class _Process:
    """What the command line of this process asks for."""

    option: str | None = None


_PROCESS = _Process()


def prepare(option: str | None) -> None:
    """Note the device that a command line asks for, and keep transformers and Accelerate, which load later, off XLA.

    Where torch_xla is installed, both take it whatever they are told, unless a variable forbids it before their import.

    Raises:
        UsageError: the option names no type of device.
        UnavailableError: torch_xla is installed, and there is no such device.
    """
    _PROCESS.option = option
    if not asked_device().isidentifier():
        remedy = "name its type alone, such as cuda; CUDA_VISIBLE_DEVICES chooses one of several GPUs"
        raise UsageError(f"--device {asked_device()} is no type of device", remedy)
    if importlib.util.find_spec("torch_xla"):
        os.environ["USE_TORCH_XLA"] = "1" if find_device().type == "xla" else "0"


def asked_device() -> str:
    """Return the type of device that the user asks for, by the command line or a variable; ``auto`` for the best."""
    # `accelerate launch --cpu`
    uses_cpu = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
    return _PROCESS.option or os.environ.get(DEVICE) or ("cpu" if uses_cpu else "auto")


def device_of(model: nn.Module) -> Device:
    """Return the device that holds a model's weights."""
    return Device(next(model.parameters()).device.type)


def find_device() -> Device:
    """Return the device to compute on: the one that is asked for, or an accelerator where there is one.

    Raises:
        UnavailableError: what is asked for is not here.
    """
    asked = asked_device()
    if asked == "cpu":
        return Device("cpu")
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    types = ["cpu"] if accelerator is None else [accelerator.type, "cpu"]
    if asked == "auto":
        return Device("xla" if accelerator is None and _xla_is_accelerator() else types[0])
    if asked in types or (asked == "xla" and importlib.util.find_spec("torch_xla") and _xla_runtime()):
        return Device(asked)
    needs = "torch_xla" if asked == "xla" else f"a torch that is built for it, which {torch.__version__} may not be"
    raise UnavailableError(f"--device {asked}: none is found, but {' and '.join(types)}", f"it takes {needs}")


@contextmanager
def on_cpu() -> Iterator[None]:
    """Compute on the CPU meanwhile, whatever device is asked for."""
    asked, _PROCESS.option = _PROCESS.option, "cpu"
    try:
        yield
    finally:
        _PROCESS.option = asked


def check_asked_device(**reruns: object) -> None:
    """Check that a device is here which the user asks for by name, before anything is read or moved for it.

    Args:
        reruns: setting of a recipe, with ``__`` for a dot -> its value, with which layers run twice in a step if any.

    Raises:
        UnavailableError: it is not, or there are several processes on XLA, whose layers torch cannot run twice.
    """
    used = next((name.replace("__", ".") for name, value in reruns.items() if value), None)
    if asked_device() != "cpu" and (used or asked_device() != "auto"):
        device = find_device()
        refuse_processes(device)
        if used and device.type == "xla":
            raise UnavailableError(f"{used}: torch runs no layer twice in a step on XLA", "leave it out")


def is_launched() -> bool:
    """Return whether this process is one of several that a launcher has started."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def check_launch(*, fsdp: bool) -> None:
    """Check that this training can run as the launcher has set it up, before a row is read.

    Raises:
        UsageError: If the launcher starts DeepSpeed or Megatron-LM, or splits weights unlike the recipe.
    """
    for name in ("DeepSpeed", "Megatron_LM"):
        if _is_on(f"ACCELERATE_USE_{name.upper()}"):
            remedy = "launch without it, and split large encoders by --set training.fsdp=true"
            raise UsageError(f"bertkit does not train with {name.replace('_', '-')}", remedy)
    if _is_on("ACCELERATE_USE_FSDP") and not fsdp:
        raise UsageError("the launcher asks for FSDP, and the recipe does not", "--set training.fsdp=true")
    # weights are split before Accelerate has them
    os.environ.pop("ACCELERATE_USE_FSDP", None)
    if fsdp and not is_launched():
        raise UsageError("training.fsdp with one process", "start several, e.g. by torchrun, or leave it out")


def _is_on(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true", "yes")


def refuse_processes(device: Device) -> None:
    """Refuse to train in several processes on XLA, which are none of torch.distributed; one sees all devices.

    Raises:
        UnavailableError: there are several.
    """
    if device.shapes_may_change:
        return
    processes = max(int(os.environ.get("WORLD_SIZE", "1")), int(_xla_runtime().process_count()))
    if processes > 1:
        what = f"bertkit trains on XLA in one process, not in {processes}"
        raise UnavailableError(what, "start one alone, which shares batches among all devices of its machine")


def use_local_device() -> None:
    """Let each process of a launch compute on an accelerator of its own."""
    import torch

    if find_device().type not in ("cpu", "xla"):
        torch.accelerator.set_device_index(int(os.environ.get("LOCAL_RANK", "0")))


def lead_accelerate(device: str) -> None:
    """Let Accelerate take this device, where it would choose another: it goes through a list of those that it knows.

    Raises:
        UnavailableError: there are several processes on XLA.
    """
    refuse_processes(Device(device))
    from accelerate import PartialState

    if device == "cpu":  # which the variable would overrule
        os.environ.pop("ACCELERATE_TORCH_DEVICE", None)
    elif device != "xla" and PartialState.default_device.fget(None).type != device:
        os.environ.setdefault("ACCELERATE_TORCH_DEVICE", f"{device}:{os.environ.get('LOCAL_RANK', '0')}")


def leave_launch() -> None:
    """Leave the launch that this process is one of, if it is; NCCL warns of resources that leak where none does."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def check_accelerate(taken: str, device: str) -> None:
    """Check that Accelerate has taken the device that was chosen.

    Raises:
        UnavailableError: it has taken another one, as where torch_xla is installed and this is not the command line.
    """
    if taken != device:
        variable = "USE_TORCH_XLA=0" if taken == "xla" else f"{DEVICE}={taken}"
        what = f"Accelerate computes on {taken}, and bertkit on {device}"
        raise UnavailableError(what, f"set {variable} before Python starts, or choose --device {taken}")


def count_graphs() -> tuple[int, float]:
    """Return how many graphs this process has compiled, one per shape of what is computed, and the seconds it took."""
    if "torch_xla" not in sys.modules:
        return 0, 0.0
    from torch_xla.debug import metrics

    times = metrics.metric_data("CompileTime")
    return int(metrics.counter_value("UncachedCompile") or 0), (times[1] / 1e9 if times else 0.0)


def missing_operation(error: BaseException) -> UnavailableError | None:
    """Return the error of an operation that Apple's GPUs lack; None for any other."""
    if not isinstance(error, NotImplementedError) or "MPS device" not in str(error):
        return None
    what = " ".join(str(error).split(". ")[0].split())
    return UnavailableError(what, f"set {_MPS_FALLBACK}=1 to compute it on the CPU, or choose --device cpu")


def _xla_is_accelerator() -> bool:
    """Tell whether torch_xla computes on anything but the CPU, which torch alone does better."""
    if not importlib.util.find_spec("torch_xla") or os.environ.get("PJRT_DEVICE", "").upper() == "CPU":
        return False
    return str(_xla_runtime().device_type()) != "CPU"


def _xla_runtime() -> Any:
    """Return torch_xla's runtime, where several devices are one to a program, which shares tensors out among them."""
    from torch_xla import runtime

    if not runtime.is_spmd() and runtime.global_runtime_device_count() > 1:
        runtime.use_spmd()  # before the first tensor
    return runtime
