"""What graphs are made for, and which packages that takes."""

from __future__ import annotations

from importlib.util import find_spec

from bertkit.errors import UnavailableError, UsageError, closest, pip_install

_FILES = {"onnx": "onnx/model{}.onnx", "openvino": "openvino/openvino_model.xml"}
_PACKAGES = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("openvino",)}


def check_backend(backend: str, *, quantizes: bool = False) -> None:
    """Check that a backend is known and installed, without importing it; with `quantizes`, also what makes int8.

    Raises:
        UsageError: it is not known.
        UnavailableError: a package is missing.
    """
    if backend not in _FILES:
        raise UsageError(f"--to {backend} is not known", closest(backend, _FILES))
    for name in (*_PACKAGES[backend], *(["nncf"] if quantizes and backend == "openvino" else [])):
        if find_spec(name) is None:
            what = f"an export to {backend} needs the package {name}"
            raise UnavailableError(what, f"`{pip_install('export')}`")


def graph_file(backend: str, precision: str) -> str:
    """Return the file of a graph within its folder: where Optimum, transformers.js and sentence-transformers look."""
    return _FILES[backend].format("_quantized" if precision == "int8" else "")
