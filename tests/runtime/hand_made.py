"""An exported folder whose graph is written by hand: each token adds its row of a table to the logits of its text."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bertkit.runtime import tokenizer_settings
from bertkit.storage.exports import Export, write_export
from bertkit.storage.fingerprints import list_files
from tests.conftest import make_tokenizer

INPUTS = ("input_ids", "attention_mask")


def write_sum_graph(file: Path, table: np.ndarray, output: str = "logits") -> None:
    """Write a graph that sums the rows of a table (vocabulary, width) over the tokens of each text."""
    from onnx import TensorProto, helper, numpy_helper, save

    axes = {"texts_axis": np.array([1]), "last": np.array([2])}
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("Cast", ["attention_mask"], ["counted"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["counted", "last"], ["weights"]),
        helper.make_node("Mul", ["rows", "weights"], ["weighted"]),
        helper.make_node("ReduceSum", ["weighted", "texts_axis"], [output], keepdims=0),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["texts", "tokens"]) for name in INPUTS]
    outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["texts", table.shape[1]])]
    constants = {"table": table.astype(np.float32), **axes}
    initializers = [numpy_helper.from_array(values, name) for name, values in constants.items()]
    graph = helper.make_graph(nodes, "sums", inputs, outputs, initializers)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), file)


def write_token_graph(file: Path, table: np.ndarray) -> None:
    """Write a graph whose logits of a token are its row of a table (vocabulary, width)."""
    from onnx import TensorProto, helper, numpy_helper, save

    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["logits"])]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["texts", "tokens"]) for name in INPUTS]
    shape = ["texts", "tokens", table.shape[1]]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape)]
    constants = [numpy_helper.from_array(table.astype(np.float32), "table")]
    graph = helper.make_graph(nodes, "tokens", inputs, outputs, constants)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), file)


def make_export(**changes) -> Export:
    fields = {
        "backend": "onnx",
        "file": "model.onnx",
        "task": "text_classification",
        "reads": "text",
        "inputs": INPUTS,
        "outputs": ("logits",),
        "tokenizer": {},
    }
    return Export(**{**fields, **changes})


def write_exported(folder: Path, labels: tuple[str, ...], write_graph=write_sum_graph, **changes) -> np.ndarray:
    """Write a whole folder for text classification, and return the table of its graph."""
    folder.mkdir(parents=True)
    tokenizer = make_tokenizer()
    tokenizer.model_max_length = 32
    tokenizer.save_pretrained(folder)
    table = np.random.default_rng(0).normal(size=(len(tokenizer), len(labels)))
    write_graph(folder / "model.onnx", table)
    names = ", ".join(f'"{number}": "{label}"' for number, label in enumerate(labels))
    (folder / "config.json").write_text(f'{{"model_type": "bert", "id2label": {{{names}}}}}')
    export = make_export(tokenizer=tokenizer_settings(tokenizer), **changes)
    write_export(folder, export, list_files(folder, [file.name for file in folder.iterdir()]))
    return table


def write_vectors(folder: Path, output: str = "sentence_embedding", **changes) -> np.ndarray:
    """Write an exported folder whose vectors are sums over tokens; return the table that they are sums of."""
    from bertkit.modeling.sentence.folder import SentenceModules, write_modules

    width = 4
    folder.mkdir(parents=True)
    tokenizer = make_tokenizer()
    tokenizer.model_max_length = 32
    tokenizer.save_pretrained(folder)
    table = np.random.default_rng(0).normal(size=(len(tokenizer), width)).astype(np.float32)
    write_sum_graph(folder / "model.onnx", table, output=output)
    (folder / "config.json").write_text('{"model_type": "bert"}')
    write_modules(folder, SentenceModules(**{"prompts": {"query": "good "}, **changes}), width=width)
    fields = {"task": "similarity", "reads": "texts", "outputs": (output,)}
    export = make_export(tokenizer=tokenizer_settings(tokenizer), **fields)
    files = [str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()]
    write_export(folder, export, list_files(folder, files))
    return table
