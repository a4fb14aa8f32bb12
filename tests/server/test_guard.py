"""What every request passes: its size and speed, its key, and its number."""

from __future__ import annotations

import asyncio
import base64
import logging

HEADERS = {"content-type": "application/json"}


def test_a_large_body_is_refused_by_its_header_or_as_it_comes(changed_client):
    small = changed_client(limits={"body_bytes": 100})
    announced = small.get("/predict", content_length="10000000")
    assert (announced.status, announced.json["error"]) == (413, "the body has more than 100 bytes")
    assert announced.headers["connection"] == "close"
    chunks = [b"x" * 60, b"x" * 60, b"x" * 60]
    assert asyncio.run(small.ask("POST", "/predict", chunks, HEADERS)).status == 413


def test_a_slow_body_is_refused(changed_client):
    hasty = changed_client(limits={"read_seconds": 0.02})
    reply = asyncio.run(hasty.ask("POST", "/predict", [b'{"inp', None], HEADERS))
    assert (reply.status, reply.json["error"]) == (408, "the body did not come within 0.02 s")


def test_a_key_is_asked_for_where_there_is_one(changed_client):
    locked = changed_client(api_key="sésame")
    assert locked.post("/predict", {"inputs": "a"}).status == 401
    assert locked.post("/predict", {"inputs": "a"}, authorization="Bearer wrong").status == 401
    assert [locked.get(path).status for path in ("/", "/health", "/ready")] == [200, 200, 200]
    assert [locked.get(path).status for path in ("/metrics", "/v1/models", "/docs", "/openapi.json")] == [401] * 4
    open_to = changed_client(api_key="key")
    for scheme in ("Bearer", "bearer"):
        assert open_to.post("/predict", {"inputs": "a"}, authorization=f"{scheme} key").status == 200


def test_a_browser_asks_for_the_key_of_the_documentation(changed_client):
    locked = changed_client(api_key="key")
    assert locked.get("/docs").headers["www-authenticate"].startswith("Basic realm=")
    assert locked.get("/v1/models").headers["www-authenticate"] == "Bearer"  # the page at / asks for it itself
    typed = {name: f"Basic {base64.b64encode(name.encode()).decode()}" for name in ("me:key", ":key", "key:", "me:no")}
    assert [locked.get("/openapi.json", authorization=value).status for value in typed.values()] == [200, 200, 401, 401]
    assert [locked.get("/docs", authorization=f"{scheme} key").status for scheme in ("Basic", "Digest")] == [401, 401]
    schema = locked.get("/openapi.json", authorization="Bearer key").json
    assert schema["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"


def test_a_page_of_another_website_reads_why_it_is_refused(changed_client):
    locked = changed_client(cors_origins=["https://a.example"], api_key="key", limits={"body_bytes": 100})
    refused = locked.post("/predict", {"inputs": "a"}, origin="https://a.example")
    assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert refused.headers["access-control-allow-origin"] == "https://a.example"
    assert "WWW-Authenticate" in refused.headers["access-control-expose-headers"]
    large = locked.post(
        "/predict", b"x" * 101, origin="https://a.example", authorization="Bearer key", content_length="101"
    )
    assert (large.status, large.headers["access-control-allow-origin"]) == (413, "https://a.example")


def test_a_head_is_answered_as_a_get(client):
    for path, status in (("/health", 200), ("/ready", 200), ("/", 200), ("/v1/models/run", 200), ("/nowhere", 404)):
        assert asyncio.run(client.ask("HEAD", path, [b""], {})).status == status


def test_a_request_is_logged_by_its_status(client, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("bertkit"), "propagate", True)
    monkeypatch.setattr(logging.getLogger("bertkit"), "handlers", [])
    with caplog.at_level(logging.DEBUG, "bertkit"):
        client.get("/health")
        client.get("/nowhere")
        monkeypatch.setattr("bertkit.server.routes._label_scores", None)
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


def test_a_fault_of_bertkit_shows_no_traceback(client, monkeypatch):
    monkeypatch.setattr("bertkit.server.routes._label_scores", None)
    reply = client.post("/predict", {"inputs": "a"})
    assert reply.status == 500
    assert reply.json["error"] == "the model failed on this input; the log of the server has the reason"


def test_a_server_that_stops_closes_connections_with_its_answers(changed_client):
    stopping = changed_client(is_draining=True)
    reply = stopping.post("/predict", {"inputs": "a"})
    assert (reply.status, reply.headers["connection"]) == (200, "close")
