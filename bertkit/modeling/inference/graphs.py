"""Export of models as graphs for ONNX Runtime and OpenVINO, with the exporters of transformers.

In bertkit, a model reads rows of one or several texts, and skips missing texts. A graph cannot, because its control
flow must not depend on the data. So a graph reads texts, in arrays (texts, tokens), and `bertkit.runtime.model` splits
rows into texts. Only the head over windows reads rows itself.

The exporters trace with `torch.export`. Their interface is new and has changed within transformers 5, so only this
module uses it.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from transformers.utils import ModelOutput

from bertkit.errors import ModelError, UnavailableError, install_command, shorten
from bertkit.hardware.process import is_memory_error
from bertkit.modeling.architectures import get_architecture
from bertkit.modeling.heads.base import INPUTS
from bertkit.modeling.heads.mixins import PROBABILITY
from bertkit.modeling.info import Model, get_tagger_head
from bertkit.tokens.features import Batch, Tensors

# The limit of an ONNX file is 2 GiB for weights and graph.
_MAX_WEIGHT_BYTES = 2**31 - 2**24
_OUTPUTS = ("logits", "start_logits", "end_logits")


@dataclass(frozen=True)
class ExportedGraph:
    """Properties of an exported graph."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    reads: str
    """Kind of rows, a key of `_FORWARD_BY_ROWS`."""
    probabilities: bool
    """Whether a score is already a probability."""


def export_graph(
    model: Model,
    names: Sequence[str],
    backend: str,
    file: Path,
    *,
    calibration: Sequence[Batch] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> ExportedGraph:
    """Write the graph of a model, for any number of texts of any length.

    Args:
        model: Model that `load_model` of a task family returned, in float32 on the CPU.
        names: Names of its inputs: ``input_ids``, ``attention_mask`` and, for some models, ``token_type_ids``.
        backend: ``onnx`` or ``openvino``.
        file: File of the graph; ONNX weights of more than 2 GB are written to a second file next to it.
        calibration: Texts for a graph in int8, or None for float32. OpenVINO measures the ranges of activations on
            these texts; ONNX Runtime measures them in each run.
        metadata: Metadata of an ONNX graph.

    Raises:
        ModelError: If the exporter cannot trace the model; the message contains the exporter's reason.
    """
    check_traceable(model)
    graph = TextGraph(model)
    inputs = make_example_inputs(names, model.config.vocab_size, reads_rows=graph.reads == "windows")
    dynamic = {name: dict.fromkeys(range(values.dim()), torch.export.Dim.DYNAMIC) for name, values in inputs.items()}
    with _silence_exporters(), disable_autocast(), torch.no_grad():
        outputs = tuple(graph(**inputs))
        try:
            exporter, config = _make_exporter(backend)
            quantizer = None if calibration is None else _make_quantizer(backend, calibration)
            settings = config(dynamic=True, dynamic_shapes=dynamic, quantizer=quantizer)
            program = exporter.export(graph, dict(inputs), settings).program
        except ImportError as error:
            # transformers does not support the installed release of a package.
            message = f"transformers cannot export to {backend} with these packages: {shorten(str(error), 200)}"
            raise UnavailableError(message, f"`{install_command('export')}`") from None
        except Exception as error:
            # torch, onnxscript and OpenVINO have separate error classes.
            if is_memory_error(error):
                raise
            reason = shorten(" ".join(str(error).split()), 240)
            message = f"transformers cannot export a {type(model).__name__} to {backend}: {reason}"
            raise ModelError(message, "try the other --to") from error
        file.parent.mkdir(exist_ok=True)
        if backend == "onnx":
            _save_onnx(program, file, metadata or {})
        else:
            exporter.save_program(program, file)
    # Exporters drop the inputs that no output depends on.
    if backend == "onnx":
        graph_names = {value.name for value in program.graph.inputs}
    else:
        graph_names = {name for port in program.inputs for name in port.get_names()}
    graph_inputs = tuple(name for name in names if name in graph_names)
    return ExportedGraph(graph_inputs, outputs, graph.reads, getattr(model, "score_activation", None) == PROBABILITY)


def make_example_inputs(names: Sequence[str], vocabulary: int, *, reads_rows: bool) -> dict[str, Tensor]:
    """Return three texts to trace with, or two rows of three windows if `reads_rows`.

    All sizes exceed 1, because tracing would treat a size of 1 as a constant.
    """
    texts, tokens = 3, 7
    ids = torch.full((texts, tokens), vocabulary // 2)
    mask = torch.ones_like(ids)
    mask[1, tokens - 2 :] = 0
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    return {name: inputs[name].unsqueeze(0).repeat(2, 1, 1) if reads_rows else inputs[name] for name in names}


def _save_onnx(program: Any, file: Path, metadata: Mapping[str, str]) -> None:
    """Write a graph with the axis names that Optimum and transformers.js expect."""
    import onnx_ir as ir

    names: dict[Any, str] = {}
    # torch names the axes of each input separately, although all inputs have the same shape.
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
    ir.save(program, file, external_data=f"{file.name}_data" if size > _MAX_WEIGHT_BYTES else None)


def _make_exporter(backend: str) -> tuple[Any, Any]:
    """Return the exporter of a backend, and the class of its settings."""
    from transformers import exporters

    if backend == "onnx":
        return exporters.OnnxExporter(), exporters.OnnxConfig
    return exporters.OpenVINOExporter(), exporters.OpenVINOConfig


def _make_quantizer(backend: str, calibration: Sequence[Batch]) -> Any:
    if backend == "onnx":
        from bertkit.modeling.inference.int8 import TokenQuantizer

        return TokenQuantizer()
    from transformers import exporters

    config = exporters.NNCFQuantizationConfig(subset_size=len(calibration))
    return exporters.NNCFOpenVINOQuantizer(config, calibration_dataset=[dict(texts) for texts in calibration])


@contextlib.contextmanager
def _silence_exporters() -> Iterator[None]:
    """Suppress the output, warnings and log messages of exporters; errors are still raised."""
    disabled_level = logging.root.manager.disable
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable()
        try:
            yield
        finally:
            logging.disable(disabled_level)


class TextGraph(nn.Module):
    """Forward pass over texts of a model in evaluation mode, without the mixin that makes it read rows."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model, self.reads = model.eval(), getattr(model, "reads", "text")
        self.compute = _FORWARD_BY_ROWS[self.reads]
        for module in model.modules():
            # Undo `compute_head_in_fp32`: a graph computes in float32 anyway.
            if type(module) is nn.Linear:
                vars(module).pop("forward", None)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensors:
        """Compute the outputs of texts (texts, tokens); a head over windows takes rows (rows, windows, tokens)."""
        return self.compute(self.model, input_ids, attention_mask, token_type_ids)

    def on_arrays(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Run the model on numpy arrays, like an exported graph."""
        with torch.no_grad():
            outputs = self(**{name: torch.from_numpy(values) for name, values in batch.items()})
        return {name: values.numpy() for name, values in outputs.items()}


def _from_text(model: Model, ids: Tensor, mask: Tensor, segments: Tensor | None) -> Tensors:
    outputs = _run_class(model, ids, mask, segments)
    return {name: outputs[name] for name in _OUTPUTS if name in outputs}


def _from_choice(model: Model, ids: Tensor, mask: Tensor, segments: Tensor | None) -> Tensors:
    """Read each text as a row with a single choice. Shape of logits: (texts, 1)."""
    rows = (None if values is None else values.unsqueeze(1) for values in (ids, mask, segments))
    return {"logits": _run_class(model, *rows).logits}


def _from_windows(model: Model, ids: Tensor, mask: Tensor, segments: Tensor | None) -> Tensors:
    """Run all windows of a row, including missing windows, whose weight is 0."""
    flat = (None if values is None else values.flatten(0, 1) for values in (ids, mask, segments))
    first = model.run_encoder(*flat).last_hidden_state[:, 0]
    return {"logits": model.classify(first.view(*ids.shape[:2], first.shape[-1]), mask.sum(dim=-1) > 1)}


def _from_vectors(model: Model, ids: Tensor, mask: Tensor, segments: Tensor | None) -> Tensors:
    """Compute the vector of each text or token, hidden states and, if the model has `logistic`, logits.

    Programs with the files of sentence-transformers pool the hidden states themselves.
    """
    states = model.run_encoder(ids, mask, segments).last_hidden_state
    vectors = model.pool_states(states, mask)
    classify = getattr(model, "logistic", None)
    name = "sentence_embedding" if vectors.dim() == 2 else "token_embeddings"
    logits = {} if classify is None else {"logits": classify(vectors)}
    return {"last_hidden_state": states, name: vectors, **logits}


def _from_masked_head(model: Model, ids: Tensor, mask: Tensor, segments: Tensor | None) -> Tensors:
    """Compute sparse vectors from each vocabulary entry's highest logit over the tokens of a text.

    `SparseHead` computes the same vectors with less memory.
    """
    logits = _run_class(model, ids, mask, segments).logits
    max_logits = logits.masked_fill(mask.unsqueeze(-1) == 0, torch.finfo(logits.dtype).min).amax(dim=1)
    return {"vectors": max_logits.relu().log1p()}


def _run_class(model: Model, *inputs: Tensor | None) -> ModelOutput:
    """Call ``forward`` of a model's class without the mixin of `extend_class`."""
    kwargs = {name: values for name, values in zip(INPUTS, inputs, strict=True) if values is not None}
    model_class: type[Model] = getattr(type(model), "extended_class", type(model))
    return model_class.forward(model, **kwargs)


_FORWARD_BY_ROWS: Mapping[str, Callable[[Model, Tensor, Tensor, Tensor | None], Tensors]] = {
    "text": _from_text,
    "choices": _from_choice,
    "passages": _from_text,
    "windows": _from_windows,
    "texts": _from_vectors,
    "sparse": _from_masked_head,
}


def check_traceable(model: Model) -> None:
    """Check that a model can be traced.

    Raises:
        ModelError: If the model has language adapters, or its head is a BiLSTM, which packs texts by their lengths.
    """
    if get_architecture(model.config).has_language_adapters:
        message = "its language adapters give wrong outputs in an exported graph"
        raise ModelError(message, "use the run folder, or train XLM-RoBERTa")
    head = get_tagger_head(model.config) or {}
    if head.get("tagger") == "bilstm":
        message = "its tagger is a BiLSTM over texts packed by length, which torch.export cannot trace"
        raise ModelError(message, "train one with options.tagger=linear, or without options.layers")


@contextlib.contextmanager
def disable_autocast() -> Iterator[None]:
    """Make `torch.autocast` do nothing inside the `with` block; exporters cannot trace it."""
    with patch.object(torch, "autocast", lambda *_, **__: contextlib.nullcontext()):
        yield
