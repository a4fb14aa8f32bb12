"""Device, precision and products: chosen by trial, kept for a resume, refused where they are not exact."""

from __future__ import annotations

import pytest
import torch

from bertkit.errors import UnavailableError
from bertkit.hardware import precision
from bertkit.hardware.device import Device

time_trial = precision._measure_gain  # which other tests compute once


@pytest.fixture(autouse=True)
def products_as_they_were():
    before = torch.backends.mkldnn.matmul.fp32_precision
    yield
    torch.backends.mkldnn.matmul.fp32_precision = before


def test_a_kernel_that_rounds_to_bf16_is_refused(monkeypatch):
    product = torch.Tensor.__matmul__

    def rounds(left, right):
        permitted = torch.backends.mkldnn.matmul.fp32_precision == "bf16" and left.dtype == torch.float32
        return product(left.bfloat16(), right.bfloat16()).float() if permitted else product(left, right)

    monkeypatch.setattr(torch.Tensor, "__matmul__", rounds)
    assert not precision.onednn_is_exact()
    machine = precision.detect_hardware("fp32")
    assert machine.matmul_backend == "torch"
    assert (
        precision.restore_hardware({"precision": "fp32", "matmul_backend": "onednn"}, "as before").matmul_backend
        == "torch"
    )


def test_the_trial_leaves_the_setting_as_it_was():
    before = torch.backends.mkldnn.matmul.fp32_precision
    precision.onednn_is_exact()
    precision.detect_hardware("auto", widths=(128, 512))
    assert torch.backends.mkldnn.matmul.fp32_precision == before


def test_narrow_models_have_one_backend_whatever_a_trial_says(monkeypatch):
    monkeypatch.setattr(precision, "onednn_is_exact", lambda: True)
    monkeypatch.setattr(precision, "_measure_gain", lambda *_: 2.2)
    assert precision.detect_hardware("fp32", widths=(64, 256)).matmul_backend == "torch"


@pytest.mark.parametrize(("gain", "products"), [(2.2, "onednn"), (1.0, "onednn"), (0.5, "torch")])
def test_onednn_multiplies_where_it_is_exact_and_not_slower(monkeypatch, gain, products):
    monkeypatch.setattr(precision, "onednn_is_exact", lambda: True)
    monkeypatch.setattr(precision, "_measure_gain", lambda device, dtype, widths: gain)
    machine = precision.detect_hardware("fp32")
    assert machine.matmul_backend == products
    assert f"{gain} times" in machine.reason
    precision.use_matmul_backend(machine)
    assert (torch.backends.mkldnn.matmul.fp32_precision == "bf16") == (products == "onednn")
    assert (
        precision.restore_hardware({"precision": "fp32", "matmul_backend": products}, "as before").matmul_backend
        == products
    )


@pytest.mark.parametrize(("gain", "chosen"), [(2.0, "bf16"), (1.1, "fp32")])
def test_auto_takes_bf16_only_where_it_is_faster(monkeypatch, gain, chosen):
    monkeypatch.setattr(precision, "_measure_gain", lambda device, dtype, widths: gain)
    assert precision.detect_hardware("auto").precision == chosen
    assert precision.detect_hardware("auto", avoid_bf16=True).precision == "fp32"
    assert precision.detect_hardware("bf16").precision == "bf16"


@pytest.mark.parametrize(("widths", "tried"), [((128, 512), (128, 512)), (None, (768, 3072))])
def test_products_of_the_sizes_of_the_model_are_tried(monkeypatch, widths, tried):
    asked = []
    monkeypatch.setattr(precision, "_measure_gain", lambda device, dtype, widths: asked.append(widths) or 2.0)
    monkeypatch.setattr(precision, "onednn_is_exact", lambda: True)
    for name in ("auto", "fp32"):
        precision.detect_hardware(name, widths=widths)
    assert asked == [tried, tried]


def test_the_trial_of_bf16_pays_for_the_casts_of_autocast(monkeypatch):
    linear, dtypes = torch.nn.functional.linear, []

    def noted(states, weights):
        assert {states.dtype, weights.dtype} == {torch.float32}
        product = linear(states, weights)
        dtypes.append(product.dtype)
        return product

    monkeypatch.setattr(torch.nn.functional, "linear", noted)
    assert time_trial(Device("cpu"), torch.bfloat16, (8, 16)) > 0
    assert dtypes[:4] == [torch.float32, torch.float32, torch.bfloat16, torch.bfloat16]


@pytest.mark.parametrize(("is_emulated", "tried"), [(True, {128}), (False, {128, 1024})])
def test_an_eighth_of_the_tokens_tells_that_a_dtype_is_emulated(monkeypatch, is_emulated, tried):
    linear, seen = torch.nn.functional.linear, set()

    def multiply(states, weights):
        in_bf16 = torch.is_autocast_enabled("cpu")
        seen.add(len(states))
        with torch.autocast("cpu", enabled=False):
            products = [linear(states, weights) for _ in range(20 if in_bf16 == is_emulated else 1)]
        return products[0]

    monkeypatch.setattr(torch.nn.functional, "linear", multiply)
    assert (time_trial(Device("cpu"), torch.bfloat16, (128, 512)) < 1) == is_emulated
    assert seen == tried


def test_a_gpu_is_tried_with_a_batch_that_it_is_busy_with(monkeypatch):
    """It would be idle with as few tokens as a CPU; between the two products, it casts nothing."""
    linear, seen = torch.nn.functional.linear, []
    monkeypatch.setattr(
        torch.nn.functional,
        "linear",
        lambda states, weights: seen.append((len(states), states.dtype)) or linear(states, weights),
    )
    monkeypatch.setattr(Device, "pins_memory", True)
    assert time_trial(Device("cpu"), torch.bfloat16, (8, 16)) > 0
    assert seen[2:4] == [(16384, torch.float32), (16384, torch.bfloat16)]


def test_a_gpu_multiplies_fp32_in_tf32(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", chosen.append)
    for device in ("cpu", "cuda"):
        precision.use_matmul_backend(precision.ComputeConfig(device, "fp32", 1, ""))
    assert chosen == ["high"]


def test_a_machine_is_announced_in_one_short_line_and_its_reasons_only_when_asked_for(caplog):
    machine = precision.ComputeConfig("cpu", "fp32", 2, "CPU, 2 threads (OMP_NUM_THREADS): fp32 (it has no bf16; more)")
    with caplog.at_level("DEBUG", logger="bertkit"):
        machine.announce("resuming runs/x; ")
    lines = [(record.levelname, record.message) for record in caplog.records]
    assert lines == [
        ("INFO", "resuming runs/x; CPU, 2 threads (OMP_NUM_THREADS): fp32"),
        ("DEBUG", machine.reason),
    ]


def test_records_without_a_choice_of_products_still_load():
    assert precision.restore_hardware({"device": "cpu", "precision": "bf16"}, "as before").matmul_backend == "torch"


def test_another_device_than_before_is_named_beside_the_precision_that_stays():
    machine = precision.restore_hardware({"device": "mps", "precision": "bf16", "threads": 3}, "as before")
    assert (machine.device, machine.precision) == ("cpu", "bf16")
    assert machine.reason.endswith(": bf16 (as before; recorded on mps)")


def test_a_device_without_bf16_computes_in_fp32_or_says_so(monkeypatch):
    monkeypatch.setattr(Device, "has_bf16", False)
    reason = precision.detect_hardware("auto", widths=(128, 512)).reason
    assert ": fp32 (it has no bf16" in reason  # and perhaps that oneDNN multiplies faster
    for ask in (
        lambda: precision.detect_hardware("bf16"),
        lambda: precision.restore_hardware({"device": "cpu", "precision": "bf16"}, "as before"),
    ):
        with pytest.raises(UnavailableError, match=r"has no bf16 - choose fp32 or --device cpu"):
            ask()
