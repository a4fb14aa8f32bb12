"""Device, precision and products: chosen by trial, kept for a resume, refused where they are not exact."""

from __future__ import annotations

import pytest
import torch

from bertkit.hardware import precision


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
    precision.detect_hardware("auto")
    assert torch.backends.mkldnn.matmul.fp32_precision == before


@pytest.mark.parametrize(("gain", "products"), [(2.2, "onednn"), (1.0, "onednn"), (0.5, "torch")])
def test_onednn_multiplies_where_it_is_exact_and_not_slower(monkeypatch, gain, products):
    monkeypatch.setattr(precision, "onednn_is_exact", lambda: True)
    monkeypatch.setattr(precision, "_gain", lambda device, dtype: gain)
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
    monkeypatch.setattr(precision, "_gain", lambda device, dtype: gain)
    assert precision.detect_hardware("auto").precision == chosen
    assert precision.detect_hardware("auto", avoid_bf16=True).precision == "fp32"
    assert precision.detect_hardware("bf16").precision == "bf16"


def test_records_without_a_choice_of_products_still_load():
    assert precision.restore_hardware({"device": "cpu", "precision": "bf16"}, "as before").matmul_backend == "torch"
