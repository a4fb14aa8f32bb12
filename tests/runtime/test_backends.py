"""A backend that is not known or not installed is named before torch is imported."""

from __future__ import annotations

import pytest

from bertkit.errors import UnavailableError, UsageError
from bertkit.runtime import backends


def test_a_backend_that_is_not_known_has_a_suggestion():
    with pytest.raises(UsageError, match="--to onx is not known - did you mean onnx"):
        backends.check_backend("onx")


def test_a_missing_package_is_named_with_the_extra(monkeypatch):
    monkeypatch.setattr(backends, "find_spec", lambda name: None if name == "onnxscript" else name)
    with pytest.raises(UnavailableError, match=r"needs the package onnxscript - `pip install .*\[export\]'"):
        backends.check_backend("onnx")
    backends.check_backend("openvino")
