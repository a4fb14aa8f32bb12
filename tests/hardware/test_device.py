"""Devices: which one is found, what it can do, and what is said where there is none. Real ones are faked."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from bertkit.errors import UnavailableError, UsageError
from bertkit.hardware import device as door
from bertkit.hardware.device import Device, find_device, prepare


@pytest.fixture(autouse=True)
def nobody_asks(monkeypatch):
    monkeypatch.setattr(door, "_PROCESS", door._Process())
    for name in (door.DEVICE, "ACCELERATE_USE_CPU", "ACCELERATE_TORCH_DEVICE", "PYTORCH_ENABLE_MPS_FALLBACK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def accelerator(monkeypatch):
    """Let torch have an accelerator of a type, with a module of some functions."""

    def attach(type: str, **functions):
        module = SimpleNamespace(**functions)
        found = torch.device(type)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: found)
        monkeypatch.setattr(torch, "get_device_module", lambda type: module)
        return module

    return attach


@pytest.fixture
def torch_xla(monkeypatch):
    """Let torch_xla be installed, for a type of hardware."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: name == "torch_xla" or find_spec(name))
    monkeypatch.setenv("USE_TORCH_XLA", "0")
    monkeypatch.delenv("PJRT_DEVICE", raising=False)

    def install(hardware: str):
        runtime = SimpleNamespace(
            device_type=lambda: hardware,
            global_runtime_device_count=lambda: 1,
            is_spmd=lambda: runtime.shares,
            process_count=lambda: 1,
            shares=False,
            use_spmd=lambda: vars(runtime).update(shares=True),
        )
        waited: list[bool] = []
        package = SimpleNamespace(runtime=runtime, sync=lambda wait: waited.append(wait), waited=waited)
        monkeypatch.setitem(sys.modules, "torch_xla", package)
        monkeypatch.setitem(sys.modules, "torch_xla.runtime", runtime)
        return package

    return install


# --- Which one ---


def test_what_is_asked_for_waits_while_the_cpu_computes(monkeypatch):
    monkeypatch.setenv(door.DEVICE, "xpu")
    with door.on_cpu():
        assert door.requested_device() == "cpu" and find_device() == Device("cpu")
    assert door.requested_device() == "xpu"


def test_without_an_accelerator_the_cpu_computes():
    assert find_device() == Device("cpu")


@pytest.mark.parametrize("type", ["cuda", "mps", "xpu"])
def test_an_accelerator_computes_unless_the_cpu_is_asked_for(accelerator, monkeypatch, type):
    accelerator(type)
    assert find_device() == Device(type)
    for asked in ("cpu", type):
        prepare(asked)
        assert find_device() == Device(asked)
    prepare(None)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")  # as `accelerate launch --cpu` does
    assert find_device() == Device("cpu")
    monkeypatch.setenv(door.DEVICE, type)
    assert find_device() == Device(type)


@pytest.mark.parametrize("asked", ["cuda", "xla", "gpu"])
def test_a_device_that_is_not_here_is_refused(monkeypatch, asked):
    monkeypatch.setitem(sys.modules, "torch_xla", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None)
    prepare(asked)
    with pytest.raises(UnavailableError, match=rf"--device {asked}: not available, only cpu - install"):
        find_device()


def test_a_number_is_no_type():
    with pytest.raises(UsageError, match=r"--device cuda:1 is not a type of device - .* CUDA_VISIBLE_DEVICES"):
        prepare("cuda:1")


@pytest.mark.parametrize(
    ("hardware", "asked", "type"),
    [("TPU", None, "xla"), ("TPU", "cpu", "cpu"), ("CPU", None, "cpu"), ("CPU", "xla", "xla")],
)
def test_xla_computes_where_it_is_asked_for_or_is_the_only_accelerator(torch_xla, hardware, asked, type):
    package = torch_xla(hardware)
    prepare(asked)
    assert find_device() == Device(type)
    assert os.environ["USE_TORCH_XLA"] == ("1" if type == "xla" else "0")
    find_device().synchronize()
    assert package.waited == ([True] if type == "xla" else [])


def test_xla_gives_way_to_another_accelerator(torch_xla, accelerator):
    torch_xla("TPU")
    accelerator("cuda")
    prepare(None)
    assert find_device() == Device("cuda")
    assert os.environ["USE_TORCH_XLA"] == "0"


@pytest.mark.parametrize(
    ("device", "before", "after"),
    [
        ("cpu", "xpu:0", None),
        ("xpu", None, "xpu:1"),
        ("xpu", "xpu:3", "xpu:3"),
        ("mps", None, None),
        ("xla", None, None),
    ],
)
def test_accelerate_is_told_where_it_would_take_another(monkeypatch, torch_xla, device, before, after):
    torch_xla("TPU")
    from accelerate import PartialState

    monkeypatch.setattr(PartialState, "default_device", property(lambda self: torch.device("mps")))
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", before or "")
    if before is None:
        monkeypatch.delenv("ACCELERATE_TORCH_DEVICE")
    door.set_accelerate_device(device)
    assert os.environ.get("ACCELERATE_TORCH_DEVICE") == after


# --- What it can do ---


def test_names_are_those_that_people_know(accelerator, torch_xla, monkeypatch):
    accelerator("cuda", get_device_name=lambda: "NVIDIA H100")
    torch_xla("TPU")
    monkeypatch.setattr(door.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="Apple M2\n"))
    names = [Device(type).name for type in ("cpu", "cuda", "mps", "xla")]
    assert names == ["CPU", "NVIDIA H100", "Apple M2 (MPS)", "TPU (XLA)"]


def test_capabilities_are_those_of_the_type(monkeypatch):
    monkeypatch.setattr("torch.backends.cuda.is_flash_attention_available", lambda: False)  # as without a driver
    types = ("cpu", "cuda", "xpu", "mps", "xla")
    assert [type for type in types if Device(type).pins_memory] == ["cuda", "xpu"]
    assert [type for type in types if Device(type).has_fused_optimizer] == ["cpu", "cuda", "xpu", "mps"]
    assert [type for type in types if not Device(type).shapes_may_change] == ["xla"]
    assert [type for type in types if Device(type).has_varlen] == []


def test_memory_is_what_the_device_may_use(accelerator):
    assert Device("cpu").memory is None and Device("xla").memory is None
    accelerator("cuda", get_device_properties=lambda: SimpleNamespace(total_memory=80))
    assert Device("cuda").memory == 80
    accelerator("mps", recommended_max_memory=lambda: 16)
    assert Device("mps").memory == 16
    assert not Device("mps").tracks_memory


@pytest.mark.parametrize("is_new", [True, False])
def test_bf16_is_what_the_device_says(accelerator, monkeypatch, is_new):
    assert Device("cpu").has_bf16
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda *version: is_new)
    assert Device("mps").has_bf16 == is_new
    accelerator("xpu", is_bf16_supported=lambda: is_new)
    assert Device("xpu").has_bf16 == is_new


def test_events_time_a_device_that_has_them(accelerator):
    clock = iter([1.0, 3.5, 4.0])
    waited = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = next(clock)

        def synchronize(self):
            waited.append(self.at)

        def elapsed_time(self, other):
            return 1000 * (other.at - self.at)

    accelerator("cuda", Event=Event)
    marks = [Device("cuda").mark() for _ in range(3)]
    assert Device("cuda").seconds_between(marks) == [2.5, 0.5]
    assert waited == [4.0]


def test_a_device_without_events_is_waited_for(accelerator):
    waited = []
    accelerator("mps", synchronize=lambda: waited.append(True))
    marks = [Device("mps").mark() for _ in range(2)]
    assert len(waited) == 2 and Device("mps").seconds_between(marks)[0] >= 0


def test_the_cpu_is_timed_by_the_clock():
    first = Device("cpu").mark()
    time.sleep(0.01)
    assert 0.01 <= Device("cpu").seconds_between([first, Device("cpu").mark()])[0] < 10


def test_several_devices_of_xla_share_the_rows_of_a_batch(torch_xla, monkeypatch):
    runtime, marked = torch_xla("TPU").runtime, []
    assert (Device("xla").count, Device("xla").name, Device("xla").padded_rows(6)) == (1, "TPU (XLA)", 6)
    assert not runtime.shares and Device("cuda").count == 1
    runtime.global_runtime_device_count = lambda: 4
    assert (Device("xla").count, Device("xla").name, Device("xla").padded_rows(6)) == (4, "4 x TPU (XLA)", 8)
    assert runtime.shares
    spmd = SimpleNamespace(Mesh=lambda *_: "mesh", mark_sharding=lambda *arguments: marked.append(arguments[1:]))
    monkeypatch.setitem(sys.modules, "torch_xla.distributed", SimpleNamespace(spmd=spmd))
    for shape in ((8, 3, 2), (6, 3), ()):
        Device("xla").share_rows(torch.zeros(shape))
        Device("cpu").share_rows(torch.zeros(shape))
    assert marked == [("mesh", ("rows", None, None))]


def test_several_processes_on_xla_are_refused(torch_xla, monkeypatch):
    runtime = torch_xla("TPU").runtime
    monkeypatch.setenv(door.DEVICE, "xla")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    door.check_requested_device()
    runtime.process_count = lambda: 4
    with pytest.raises(UnavailableError, match="in one process, not in 4"):
        door.check_requested_device()
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(UnavailableError, match="in one process, not in 8"):
        door.check_requested_device()
    monkeypatch.setenv(door.DEVICE, "cpu")
    door.check_requested_device()


def test_what_runs_layers_twice_is_refused_on_xla(torch_xla, monkeypatch):
    torch_xla("TPU")
    for device in ("xla", "auto"):
        monkeypatch.setenv(door.DEVICE, device)
        door.check_requested_device(training__gradient_checkpointing=False, options__mini_batch=None)
        with pytest.raises(
            UnavailableError, match=r"^options\.mini_batch: torch cannot compute layers twice .* on XLA - leave"
        ):
            door.check_requested_device(training__gradient_checkpointing=False, options__mini_batch=32)
    monkeypatch.setenv(door.DEVICE, "cpu")
    door.check_requested_device(options__mini_batch=32)


def test_graphs_are_counted_where_a_device_needs_them(torch_xla, monkeypatch):
    assert door.count_graphs() == (0, 0.0)
    torch_xla("TPU")
    metrics = SimpleNamespace(metric_data=lambda name: (3, 2.5e9, []), counter_value=lambda name: 3)
    monkeypatch.setitem(sys.modules, "torch_xla.debug", SimpleNamespace(metrics=metrics))
    assert door.count_graphs() == (3, 2.5)


def test_what_mps_lacks_is_told(monkeypatch):
    assert Device("mps").note == ""
    monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", "1")
    assert Device("mps").note == "operations that MPS lacks run on the CPU (PYTORCH_ENABLE_MPS_FALLBACK=1)"
    text = "The operator 'aten::x' is not currently implemented for the MPS device. If you want this op, ..."
    error = door.missing_operation_error(NotImplementedError(text))
    assert str(error).startswith("The operator 'aten::x' is not currently implemented for the MPS device - set PYTORCH")
    assert door.missing_operation_error(NotImplementedError("another")) is None
