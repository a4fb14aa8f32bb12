"""Loaded models, and where they answer."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from bertkit.server import service as module
from bertkit.server.batching import Limits


def test_models_answer_where_their_answers_fit(service):
    assert service.models["run"].routes == ["/v1/models/run:predict", "/predict"]
    assert [model.name for model in service.find("/embed")] == ["vectors"]
    assert service.find("/rerank") == []


def test_without_a_key_all_are_admitted(service):
    assert service.admits("")


def test_models_are_loaded_in_a_thread_that_ends_so_that_its_openmp_pool_does(monkeypatch):
    threads = []

    def load(*_):
        threads.append(threading.current_thread())
        return SimpleNamespace(rows=None, texts=None)

    monkeypatch.setattr(module, "_load_model", load)
    module.load_service([SimpleNamespace(name="a"), SimpleNamespace(name="b")], Limits())
    assert len(threads) == 2
    assert not any(thread.is_alive() for thread in threads)
