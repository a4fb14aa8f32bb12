"""The Open Inference Protocol says what the other addresses say, and refuses what is not in its shape."""

from __future__ import annotations

import asyncio
import json

import pytest

TEXTS = ["a lovely film", "the dull song is very dull", "good"]
INFER = "/v2/models/run/infer"


def tensor(values, name="text", **changes):
    return {"name": name, "shape": [len(values)], "datatype": "BYTES", "data": values, **changes}


def test_predictions_are_those_of_the_other_addresses(client):
    expected = client.post("/v1/models/run:predict", {"instances": [{"text": text} for text in TEXTS]}).json
    asked = {"id": "7", "inputs": [tensor(TEXTS, parameters={"content_type": "str"})], "parameters": {}}
    reply = client.post(INFER, asked)
    assert reply.status == 200, reply.body
    outputs = {one["name"]: one for one in reply.json["outputs"]}
    labels = client.get("/v2/models/run").json["outputs"][1]["parameters"]["labels"]
    assert (reply.json["model_name"], reply.json["id"]) == ("run", "7")
    assert outputs["prediction"] == {
        **{"name": "prediction", "datatype": "BYTES", "shape": [3]},
        "data": [one["prediction"] for one in expected["predictions"]],
    }
    assert outputs["probabilities"]["shape"] == [3, 2] and outputs["probabilities"]["datatype"] == "FP64"
    flat = [one["probabilities"][label] for one in expected["predictions"] for label in labels]
    assert outputs["probabilities"]["data"] == pytest.approx(flat, abs=1e-5)
    nested = tensor([[text] for text in TEXTS], shape=[3, 1])
    only = client.post(INFER, {"inputs": [nested], "outputs": [{"name": "prediction"}]}).json["outputs"]
    assert only == [outputs["prediction"]]


def test_a_client_need_not_say_that_it_sends_json(client):
    body = json.dumps({"inputs": [tensor(TEXTS)]}).encode()
    assert asyncio.run(client.ask("POST", INFER, [body], {})).status == 200
    binary = asyncio.run(client.ask("POST", INFER, [body], {"content_type": "application/octet-stream"}))
    assert binary.status == 422 and "send JSON" in binary.json["error"]


def test_encoders_answer_with_a_matrix(client):
    expected = client.post("/embed", {"inputs": TEXTS, "normalize": True}).json
    (found,) = client.post("/v2/models/vectors/infer", {"inputs": [tensor(TEXTS)]}).json["outputs"]
    rows, width = found["shape"]
    assert (found["name"], rows, width) == ("embedding", 3, len(expected[0]))
    for number, vector in enumerate(expected):  # which has length 1 there
        row = found["data"][number * width : (number + 1) * width]
        length = sum(value**2 for value in row) ** 0.5
        assert [value / length for value in row] == pytest.approx(vector, abs=1e-5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"inputs": []}, "inputs: List should have at least 1 item"),
        ({"inputs": [tensor(["a"], datatype="FP32")]}, "inputs: text must be BYTES, and its data strings"),
        ({"inputs": [tensor([1])]}, "inputs: text must be BYTES, and its data strings"),
        ({"inputs": [tensor(["a"], shape=[2])]}, "inputs: text has the shape [2], and 1 values"),
        ({"inputs": [tensor(["a"], name="words")]}, "row[0].text: Field required"),
        ({"inputs": [tensor(["a"]), tensor(["a", "b"], name="b")]}, "inputs: tensors have different numbers of rows"),
        ({"inputs": [tensor(["a\0"])]}, "row[0].text: a NUL character: remove it"),
        ({"inputs": [tensor(["a"])], "outputs": [{"name": "x"}]}, "outputs: there is no 'x'; there are prediction"),
        ({"inputs": [tensor([])]}, "at least 1 item"),
    ],
)
def test_what_is_not_in_its_shape_is_refused_in_one_line(content, message, client):
    reply = client.post(INFER, content)
    assert reply.status == 422 and message in reply.json["error"], reply.json


def test_health_and_metadata_are_true(client, changed_client):
    for path, name in (("/v2/health/live", "live"), ("/v2/health/ready", "ready"), ("/v2/models/run/ready", "ready")):
        assert client.get(path).json[name] is True
    stopping = changed_client(is_draining=True)
    assert [stopping.get(f"/v2/health/{name}").status for name in ("live", "ready")] == [200, 503]
    assert stopping.get("/v2/models/run/ready").status == 503
    assert client.get("/v2").json["name"] == "bertkit"
    described = client.get("/v2/models/run").json
    assert described["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    assert client.get("/v1/models/run").json["sha256"].startswith(described["versions"][0])
    assert client.get("/v2/models/gpt").status == 404
    keyed = changed_client(api_key="k")
    assert keyed.get("/v2/health/ready").status == 200 and keyed.get("/v2/models/run").status == 401


def test_words_are_json_in_an_element():
    from bertkit.server.inference_protocol import _read_json, _to_tensor
    from bertkit.server.refusals import RefusedError

    assert _read_json("tokens", '["a", "b"]') == ["a", "b"]
    with pytest.raises(RefusedError, match="each element of tokens must be JSON"):
        _read_json("tokens", "a b")
    assert _to_tensor([["O", "B"], ["O"]], ("O", "B"))["data"] == ['["O", "B"]', '["O"]']
    assert _to_tensor([0.5, 1.0], ())["datatype"] == "FP64"
