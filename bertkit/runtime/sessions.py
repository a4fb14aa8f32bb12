"""Backends that run graphs: ONNX Runtime and OpenVINO."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.errors import ModelError, UnavailableError, UsageError, did_you_mean, install_command, shorten
from bertkit.hardware.process import available_threads

Arrays = dict[str, np.ndarray[Any, Any]]
Run = Callable[[Mapping[str, Any]], Arrays]
"""Inputs by name -> outputs by name."""

_UNUSED_OUTPUTS = ("last_hidden_state",)  # outputs for other programs

PACKAGES = {"onnx": "onnxruntime", "openvino": "openvino"}
"""Backend -> the package that runs its graphs."""
_EXPORT_PACKAGES = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("openvino",)}
_FILES = {"onnx": "onnx/model{}.onnx", "openvino": "openvino/openvino_model.xml"}


def check_backend(backend: str, *, quantizes: bool = False) -> None:
    """Check that a backend is known, and that the packages of an export are installed, without importing them.

    Args:
        backend: Key of `PACKAGES`.
        quantizes: Whether the export is in int8.

    Raises:
        UsageError: If the backend is not known.
        UnavailableError: If a package is missing.
    """
    if backend not in _FILES:
        raise UsageError(f"--to {backend} is not known", did_you_mean(backend, _FILES))
    for name in (*_EXPORT_PACKAGES[backend], *(["nncf"] if quantizes and backend == "openvino" else [])):
        if find_spec(name) is None:
            message = f"an export to {backend} needs the package {name}"
            raise UnavailableError(message, f"`{install_command('export')}`")


def graph_file(backend: str, precision: str) -> str:
    """Return the path of a graph in its folder, as Optimum, transformers.js and sentence-transformers expect it."""
    return _FILES[backend].format("_quantized" if precision == "int8" else "")


def open_graph(file: Path, backend: str, precision: str = "fp32") -> Run:
    """Load a graph to run it on the CPU, by as many threads as this process may use.

    Raises:
        UnavailableError: If the backend is not installed.
        ModelError: If the backend cannot load the graph.
    """
    try:
        return _OPENERS[backend](file, precision)
    except ImportError:
        message = f"running {file.name} needs the package {PACKAGES[backend]}"
        raise UnavailableError(message, f"pip install {PACKAGES[backend]}") from None
    except Exception as error:  # Each backend has its own classes for a graph that it cannot load.
        reason = shorten(str(error).strip().partition("\n")[0], 200)
        raise ModelError(f"{PACKAGES[backend]} rejects the graph: {reason}", "export it again", file=file) from error


def _open_onnx(file: Path, precision: str) -> Run:
    # Telemetry also logs a warning for users without a home.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = available_threads().number, 1
    # Spinning threads would take cores from other processes.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3  # errors
    # ONNX Runtime would map the file of weights, so that overwriting it would change the outputs. Read it into memory
    # instead. Its name has a dot in earlier exports.
    for weights in file.parent.glob(f"{file.name}[._]data"):
        content = weights.read_bytes()
        options.add_external_initializers_from_files_in_memory([weights.name], [content], [len(content)])
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs() if output.name not in _UNUSED_OUTPUTS]

    def run(inputs: Mapping[str, Any]) -> Arrays:
        return dict(zip(names, session.run(names, dict(inputs)), strict=True))

    return run


def _open_openvino(file: Path, precision: str) -> Run:
    import openvino

    # Without this hint, OpenVINO computes in bf16 on processors where bf16 is faster.
    hint = "bf16" if precision == "bf16" else "f32"
    options = {"INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": available_threads().number}
    core = openvino.Core()
    # Overwriting a mapped file would change the weights.
    core.set_property({"ENABLE_MMAP": False})
    compiled = core.compile_model(str(file), "CPU", options)
    names = [output.any_name for output in compiled.outputs if output.any_name not in _UNUSED_OUTPUTS]

    def run(inputs: Mapping[str, Any]) -> Arrays:
        outputs = compiled(dict(inputs), share_outputs=True)  # overwritten by the next call
        return {name: outputs[name].copy() for name in names}

    return run


_OPENERS: Mapping[str, Callable[[Path, str], Run]] = {"onnx": _open_onnx, "openvino": _open_openvino}
