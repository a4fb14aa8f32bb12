"""The app as a whole: its schema, its state, and who may ask it."""

from __future__ import annotations

import pytest

from bertkit.errors import UsageError
from bertkit.server.app import from_environment


def test_the_schema_has_each_models_rows_and_answers(client):
    schema = client.get("/openapi.json").json
    assert {"/v1/models/run:predict", "/predict", "/embed", "/v1/embeddings"} <= schema["paths"].keys()
    assert "/rerank" not in schema["paths"]
    rows = schema["components"]["schemas"]
    assert rows["run_row"]["required"] == ["text"]
    assert rows["run_prediction"]["properties"]["probabilities"]["anyOf"][0]["type"] == "object" or "object" in str(
        rows["run_prediction"]["properties"]["probabilities"]
    )
    assert client.get("/docs").status == 200


def test_models_are_listed_with_what_a_form_needs(client):
    listed = {model["id"]: model for model in client.get("/v1/models").json["data"]}
    assert listed["run"]["columns"] == [
        {"name": "text", "type": "text", "required": True},
        {"name": "text_pair", "type": "text", "required": False},
    ]
    assert listed["run"]["labels"] == ["bad", "good"]
    assert listed["vectors"]["routes"] == ["/embed", "/v1/embeddings"]
    assert client.get("/v1/models/run").json["ready"]
    assert client.get("/v1/models/nix").status == 404


def test_health_and_readiness_differ_while_the_server_stops(client, changed_client):
    assert (client.get("/health").status, client.get("/ready").status) == (200, 200)
    stopping = changed_client(is_draining=True)
    assert (stopping.get("/health").status, stopping.get("/ready").status) == (200, 503)


def test_other_websites_are_let_in_only_by_name(client, changed_client):
    origin = {"origin": "https://a.example"}
    assert "access-control-allow-origin" not in client.get("/health", **origin).headers
    named = changed_client(cors_origins=["https://a.example"])
    assert named.get("/health", **origin).headers["access-control-allow-origin"] == "https://a.example"


def test_what_is_no_json_is_named(client):
    reply = client.post("/predict", b"inputs=a", content_type="application/x-www-form-urlencoded")
    assert (reply.status, reply.json["error"]) == (422, "send JSON, with the header Content-Type: application/json")
    assert client.get("/nowhere").json == {"error": "Not Found", "error_type": "not_found"}


def test_a_factory_takes_runs_from_the_environment(monkeypatch):
    monkeypatch.delenv("BERTKIT_RUNS", raising=False)
    with pytest.raises(UsageError, match="BERTKIT_RUNS names no run"):
        from_environment()
