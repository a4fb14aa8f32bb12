"""Models of torch to graphs of ONNX and OpenVINO, by the exporters of transformers.

They trace with `torch.export`. Their interface is new and has changed within transformers 5, so this is the only module
that knows it.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bertkit.errors import ModelError, UnavailableError, pip_install, shorten
from bertkit.hardware.memory import is_memory_error
from bertkit.modeling.inference.graphs.texts import TextGraph, plain_precision, refuse_untraceable
from bertkit.modeling.info import Model, info_of
from bertkit.tokens.features import Batch

# bytes of weights in a file of ONNX, which has at most 2 GiB with the graph
_LARGEST = 2**31 - 2**24
_NOISY = ("root", "nncf", "transformers", "onnxscript", "onnx_ir", "torch.onnx", "torch.export", "torch.fx")


@dataclass(frozen=True)
class Converted:
    """A graph that was written."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    reads: str
    probabilities: bool


def convert(
    model: Model,
    names: Sequence[str],
    backend: str,
    file: Path,
    *,
    calibration: Sequence[Batch] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Converted:
    """Write the graph of a model, whose texts may be any number and of any length.

    Args:
        model: as `load_model` of a task family returns it, in float32 on the CPU.
        names: of its inputs: ``input_ids``, ``attention_mask`` and perhaps ``token_type_ids``.
        backend: ``onnx`` or ``openvino``.
        file: where the graph is written; weights beyond the 2 GB that a file of ONNX may have go beside it.
        calibration: texts, to have the graph in int8; None for float32. ONNX Runtime finds the ranges of activations
            as it runs, and OpenVINO has them from these texts.
        metadata: what a graph of ONNX says of itself.

    Raises:
        ModelError: the exporter cannot trace the model; the message has its reason.
    """
    refuse_untraceable(model)
    graph = TextGraph(model)
    inputs = example_inputs(names, model.config.vocab_size, reads_rows=graph.reads == "windows")
    dynamic = {name: dict.fromkeys(range(values.dim()), torch.export.Dim.DYNAMIC) for name, values in inputs.items()}
    with _quiet(), plain_precision(), torch.no_grad():
        outputs = tuple(graph(**inputs))
        try:
            exporter, config = _exporter(backend)
            quantizer = None if calibration is None else _quantizer(backend, calibration)
            settings = config(dynamic=True, dynamic_shapes=dynamic, quantizer=quantizer)
            program = exporter.export(graph, dict(inputs), settings).program
        except ImportError as error:  # a release that transformers refuses
            what = f"transformers cannot export to {backend} here: {shorten(str(error), 200)}"
            raise UnavailableError(what, f"`{pip_install('export')}`") from None
        except Exception as error:  # of torch, onnxscript or OpenVINO, each with classes of its own
            if is_memory_error(error):
                raise
            reason = shorten(" ".join(str(error).split()), 240)
            what = f"transformers cannot export a {type(model).__name__} to {backend}: {reason}"
            raise ModelError(what, "try the other --to") from error
        file.parent.mkdir(exist_ok=True)
        if backend == "onnx":
            _save_onnx(program, file, metadata or {})
        else:
            exporter.save_program(program, file)
    # The inputs that a graph has kept; one that nothing depends on is dropped.
    if backend == "onnx":
        left = {value.name for value in program.graph.inputs}
    else:
        left = {name for port in program.inputs for name in port.get_names()}
    inputs_left = tuple(name for name in names if name in left)
    return Converted(inputs_left, outputs, graph.reads, info_of(model).gives_probabilities)


def example_inputs(names: Sequence[str], vocabulary: int, *, reads_rows: bool) -> dict[str, torch.Tensor]:
    """Return three texts of unlike lengths to trace with; a length or number that is 1 would be taken for a constant.

    With `reads_rows`, they are two rows of three windows.
    """
    texts, tokens = 3, 7
    ids = torch.full((texts, tokens), vocabulary // 2)
    mask = torch.ones_like(ids)
    mask[1, tokens - 2 :] = 0
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    return {name: inputs[name].unsqueeze(0).repeat(2, 1, 1) if reads_rows else inputs[name] for name in names}


def _save_onnx(program: Any, file: Path, metadata: Mapping[str, str]) -> None:
    """Write a graph whose axes, inputs and weights are named as Optimum and transformers.js look for them."""
    import onnx_ir as ir

    names: dict[Any, str] = {}
    # each has axes of its own, which are as long as those of the others
    for value in program.graph.inputs:
        windows = ["windows"] if len(value.shape) > 2 else []
        axes = ["batch_size", *windows, "sequence_length"]
        names |= {dim.value: name for dim, name in zip(value.shape, axes, strict=True)}
    outputs = (output for node in program.graph for output in node.outputs)
    for value in (*program.graph.inputs, *outputs):
        if value.shape is not None:
            dims = (dim.value if isinstance(dim, ir.SymbolicDim) else dim for dim in value.shape)
            value.shape = ir.Shape([names.get(dim, dim) for dim in dims])
    program.metadata_props.update(metadata)
    size = sum(weight.const_value.nbytes for weight in program.graph.initializers.values())
    ir.save(program, file, external_data=f"{file.name}_data" if size > _LARGEST else None)


def _exporter(backend: str) -> tuple[Any, Any]:
    from transformers import exporters

    if backend == "onnx":
        return exporters.OnnxExporter(), exporters.OnnxConfig
    return exporters.OpenVINOExporter(), exporters.OpenVINOConfig


def _quantizer(backend: str, calibration: Sequence[Batch]) -> Any:
    """Return the quantizer of a backend; OpenVINO's reads the ranges of activations off the texts."""
    if backend == "onnx":
        from bertkit.modeling.inference.graphs.int8 import TokenQuantizer

        return TokenQuantizer()
    from transformers import exporters

    config = exporters.NNCFQuantizationConfig(subset_size=len(calibration))
    return exporters.NNCFOpenVINOQuantizer(config, calibration_dataset=[dict(texts) for texts in calibration])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what exporters print and warn of away from the user; what fails raises."""
    levels = {name: logging.getLogger(name).level for name in _NOISY}
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in _NOISY:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
