"""Models found by name, with and without a network."""

from __future__ import annotations

import socket

import pytest

from bertkit import hub
from bertkit.errors import ModelError, UnavailableError


@pytest.fixture
def fresh_look(monkeypatch):
    hub.is_online.cache_clear()
    for name in ("HF_HUB_OFFLINE", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    yield monkeypatch
    hub.is_online.cache_clear()


def test_a_dead_network_is_noticed_within_a_second(fresh_look):
    import threading
    import time

    released = threading.Event()

    def hang(*_, **__):
        released.wait(30)
        raise OSError

    fresh_look.setattr(socket, "create_connection", hang)
    start = time.monotonic()
    assert not hub.is_online()
    assert time.monotonic() - start < 2
    released.set()


def test_a_network_that_answers_is_noticed(fresh_look):
    import contextlib

    fresh_look.setattr(socket, "create_connection", lambda *_, **__: contextlib.nullcontext())
    assert hub.is_online()


def test_offline_mode_asks_nobody(fresh_look):
    fresh_look.setenv("HF_HUB_OFFLINE", "1")
    fresh_look.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("asked"))
    assert not hub.is_online()


def test_libraries_that_were_imported_before_are_told_too(fresh_look):
    import datasets
    from huggingface_hub import constants

    for library in (constants, datasets.config):
        fresh_look.setattr(library, "HF_HUB_OFFLINE", False)
    fresh_look.setenv("HF_HUB_OFFLINE", "1")
    hub.go_offline_if_needed()
    assert constants.HF_HUB_OFFLINE and datasets.config.HF_HUB_OFFLINE


def test_a_model_of_the_cache_is_found_without_a_network(tmp_path, tiny_model, monkeypatch):
    import shutil

    from huggingface_hub import constants

    cache = tmp_path / "hub"
    snapshot = cache / "models--me--tiny" / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    shutil.copytree(tiny_model, snapshot)
    (cache / "models--me--tiny" / "refs").mkdir()
    (cache / "models--me--tiny" / "refs" / "main").write_text(snapshot.name)
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    assert hub.cached_models() == ["me/tiny"]
    assert hub.find_model("me/tiny") == snapshot
    with pytest.raises(UnavailableError, match="did you mean me/tiny; or use --model DIR"):
        hub.find_model("me/tinyy")


def test_names_that_are_no_names():
    with pytest.raises(ModelError, match="is neither a directory nor a hub name"):
        hub.find_model("no such name")
