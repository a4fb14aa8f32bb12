"""The app as a whole: its schema, its state, and who may ask it."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

import pytest
from prometheus_client.parser import text_string_to_metric_families
from uvicorn.config import STARTUP_FAILURE

from bertkit.hardware import process
from bertkit.modeling.checkpoint import fingerprint
from bertkit.server.app import from_environment


def test_the_schema_has_the_rows_of_each_model(client):
    schema = client.get("/openapi.json").json
    assert {"/v1/models/run:predict", "/predict", "/embed", "/v1/embeddings"} <= schema["paths"].keys()
    assert "/rerank" not in schema["paths"]
    rows = schema["components"]["schemas"]
    assert rows["run_row"]["required"] == ["text"]
    assert client.get("/docs").status == 200


def test_models_are_listed_with_what_a_form_needs(client):
    listed = {model["id"]: model for model in client.get("/v1/models").json["data"]}
    assert listed["run"]["columns"] == [{"name": "text", "type": "text", "required": True}]
    assert listed["run"]["labels"] == ["bad", "good"]
    assert listed["vectors"]["routes"] == ["/embed", "/v1/embeddings"]
    assert client.get("/v1/models/run").json["ready"]
    assert client.get("/v1/models/nix").status == 404


def test_a_model_says_which_one_it_is(client, trained, service):
    listed = {model["id"]: model for model in client.get("/v1/models").json["data"]}
    record = json.loads((trained / "run.json").read_text())
    of_run, foreign = listed["run"], listed["vectors"]
    assert (of_run["finished"], of_run["version"]) == (record["finished"], record["versions"]["bertkit"])
    assert datetime.fromtimestamp(of_run["created"], UTC).isoformat() == record["finished"]
    assert of_run["sha256"] == fingerprint(trained) != foreign["sha256"]
    assert (foreign["created"], foreign["finished"], foreign["version"]) == (0, "", "")
    families = {family.name: family for family in text_string_to_metric_families(client.get("/metrics").body.decode())}
    labels = {sample.labels["model"]: sample.labels for sample in families["bertkit_model_info"].samples}
    assert labels["run"]["sha256"] == of_run["sha256"] and labels["vectors"]["finished"] == ""


@pytest.mark.parametrize("prefix", ["", "/bert"], ids=["removed by the proxy", "kept by it"])
def test_a_server_below_a_prefix_answers_there(changed_client, prefix):
    below = changed_client(root_path="/bert", api_key="key")
    keyed = {"authorization": "Bearer key"}
    assert [below.get(prefix + path).status for path in ("/", "/health", "/v1/models")] == [200, 200, 401]
    assert below.get("/bert").status == 200
    assert below.post(f"{prefix}/predict", {"inputs": "a"}, **keyed).status == 200
    assert "url: '/bert/openapi.json'" in changed_client(root_path="/bert").get(f"{prefix}/docs").body.decode()
    assert below.get(f"{prefix}/openapi.json", **keyed).json["servers"] == [{"url": "/bert"}]
    refused = below.post(f"{prefix}/v1/embeddings", {"model": "vectors"}, **keyed)
    assert (refused.status, refused.json["error"]["code"]) == (422, 422)  # in OpenAI's shape


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


def test_a_factory_takes_runs_from_the_environment(monkeypatch, trained):
    monkeypatch.setenv("BERTKIT_RUNS", f"a={trained}: b={trained}:")
    monkeypatch.setenv("BERTKIT_API_KEY", "key")
    service = from_environment().state.service
    assert (list(service.models), service.api_key) == (["a", "b"], "key")


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ("", "error: BERTKIT_RUNS is empty - name runs, separated by ':': BERTKIT_RUNS=runs/a:name=runs/b"),
        ("runs/x", "error: no such run: runs/x"),
    ],
)
def test_a_worker_that_cannot_start_is_not_restarted(runs, message, monkeypatch, caplog, here):
    monkeypatch.setattr(logging.getLogger("bertkit"), "propagate", True)
    monkeypatch.setenv("BERTKIT_RUNS", runs)
    with pytest.raises(SystemExit) as ended:
        from_environment()
    assert ended.value.code == STARTUP_FAILURE
    assert caplog.messages[0].startswith(message)


@pytest.mark.parametrize(("workers", "expected"), [("1", 8), ("2", 4), ("16", 1), ("many", 8)])
def test_a_worker_uses_its_part_of_the_cores(workers, expected, monkeypatch, trained):
    monkeypatch.setattr(process, "_PROCESS", process._Process())
    monkeypatch.setattr(process, "_free_threads", lambda: process.Threads(8, ""))
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("bertkit.server.app.create_app", lambda *_, **__: process.available_threads().number)
    monkeypatch.setenv("BERTKIT_RUNS", str(trained))
    monkeypatch.setenv("WEB_CONCURRENCY", workers)
    assert from_environment() == expected
