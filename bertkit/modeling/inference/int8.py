"""ONNX graphs in int8. The outputs of a text do not depend on the other texts of its batch.

Weights have one scale per output of a product. Activations get one scale per token, computed when the graph runs (Yao
et al. 2022, ZeroQuant, section 4.1). `quantize_dynamic` of ONNX Runtime uses one scale for all tokens of a batch, so
the predicted label of a text can depend on the other texts.

A token x = [0.5, -2.0] has the scale 2.0 / 127, and becomes [32, -127]. The kernels need unsigned activations, so the
zero point 128 is added: [160, 1].
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.tape import Tape
from transformers.exporters import ExportQuantizer
from transformers.exporters.configs import ExportFormat

_MAX_INT8 = 127
# For tokens whose activations are all 0.
_MIN_SCALE = np.float32(1e-12)
# Tables with fewer embeddings are not quantized.
_MIN_EMBEDDINGS = 256


class TokenQuantizer(ExportQuantizer):  # type: ignore[misc]  # transformers has no types
    """Quantizer for matrix products and embedding tables of an exported graph."""

    supported_formats = (ExportFormat.ONNX,)
    required_packages = ("onnx_ir", "onnxruntime")

    def quantize(self, model: ir.Model, sample_inputs: object, export_format: ExportFormat) -> ir.Model:
        """Replace products and lookups by int8 versions, and return the changed model."""
        graph, tables = model.graph, dict[str, tuple[ir.Value, ir.Value]]()
        for node in list(graph):
            weights = _get_weights(node)
            if weights is None:
                continue
            tape = Tape(graph)
            if node.op_type == "Gather":
                output = _look_up(tape, node, weights, tables)
            else:
                output = _add_product(tape, node, weights)
            ir.convenience.replace_nodes_and_values(graph, node, [node], tape.nodes, node.outputs, [output])
        model.opset_imports["com.microsoft"] = 1
        for name in [name for name, value in graph.initializers.items() if not value.uses()]:
            del graph.initializers[name]
        return model


def _get_weights(node: Any) -> np.ndarray | None:
    """Return the matrix (inputs, outputs) of a product with a constant, the table of a lookup, or else None."""
    position = {"MatMul": 1, "Gemm": 1, "Gather": 0}.get(node.op_type)
    if position is None:
        return None
    tensor = ir.convenience.get_const_tensor(node.inputs[position])
    if tensor is None or tensor.dtype != ir.DataType.FLOAT or len(tensor.shape) != 2:
        return None
    weights = tensor.numpy()
    settings = {name: attribute.value for name, attribute in node.attributes.items()}
    if node.op_type == "Gather":
        return weights if settings.get("axis", 0) == 0 and len(weights) >= _MIN_EMBEDDINGS else None
    if settings.get("transA") or settings.get("alpha", 1.0) != 1.0 or settings.get("beta", 1.0) != 1.0:
        return None
    return weights.T if settings.get("transB") else weights


def _to_int8(weights: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Round weights to int8. The scales are maxima over `axis`: one per column for 0, one per row for 1."""
    scales = np.maximum(np.abs(weights).max(axis=axis, keepdims=True), _MIN_SCALE) / np.float32(_MAX_INT8)
    return np.round(weights / scales).astype(np.int8), scales.astype(np.float32)


def _add_product(tape: Tape, node: Any, weights: np.ndarray) -> ir.Value:
    """Add the nodes of an int8 product of activations (..., tokens, inputs) and weights, and return the output."""
    int8_weights, scales = _to_int8(weights, axis=0)
    name = node.name or node.outputs[0].name
    activations, bias = node.inputs[0], node.inputs[2] if len(node.inputs) > 2 else None

    def constant(part: str, value: np.ndarray | np.generic) -> ir.Value:
        return tape.initializer(ir.tensor(np.ascontiguousarray(value), name=f"{name}.{part}"))

    # Shape (..., tokens, 1): the scale of a token does not depend on other tokens.
    maxima = tape.op("ReduceMax", [tape.op("Abs", [activations]), constant("last", np.array([-1]))], {"keepdims": 1})
    maxima = tape.op("Max", [maxima, constant("least", _MIN_SCALE)])
    unit, zero = constant("unit", np.float32(1 / _MAX_INT8)), constant("zero", np.uint8(_MAX_INT8 + 1))
    tokens = tape.op("QuantizeLinear", [tape.op("Div", [activations, maxima]), unit, zero])
    inputs = [tokens, constant("weight", int8_weights), unit, constant("scale", scales[0]), zero]
    output = tape.op("MatMulIntegerToFloat", inputs, domain="com.microsoft")
    output = tape.op("Mul", [output, maxima])
    return output if bias is None else tape.op("Add", [output, bias])


def _look_up(tape: Tape, node: Any, weights: np.ndarray, tables: dict[str, tuple[ir.Value, ir.Value]]) -> ir.Value:
    """Add nodes that look up rows of an int8 table and multiply each by its scale, and return the output."""
    name = node.inputs[0].name
    if name not in tables:
        int8_weights, scales = _to_int8(weights, axis=1)
        tables[name] = (
            tape.initializer(ir.tensor(int8_weights, name=f"{name}.int8")),
            tape.initializer(ir.tensor(scales, name=f"{name}.scale")),
        )
    rows, scale = (tape.op("Gather", [table, node.inputs[1]]) for table in tables[name])
    return tape.op("Mul", [tape.op("Cast", [rows], {"to": ir.DataType.FLOAT}), scale])
