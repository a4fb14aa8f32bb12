"""What models answer at which address, beside what the same models say elsewhere."""

from __future__ import annotations

import asyncio
import base64
import threading
from dataclasses import replace

import numpy as np
import pytest

from bertkit.recipe import load_recipe
from bertkit.server.batching import RequestQueue
from bertkit.workflows.predict import predict
from tests.conftest import toy_rows, write_csv

TEXTS = ["a lovely film", "the dull song is very dull", "good", "this and that was poor"]


def embed_plainly(folder, texts):
    """Mean of the last states, divided by its length, one text at a time."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        states = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in texts]
    return np.stack([(mean / mean.norm()).numpy() for mean in (one.mean(0) for one in states)])


def test_answers_equal_those_of_predict_under_many_requests(client, trained, tmp_path):
    rows = [{"text": row["text"]} for row in toy_rows(60, seed=8)]
    recipe = load_recipe(str(trained / "recipe.yaml"), {"model": str(trained)})
    expected = list(predict(recipe, source=write_csv(tmp_path / "rows.csv", rows)))

    async def all_at_once():
        parts = [rows[start : start + 1 + start % 4] for start in range(0, 60, 3)]
        asked = [client.ask_json("/v1/models/run:predict", {"instances": part}) for part in parts]
        return list(zip(range(0, 60, 3), await asyncio.gather(*asked), strict=True))

    for start, reply in asyncio.run(all_at_once()):
        assert reply.status == 200
        for number, answer in enumerate(reply.json["predictions"], start=start):
            assert answer["prediction"] == expected[number]["prediction"]
            assert answer["probabilities"] == pytest.approx(expected[number]["probabilities"], abs=1e-5)


def test_texts_are_classified_in_the_shape_of_tei(client):
    one = client.post("/predict", {"inputs": TEXTS[0]}).json
    several = client.post("/predict", {"inputs": [[text] for text in TEXTS], "truncate": True}).json
    assert {label["label"] for label in one} == {"good", "bad"}
    assert one[0]["score"] > one[1]["score"]
    assert [of_text[0]["label"] for of_text in several] == ["good", "bad", "good", "bad"]
    assert client.post("/predict", {"inputs": []}).status == 422


def test_what_clients_of_the_hub_send_beside_texts_is_taken_or_refused(client):
    both = client.post("/predict", {"inputs": TEXTS[0]}).json
    assert client.post("/predict", {"inputs": TEXTS[0], "parameters": {}}).json == [both]  # as they expect it
    assert client.post("/predict", {"inputs": TEXTS[0], "parameters": {"top_k": 1}}).json == [both[:1]]
    refused = client.post("/predict", {"inputs": TEXTS[0], "parameters": {"function_to_apply": "none"}})
    assert (refused.status, refused.json["error"][:35]) == (422, "parameters.function_to_apply: Extra")


def test_one_kind_of_models_answers_at_the_root(service, changed_client):
    assert changed_client().post("/", {"inputs": "good"}).status == 405
    alone = changed_client(models={"run": service.models["run"]}, api_key="key")
    assert alone.post("/", {"inputs": "good"}).status == 401
    asked = [alone.post(path, {"inputs": "good"}, authorization="Bearer key").json for path in ("/", "/predict")]
    assert asked[0] == asked[1]
    assert alone.get("/").headers["content-type"].startswith("text/html")
    vectors = changed_client(models={"vectors": service.models["vectors"]})
    assert len(vectors.post("/", {"inputs": TEXTS}).json) == len(TEXTS)


def test_vectors_are_those_of_transformers(client, sentence_folder):
    expected = embed_plainly(sentence_folder, TEXTS)
    reply = client.post("/embed", {"inputs": TEXTS})
    assert np.array(reply.json) == pytest.approx(expected, abs=1e-5)
    assert np.array(client.post("/embed", {"inputs": TEXTS[0]}).json) == pytest.approx(expected[:1], abs=1e-5)


def test_prompts_and_dimensions_of_vectors(client, sentence_folder):
    expected = embed_plainly(sentence_folder, ["the good film"])[0]
    prompted = client.post("/embed", {"inputs": "good film", "prompt_name": "query"}).json[0]
    assert prompted == pytest.approx(expected, abs=1e-5)
    short = client.post("/embed", {"inputs": "the good film", "dimensions": 8}).json[0]
    assert short == pytest.approx(expected[:8] / np.linalg.norm(expected[:8]), abs=1e-5)
    plain = client.post("/embed", {"inputs": "the good film", "normalize": False}).json[0]
    assert plain / np.linalg.norm(plain) == pytest.approx(expected, abs=1e-5)
    assert np.linalg.norm(plain) != pytest.approx(1, abs=1e-2)


def test_vectors_in_the_shape_of_openai(client, sentence_folder):
    expected = embed_plainly(sentence_folder, TEXTS[:2])
    body = {"input": TEXTS[:2], "model": "vectors"}
    floats = client.post("/v1/embeddings", body).json
    packed = client.post("/v1/embeddings", {**body, "encoding_format": "base64"}).json
    assert [item["index"] for item in floats["data"]] == [0, 1]
    assert np.array([item["embedding"] for item in floats["data"]]) == pytest.approx(expected, abs=1e-5)
    unpacked = [np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in packed["data"]]
    assert np.array(unpacked) == pytest.approx(expected, abs=1e-5)
    assert floats["usage"] == {"prompt_tokens": 5 + 8, "total_tokens": 5 + 8}


@pytest.mark.parametrize(
    "path, body, status, message",
    [
        ("/v1/models/run:predict", {"instances": [{"text": 3}]}, 422, "instances[0].text: Input should be"),
        ("/v1/models/run:predict", {"instances": [{"words": "a"}]}, 422, "instances[0].text: Field required"),
        ("/v1/models/run:predict", {"instances": [{"text": "a", "x": 1}]}, 422, "instances[0].x: Extra"),
        ("/v1/models/nix:predict", {"instances": []}, 404, "no model is called 'nix' here; there are run, vectors"),
        ("/v1/models/vectors:predict", {}, 404, "vectors makes no predictions; use /embed, /v1/embeddings"),
        ("/v1/models/run:predict", {"instances": []}, 422, "instances: List should have at least 1"),
        ("/v1/models/run:predict", {"instances": [{"text": "a"}] * 65}, 413, "65 inputs: send at most 64"),
        ("/v1/models/run:predict", b'{"instances": [', 400, "the body is not JSON"),
        ("/predict", b'{"inputs": "\\ud800"}', 422, "inputs: half of a surrogate pair"),
        ("/predict", {"inputs": "a\0b"}, 422, "inputs: a NUL character: remove it"),
        ("/predict", {"inputs": ["a", "b"]}, 422, "inputs: the model reads single texts"),
        ("/predict", {"inputs": [["a"], ["a", "b"]]}, 422, "inputs: the model reads single texts"),
        ("/v1/models/run:predict", {"instances": [{"text": "a", "text_pair": "b"}]}, 422, "instances[0].text_pair: Ex"),
        ("/embed", {"inputs": ["a\0"]}, 422, "a NUL character: remove it"),
        ("/predict", {"inputs": "a", "model": "vectors"}, 404, "no model is called 'vectors' here; there are run"),
        ("/predict", {"inputs": [["a", "b", "c"]]}, 422, "inputs: give a text, a pair"),
        ("/predict", {"inputs": "a", "truncate": False}, 422, "truncate: Input should be True"),
        ("/embed", {"inputs": []}, 422, "inputs: give at least one text"),
        ("/embed", {"inputs": "a", "prompt_name": "q"}, 422, "prompt_name: no prompt is called 'q'; there are query"),
        ("/embed", {"inputs": "a", "dimensions": 99}, 422, "the model's vectors have 32"),
        ("/embed", [], 422, "Input should be a valid dictionary"),
    ],
)
def test_bad_requests_get_their_status_and_one_line(path, body, status, message, client):
    reply = client.post(path, body)
    assert reply.status == status
    assert message in reply.json["error"]
    assert "\n" not in reply.json["error"]


def test_openai_errors_have_openais_shape(client):
    reply = client.post("/v1/embeddings", {"input": "a", "model": "gpt"})
    assert reply.status == 404
    assert reply.json["error"]["code"] == 404
    assert "'gpt'" in reply.json["error"]["message"]


@pytest.mark.parametrize(("limit", "header"), [(0.01, {}), (30, {"x_request_timeout": "0.01"})])
def test_an_answer_that_takes_too_long_is_given_up(limit, header, changed_client, monkeypatch):
    compute, given_up = RequestQueue.compute_batch, threading.Event()
    monkeypatch.setattr(RequestQueue, "compute_batch", lambda *taken: (given_up.wait(5), compute(*taken))[1])
    reply = changed_client(limits={"answer_seconds": limit}).post("/predict", {"inputs": "a"}, **header)
    given_up.set()
    assert reply.status == 504 and reply.json["error"] == "no answer within 0.01 s"


@pytest.mark.parametrize("given", ["soon", "-1", "0", "nan", "1e3"])
def test_a_deadline_that_is_no_number_of_seconds_is_refused(given, client):
    reply = client.post("/predict", {"inputs": "a"}, x_request_timeout=given)
    assert reply.status == 422 and f"'{given}' is not a number of seconds" in reply.json["error"]


def test_a_client_that_has_gone_disturbs_nothing(client):
    body = b'{"inputs": "a"}'
    headers = {"content-type": "application/json"}
    assert asyncio.run(client.ask("POST", "/predict", [body], headers, leaves=True)).status in (200, 499)
    assert client.post("/predict", {"inputs": "a"}).status == 200


def test_a_full_queue_says_when_to_come_again(changed_client, service):
    full = RequestQueue(None, max_rows=0, max_tokens=1)
    model = replace(service.models["run"], row_queue=full)
    reply = changed_client(models={"run": model}).post("/predict", {"inputs": "a"})
    assert (reply.status, reply.json["error_type"]) == (429, "overloaded")
    assert int(reply.headers["retry-after"]) >= 1
