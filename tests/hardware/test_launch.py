"""Processes that divide work; tests/workflows/test_embed.py and test_predict_shards.py start real ones."""

from __future__ import annotations

import os

import pytest

from bertkit.errors import UsageError
from bertkit.hardware.device import check_launch
from bertkit.hardware.launch import Launch, use_shard


@pytest.fixture(autouse=True)
def whole_again():
    use_shard(None)
    yield
    use_shard(None)


def test_a_process_alone_waits_for_nobody(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    launch = Launch.join()
    assert launch == Launch(0, 1) and launch.is_first
    launch.wait_for_all()


def test_shards_have_a_rank_and_wait_for_nobody(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for rank, shard in enumerate(("1/3", "2/3", "3/3")):
        use_shard(shard)
        launch = Launch.join()
        assert launch == Launch(rank, 3, is_shard=True) and not launch.is_first
        launch.wait_for_all()
    use_shard("1/1")
    assert Launch.join() == Launch(0, 1)


def test_a_launcher_sets_rank_and_size(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        assert Launch.join() == Launch(rank, 3)


@pytest.mark.parametrize("shard", ["0/3", "4/3", "1", "a/b", "1/0", "-1/2"])
def test_what_is_no_shard_is_refused(shard, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    use_shard(shard)
    with pytest.raises(UsageError, match=r"e\.g\. 2/4"):
        Launch.join()


def test_a_launcher_leaves_no_room_for_shards(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    use_shard("1/2")
    with pytest.raises(UsageError, match="--shard under a launcher"):
        Launch.join()


@pytest.mark.parametrize(
    ("variables", "fsdp", "message"),
    [
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, False, "does not train with DeepSpeed - .*training.fsdp=true"),
        ({"ACCELERATE_USE_MEGATRON_LM": "true"}, True, "does not train with Megatron-LM"),
        (
            {"ACCELERATE_USE_FSDP": "true"},
            False,
            "requires FSDP, but the recipe does not - add --set training.fsdp=true",
        ),
        ({"ACCELERATE_USE_FSDP": "true", "WORLD_SIZE": "1"}, True, "training.fsdp with one process"),
    ],
)
def test_launchers_that_split_weights_are_answered(variables, fsdp, message, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=message):
        check_launch(fsdp=fsdp)


def test_weights_are_split_once(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("WORLD_SIZE", "2")
    check_launch(fsdp=True)
    assert "ACCELERATE_USE_FSDP" not in os.environ
