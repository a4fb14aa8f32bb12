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
RunGraph = Callable[[Mapping[str, Any]], Arrays]
"""Inputs by name -> outputs by name."""

_UNUSED_OUTPUTS = ("last_hidden_state",)  # exported for other programs

PACKAGES = {"onnx": "onnxruntime", "openvino": "openvino"}
"""Backend -> package that runs its graphs."""
_EXPORT_PACKAGES = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("openvino",)}
_FILES = {"onnx": "onnx/model{}.onnx", "openvino": "openvino/openvino_model.xml"}


def check_backend(backend: str, *, quantizes: bool = False) -> None:
    """Check that a backend is known, and that the packages that export to it are installed, without importing them.

    Args:
        backend: Key of `PACKAGES`.
        quantizes: Whether the export quantizes to int8.

    Raises:
        UsageError: If the backend is unknown.
        UnavailableError: If a package is missing.
    """
    if backend not in _FILES:
        raise UsageError(f"--to {backend} is not known", did_you_mean(backend, _FILES))
    for name in (*_EXPORT_PACKAGES[backend], *(["nncf"] if quantizes and backend == "openvino" else [])):
        if find_spec(name) is None:
            raise UnavailableError(f"an export to {backend} needs the package {name}", f"`{install_command('export')}`")


def graph_file(backend: str, precision: str) -> str:
    """Return the graph's path in its folder, where Optimum, transformers.js and sentence-transformers expect it."""
    return _FILES[backend].format("_quantized" if precision == "int8" else "")


def open_graph(file: Path, backend: str, precision: str = "fp32") -> RunGraph:
    """Load a graph, to run on the CPU with all threads that this process may use.

    Raises:
        UnavailableError: If the backend is not installed.
        ModelError: If the backend cannot load the graph.
    """
    try:
        return _OPENERS[backend](file, precision)
    except ImportError:
        message = f"running {file.name} needs the package {PACKAGES[backend]}"
        raise UnavailableError(message, f"pip install {PACKAGES[backend]}") from None
    except Exception as error:  # Each backend raises its own classes of errors.
        reason = shorten(str(error).strip().partition("\n")[0], 200)
        raise ModelError(f"{PACKAGES[backend]} rejects the graph: {reason}", "export it again", file=file) from error


def _open_onnx(file: Path, precision: str) -> RunGraph:
    # Without a home folder, telemetry would also log a warning.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = available_threads().number, 1
    # Threads that spin while they wait would take cores from other processes.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3  # errors
    # ONNX Runtime maps the weight file, so overwriting the file would change the outputs. Read it into memory instead.
    # Its name ends in `_data`; earlier exports ended in `.data`.
    for weights in file.parent.glob(f"{file.name}[._]data"):
        content = weights.read_bytes()
        options.add_external_initializers_from_files_in_memory([weights.name], [content], [len(content)])
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs() if output.name not in _UNUSED_OUTPUTS]

    def run(inputs: Mapping[str, Any]) -> Arrays:
        return dict(zip(names, session.run(names, dict(inputs)), strict=True))

    return run


def _open_openvino(file: Path, precision: str) -> RunGraph:
    import openvino

    # Without this hint, OpenVINO computes in bf16 on processors where bf16 is faster.
    dtype = "bf16" if precision == "bf16" else "f32"
    options = {"INFERENCE_PRECISION_HINT": dtype, "INFERENCE_NUM_THREADS": available_threads().number}
    core = openvino.Core()
    # Overwriting a mapped file would change the weights.
    core.set_property({"ENABLE_MMAP": False})
    compiled_model = core.compile_model(str(file), "CPU", options)
    names = [output.any_name for output in compiled_model.outputs if output.any_name not in _UNUSED_OUTPUTS]

    def run(inputs: Mapping[str, Any]) -> Arrays:
        outputs = compiled_model(dict(inputs), share_outputs=True)  # the next call overwrites them
        return {name: outputs[name].copy() for name in names}

    return run


_OPENERS: Mapping[str, Callable[[Path, str], RunGraph]] = {"onnx": _open_onnx, "openvino": _open_openvino}
