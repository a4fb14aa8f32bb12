"""Loaded models, and where they answer."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from prometheus_client.parser import text_string_to_metric_families

from bertkit.server import service as module
from bertkit.server.batching import Limits


def test_models_answer_where_their_answers_fit(service):
    assert service.models["run"].routes == [*("/v1/models/run:predict", "/predict", "/v1/decisions", "/v1/systemone")]
    assert [model.name for model in service.find("/embed")] == ["vectors"]
    assert service.find("/rerank") == []


def test_models_are_loaded_in_a_thread_that_ends_so_that_its_openmp_pool_does(monkeypatch):
    loaders = []

    def load(model, *_):
        loaders.append(threading.current_thread())
        return SimpleNamespace(name=model.name, rows=None, texts=None)

    monkeypatch.setattr(module, "_load_model", load)
    module.load_service([SimpleNamespace(name="a"), SimpleNamespace(name="b")], Limits())
    assert len(loaders) == 2
    assert not any(thread.is_alive() for thread in loaders)


def test_requests_batches_and_the_queue_are_counted(client):
    def read():
        families = text_string_to_metric_families(client.get("/metrics").body.decode())
        return {
            (sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples
        }

    key = ("bertkit_requests_total", "/predict", "200")
    before = read().get(key, 0)
    client.post("/predict", {"inputs": [["good"], ["bad film"]]})
    after = read()
    assert after[key] == before + 1
    assert after[("bertkit_queue_rows", "run")] == 0
    assert after[("bertkit_batch_rows_count", "run")] >= 1
