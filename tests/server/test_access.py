"""API key, size of the body, request id, and log."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from starlette.exceptions import HTTPException

from bertkit.errors import DataError, ModelError
from bertkit.server.access import error_response

HEADERS = {"content-type": "application/json"}


def test_a_large_body_is_refused(changed_client):
    small = changed_client(limits={"body_bytes": 100})
    chunks = [b"x" * 60, b"x" * 60, b"x" * 60]
    reply = asyncio.run(small.ask("POST", "/predict", chunks, HEADERS))
    assert (reply.status, reply.json["error"]) == (413, "the body has more than 100 bytes")
    assert reply.headers["connection"] == "close"


def test_a_key_is_asked_for_where_there_is_one(changed_client):
    locked = changed_client(api_key="sésame")
    assert locked.post("/predict", {"inputs": "a"}).status == 401
    assert locked.post("/predict", {"inputs": "a"}, authorization="Bearer wrong").status == 401
    assert [locked.get(path).status for path in ("/", "/health", "/ready")] == [200, 200, 200]
    assert [locked.get(path).status for path in ("/metrics", "/v1/models", "/docs", "/openapi.json")] == [401] * 4
    open_to = changed_client(api_key="key")
    for scheme in ("Bearer", "bearer"):
        assert open_to.post("/predict", {"inputs": "a"}, authorization=f"{scheme} key").status == 200


def test_with_a_key_there_is_a_schema_and_no_page_of_it(changed_client):
    locked = changed_client(api_key="key")
    keyed = {"authorization": "Bearer key"}
    assert [locked.get(path, **keyed).status for path in ("/docs", "/redoc", "/openapi.json")] == [404, 404, 200]
    for scheme in ("Basic", "Digest"):
        assert locked.get("/openapi.json", authorization=f"{scheme} key").status == 401
    schema = locked.get("/openapi.json", **keyed).json
    assert schema["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"


def test_a_page_of_another_website_reads_why_it_is_refused(changed_client):
    locked = changed_client(cors_origins=["https://a.example"], api_key="key", limits={"body_bytes": 100})
    refused = locked.post("/predict", {"inputs": "a"}, origin="https://a.example")
    assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert refused.headers["access-control-allow-origin"] == "https://a.example"
    assert "WWW-Authenticate" in refused.headers["access-control-expose-headers"]
    large = locked.post("/predict", b"x" * 101, origin="https://a.example", authorization="Bearer key")
    assert (large.status, large.headers["access-control-allow-origin"]) == (413, "https://a.example")


def test_probes_by_head_are_answered(client):
    assert [asyncio.run(client.ask("HEAD", path, [b""], {})).status for path in ("/health", "/ready")] == [200, 200]


def test_a_request_is_logged_by_its_status(client, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("bertkit"), "propagate", True)
    monkeypatch.setattr(logging.getLogger("bertkit"), "handlers", [])
    with caplog.at_level(logging.DEBUG, "bertkit"):
        client.get("/health")
        client.get("/nowhere")
        monkeypatch.setattr("bertkit.server.routes.to_json", None)
        client.post("/predict", {"inputs": "a"})
    levels = [(record.fields["status"], record.levelname) for record in caplog.records if hasattr(record, "fields")]
    assert levels == [(200, "INFO"), (404, "WARNING"), (500, "ERROR")]


def test_a_request_keeps_the_number_that_it_came_with(client):
    assert client.get("/health", x_request_id="mine-7").headers["x-request-id"] == "mine-7"
    assert len(client.get("/health").headers["x-request-id"]) == 32
    assert client.get("/health", x_request_id="x" * 65).headers["x-request-id"] != "x" * 65


def test_the_log_has_figures_and_no_texts(client, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("bertkit"), "propagate", True)
    with caplog.at_level(logging.DEBUG, "bertkit"):
        client.post("/predict", {"inputs": "secret"})
    fields = caplog.records[-1].fields
    assert {name: fields[name] for name in ("path", "status", "model", "rows", "tokens")} == {
        "path": "/predict",
        "status": 200,
        "model": "run",
        "rows": 1,
        "tokens": 8,
    }
    assert "secret" not in str(fields)


@pytest.mark.parametrize(
    "error, status, message",
    [
        (DataError("no text", "fill it in", column="text"), 422, "no text (column 'text') - fill it in"),
        (ModelError("not finite"), 500, "not finite"),
        (ZeroDivisionError("secret"), 500, "bertkit failed; the log of the server has the reason"),
    ],
)
def test_errors_of_an_input_are_explained_and_others_are_not(error, status, message, client, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr("bertkit.server.routes.compute", fail)
    reply = client.post("/predict", {"inputs": "a"})
    assert (reply.status, reply.json["error"]) == (status, message)


def test_a_fault_of_bertkit_shows_no_traceback(client, monkeypatch):
    monkeypatch.setattr("bertkit.server.routes.to_json", None)
    reply = client.post("/predict", {"inputs": "a"})
    assert reply.status == 500
    assert reply.json["error"] == "the model failed on this input; the log of the server has the reason"


def test_a_server_that_stops_closes_connections_with_its_answers(changed_client):
    stopping = changed_client(is_draining=True)
    reply = stopping.post("/predict", {"inputs": "a"})
    assert (reply.status, reply.headers["connection"]) == (200, "close")


def test_a_failed_request_is_answered_in_the_shape_of_its_path():
    error = HTTPException(429, "busy", {"Retry-After": "3"})
    answer = error_response("/embed", error)
    assert json.loads(answer.body) == {"error": "busy", "error_type": "overloaded"}
    assert answer.headers["retry-after"] == "3"
    assert json.loads(error_response("/v1/embeddings", error).body)["error"]["code"] == 429
