"""Graphs are run by a backend that is there, and a file that is none is named."""

from __future__ import annotations

import sys

import pytest

from bertkit.errors import ModelError, UnavailableError
from bertkit.exported.sessions import count_threads, open_graph


@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_a_missing_backend_is_named_with_its_extra(tmp_path, monkeypatch, backend):
    name = {"onnx": "onnxruntime", "openvino": "openvino"}[backend]
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UnavailableError, match=rf"needs the package {name} .*|needs the package {name}") as caught:
        open_graph(tmp_path / "model", backend)
    assert caught.value.remedy == "pip install 'bertkit[export]'"


def test_a_file_that_is_no_graph_is_refused_in_one_line(tmp_path):
    file = tmp_path / "model.onnx"
    file.write_bytes(b"no graph")
    with pytest.raises(ModelError, match="onnxruntime refuses the graph"):
        open_graph(file, "onnx")


def test_threads_are_those_that_torch_would_use(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert count_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    assert count_threads() >= 1
