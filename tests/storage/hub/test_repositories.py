"""Downloads: cut off, damaged, slow, or with nobody there."""

from __future__ import annotations

import hashlib
import logging
import os

import pytest

from bertkit.errors import UnavailableError
from bertkit.storage import hub
from bertkit.storage.hub import repositories

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])


@pytest.fixture
def one_file(loopback, tmp_path, monkeypatch):
    """A model on the hub with one large file, and how it is fetched, without the waiting between two tries."""
    content = bytes(range(256)) * 400
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(content)
    loopback.add("models", "me/one", folder)
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)

    def fetch():
        repository = hub.get_repo_info("model", "me/one")
        return (hub.fetch(repository, ["model.safetensors"]) / "model.safetensors").read_bytes() == content

    return fetch


def cached_files():
    from huggingface_hub import constants

    return [name for _, _, names in os.walk(constants.HF_HUB_CACHE) for name in names if not name.endswith(".lock")]


def test_a_download_that_is_cut_off_goes_on_where_it_was(loopback, one_file):
    loopback.fail("GET */model.safetensors", cut_after=30_000, times=2)
    assert one_file()
    asked = [request.range for request in loopback.requests if request.method == "GET" and "resolve" in request.path]
    assert asked == [None, "bytes=30000-", "bytes=60000-"]


def test_a_download_that_is_cut_off_for_good_leaves_nothing_behind(loopback, one_file):
    loopback.fail("GET */model.safetensors", cut_after=0)
    with pytest.raises(
        UnavailableError, match=r"model.safetensors: the connection was interrupted .* - repeat the command"
    ):
        one_file()
    assert not any("incomplete" in name or name == "model.safetensors" for name in cached_files())
    loopback.forget()
    assert one_file()


def test_what_arrives_damaged_is_deleted(loopback, one_file):
    loopback.fail("GET */model.safetensors", spoils=True, times=1)
    with pytest.raises(UnavailableError, match=r"me/one, model.safetensors: what has arrived is damaged"):
        one_file()
    sha256 = hashlib.sha256(bytes(range(256)) * 400).hexdigest()
    assert not {"model.safetensors", sha256} & set(cached_files())
    assert one_file()


def test_small_files_have_their_checksum_too(loopback, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    loopback.add("models", "me/small", tmp_path)
    loopback.fail("GET */config.json", spoils=True)
    with pytest.raises(UnavailableError, match=r"config.json: what has arrived is damaged"):
        hub.fetch(hub.get_repo_info("model", "me/small"), ["config.json"])


def test_a_hub_that_fails_at_a_file_is_asked_again(loopback, one_file, monkeypatch):
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    loopback.fail("HEAD */model.safetensors", 503, times=3)
    assert one_file()


def test_what_is_downloaded_is_told(loopback, one_file, caplog):
    with caplog.at_level(logging.INFO, "bertkit"):
        assert one_file() and one_file()
    assert caplog.messages == ["downloading model.safetensors of me/one (0.1 MB)"]


def test_a_hub_that_does_not_answer_in_time_is_left_alone(loopback, one_file, monkeypatch):
    from huggingface_hub import constants

    assert one_file()
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.1)
    repositories._look_up.cache_clear()
    loopback.forget()
    loopback.fail("*", seconds=1)
    with pytest.raises(UnavailableError, match=r"the Hub cannot be reached \(timed out\)"):
        hub.get_repo_info("model", "me/one")
    with pytest.raises(UnavailableError, match=r"the Hub cannot be reached \(timed out\)"):
        hub.get_repo_info("dataset", "me/other")
    assert not hub.is_offline_by_choice()
    assert len(loopback.requests) == 1
    assert os.environ["HF_HUB_OFFLINE"] == "1"  # also for the processes that this one starts


def test_nobody_at_the_address(loopback, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UnavailableError, match=r"the Hub cannot be reached \(.*refused\)"):
        hub.get_repo_info("model", "me/one")


def test_an_address_that_is_no_hub(loopback):
    loopback.main["models", "me/one"] = "0" * 40
    loopback.commits["models", "me/one"] = {"0" * 40: {}}
    loopback.fail("*", 200)
    with pytest.raises(UnavailableError, match="does not answer like the Hub - check HF_ENDPOINT and the proxy"):
        hub.get_repo_info("model", "me/one")


def test_a_proxy_is_asked_in_place_of_the_hub(loopback, one_file, monkeypatch):
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session

    proxy = constants.ENDPOINT
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub.example")
    monkeypatch.setenv("HTTP_PROXY", proxy)
    close_session()  # it reads the proxies when it is opened
    assert hub.get_repo_info("model", "me/one").commit == loopback.main["models", "me/one"]
    close_session()


def test_offline_mode_asks_nobody(loopback, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub.is_offline_by_choice()
    with pytest.raises(UnavailableError, match="the Hub cannot be reached - "):
        hub.get_repo_info("model", "me/one")
    assert loopback.requests == []


def test_libraries_are_offline_inside_only(loopback):
    import datasets
    from huggingface_hub import constants

    with hub.offline():
        assert constants.HF_HUB_OFFLINE and datasets.config.HF_HUB_OFFLINE
    assert not constants.HF_HUB_OFFLINE and not datasets.config.HF_HUB_OFFLINE


def test_a_revision_may_be_a_commit(loopback, one_file):
    assert one_file()
    commit = loopback.main["models", "me/one"]
    repository = hub.get_repo_info("model", "me/one", commit)
    assert repository.folder == hub.cached_folder("model", "me/one", commit)
    hub.write_ref(repository)
    assert hub.cached_folder("model", "me/one") is None
    hub.write_ref(hub.get_repo_info("model", "me/one"))
    assert hub.cached_folder("model", "me/one") == repository.folder
