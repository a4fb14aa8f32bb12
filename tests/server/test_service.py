"""Loaded models, and where they answer."""

from __future__ import annotations


def test_models_answer_where_their_answers_fit(service):
    assert service.models["run"].routes == ["/v1/models/run:predict", "/predict"]
    assert [model.name for model in service.find("/embed")] == ["vectors"]
    assert service.find("/rerank") == []


def test_without_a_key_all_are_admitted(service):
    assert service.admits("")
