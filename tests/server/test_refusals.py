"""How errors are answered."""

from __future__ import annotations

import json

import pytest

from bertkit.errors import DataError, ModelError
from bertkit.server.refusals import RefusedError, refusal_of, refuse


@pytest.mark.parametrize(
    "error, status, message",
    [
        (DataError("no text", "fill it in", column="text"), 422, "no text (column 'text') - fill it in"),
        (ModelError("not finite"), 500, "not finite"),
        (ZeroDivisionError("secret"), 500, "the model failed on this input; the log of the server has the reason"),
        (RefusedError(429, "busy"), 429, "busy"),
    ],
)
def test_errors_of_an_input_are_told_and_others_are_not(error, status, message):
    refused = refusal_of(error)
    assert (refused.status_code, refused.detail) == (status, message)


def test_a_refusal_has_the_shape_of_its_address():
    refused = RefusedError(429, "busy", {"Retry-After": "3"})
    answer = refuse("/embed", refused)
    assert json.loads(answer.body) == {"error": "busy", "error_type": "overloaded"}
    assert answer.headers["retry-after"] == "3"
    assert json.loads(refuse("/v1/embeddings", refused).body)["error"]["code"] == 429
