"""Processes of one launch, which wait for each other; tests/workflows/test_embed.py has real ones."""

from __future__ import annotations

from bertkit.vectors.launch import Launch


def test_a_process_alone_waits_for_nobody(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    launch = Launch.join()
    assert (launch.rank, launch.size) == (0, 1)
    launch.publish("precision", "fp32")
    launch.finish()


def test_what_one_process_tells_the_others_hear():
    from torch.distributed import HashStore

    store = HashStore()
    first, second = (Launch(rank, 2, store) for rank in range(2))
    first.publish("precision", "bf16")
    assert second.wait_for("precision") == "bf16"
    second.finish()
    first.finish()
