"""Graphs are run by a backend that is there, and a file that is none is named."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from bertkit.errors import ModelError, UnavailableError, UsageError
from bertkit.runtime import sessions
from bertkit.runtime.sessions import open_graph
from tests.kills import slow_unless
from tests.runtime.hand_made import INPUTS, write_sum_graph


@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_a_missing_backend_is_named(tmp_path, monkeypatch, backend):
    name = {"onnx": "onnxruntime", "openvino": "openvino"}[backend]
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UnavailableError, match=rf"needs the package {name} .*|needs the package {name}") as caught:
        open_graph(tmp_path / "model", backend)
    assert caught.value.remedy == f"pip install {name}"


def test_a_file_that_is_no_graph_is_refused_in_one_line(tmp_path):
    file = tmp_path / "model.onnx"
    file.write_bytes(b"no graph")
    with pytest.raises(ModelError, match="onnxruntime rejects the graph"):
        open_graph(file, "onnx")


@pytest.mark.parametrize("backend", slow_unless(["onnx"], ["onnx", "openvino"]))
def test_a_graph_does_not_change_with_the_weights_that_it_was_loaded_from(tmp_path, backend):
    onnx, file = pytest.importorskip("onnx"), tmp_path / "model.onnx"
    write_sum_graph(file, np.arange(60.0 * 64).reshape(60, 64))
    graph = onnx.load(file)
    options = {"save_as_external_data": True, "location": "model.onnx.data", "size_threshold": 1024}
    onnx.save(graph, file, **options)
    if backend == "openvino":
        openvino = pytest.importorskip("openvino")
        openvino.save_model(openvino.convert_model(file), tmp_path / "model.xml", compress_to_fp16=False)
        file = tmp_path / "model.xml"
    weights = tmp_path / {"onnx": "model.onnx.data", "openvino": "model.bin"}[backend]
    run = open_graph(file, backend)
    with weights.open("r+b") as stream:
        stream.write(bytes(weights.stat().st_size))
    (logits,) = run({name: np.full((1, 2), 1, dtype=np.int64) for name in INPUTS}).values()
    assert logits[0].tolist() == (2 * np.arange(64.0, 128)).tolist()


@pytest.mark.parametrize("named", ["1", "2"])
def test_a_graph_has_as_many_threads_as_the_user_names(tmp_path, monkeypatch, named):
    onnxruntime, given = pytest.importorskip("onnxruntime"), []
    session = onnxruntime.InferenceSession

    def note(file, options, **others):
        given.append(options.intra_op_num_threads)
        return session(file, options, **others)

    monkeypatch.setattr(onnxruntime, "InferenceSession", note)
    monkeypatch.setenv("OMP_NUM_THREADS", named)
    write_sum_graph(tmp_path / "model.onnx", np.arange(60.0 * 64).reshape(60, 64))
    open_graph(tmp_path / "model.onnx", "onnx")
    assert given == [int(named)]


def test_a_backend_that_is_not_known_has_a_suggestion():
    with pytest.raises(UsageError, match="--to onx is not known - did you mean onnx"):
        sessions.check_backend("onx")


def test_a_missing_package_is_named_with_the_extra(monkeypatch):
    monkeypatch.setattr(sessions, "find_spec", lambda name: None if name == "onnxscript" else name)
    with pytest.raises(UnavailableError, match=r"needs the package onnxscript - `pip install .*\[export\]'"):
        sessions.check_backend("onnx")
    sessions.check_backend("openvino")
