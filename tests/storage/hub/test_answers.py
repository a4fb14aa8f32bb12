"""Each answer of a hub has its own line and exit code 5, for models and data sets alike."""

from __future__ import annotations

import errno

import pytest

from bertkit.data.remote import read_hub_split
from bertkit.errors import UnavailableError
from bertkit.recipe import DataConfig
from bertkit.storage import hub
from bertkit.storage.hub.repositories import explain, hub_errors

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])

GATED = {"X-Error-Code": "GatedRepo"}
NO_REVISION = {"X-Error-Code": "RevisionNotFound"}
LOG_IN = "log in with `hf auth login`"
ANSWERS = [
    (401, {}, "the Hub does not show it without a login (401)", f"check the name, or {LOG_IN}"),
    (401, GATED, "it is gated (401)", f"request access on its page on the Hub, then {LOG_IN}"),
    (403, GATED, "it is gated (403)", f"request access on its page on the Hub, then {LOG_IN}"),
    (403, {}, "the Hub forbids it (403)", f"check what your token permits, or {LOG_IN}"),
    (404, {"X-Error-Code": "RepoNotFound"}, "the Hub does not have it (404)", "check the name"),
    (404, NO_REVISION, "the Hub does not have this revision (404)", "check the revision"),
    (418, {}, "the Hub answered 418 I'm a Teapot", "try again later"),
    (
        429,
        {"Retry-After": "30"},
        "the Hub accepts no more requests for now (429)",
        "try again in 30 s; `hf auth login` raises the limit",
    ),
    (429, {}, "the Hub accepts no more requests for now (429)", "try again later"),
    (500, {}, "the Hub failed (500 Internal Server Error)", "try again later"),
    (502, {}, "the Hub failed (502 Bad Gateway)", "try again later"),
    (503, {}, "the Hub failed (503 Service Unavailable)", "try again later"),
    (504, {}, "the Hub failed (504 Gateway Timeout)", "try again later"),
]


@pytest.fixture
def waits(monkeypatch):
    """The seconds that `huggingface_hub` waits between two questions; here they pass at once."""
    seconds = []
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", seconds.append)
    return seconds


# those that are asked again all take the same way
@pytest.mark.parametrize(
    ("status", "headers", "what", "remedy"),
    [
        answer if answer[0] not in (500, 502, 504) else pytest.param(*answer, marks=pytest.mark.slow)
        for answer in ANSWERS
    ],
)
@pytest.mark.parametrize("repo_type", ["model", "data set"])
def test_each_answer_has_its_line(loopback, waits, repo_type, status, headers, what, remedy):
    loopback.fail("*", status, headers=headers)
    with pytest.raises(UnavailableError) as refused:
        hub.find_model("me/it") if repo_type == "model" else list(read_hub_split(DataConfig(source="me/it"), "train"))
    assert refused.value.exit_code == 5
    assert f"nor in the cache, and {what} - " in str(refused.value)
    assert refused.value.remedy.startswith(remedy)
    assert len(loopback.requests) == (6 if status in (429, 500, 502, 503, 504) else 1)
    if status == 429 and "Retry-After" in headers:
        assert waits == [31] * 5
    elif len(loopback.requests) > 1:
        assert waits == [1, 2, 4, 8, 8]


def test_a_token_that_is_not_accepted_is_told_and_not_printed(loopback, monkeypatch, caplog):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    loopback.fail("*", 401, headers={"X-Error-Message": "Invalid credentials in Authorization header"})
    with pytest.raises(
        UnavailableError, match=r"does not accept your token for it \(401\) - .*log in again"
    ) as refused:
        hub.find_model("me/it")
    assert loopback.requests[0].token == "Bearer hf_secret"
    assert "hf_secret" not in str(refused.value) + caplog.text


def test_the_answer_to_a_question_for_a_file_names_the_file(loopback, tiny_model):
    loopback.add("models", "me/tiny", tiny_model)
    loopback.fail("*/tokenizer.json", 404, headers={"X-Error-Code": "EntryNotFound"})
    with pytest.raises(UnavailableError, match=r"^me/tiny, tokenizer.json: the Hub does not have this file \(404\)"):
        hub.find_model("me/tiny")


def test_faults_of_the_disk_are_not_those_of_the_hub():
    with pytest.raises(OSError, match="No space left"), hub_errors("x: "):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(UnavailableError, match=r"x: the Hub cannot be reached \(.*refused\)"), hub_errors("x: "):
        raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")
    with pytest.raises(UnavailableError, match=r"x: the transfer failed \(size 3, not 4\)"), hub_errors("x: "):
        raise OSError("size 3, not 4\nwhatever")
    assert explain(ValueError("of something else")) is None
