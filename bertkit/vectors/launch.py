"""Processes that a launcher has started, for work that they share without computing together."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from bertkit.hardware.device import use_local_device


@dataclass(frozen=True)
class Launch:
    """The processes that torchrun or accelerate has started; mostly one.

    They are no process group, in which each forward pass would be shared by all: they only wait for each other.
    """

    rank: int
    size: int
    store: Any = None
    """Where processes of a launch leave values for each other."""

    @classmethod
    def join(cls) -> Launch:
        """Find the processes of the launch from what the launcher has set in the environment."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            return cls(0, 1)
        from torch.distributed.rendezvous import rendezvous

        use_local_device()
        store, rank, size = next(rendezvous("env://"))
        return cls(rank, size, store)

    def publish(self, name: str, value: str) -> None:
        """Leave a value for the other processes."""
        if self.store is not None:
            self.store.set(f"bertkit/{name}", value)

    def wait_for(self, name: str) -> str:
        """Wait until another process has published this, and return it."""
        self._wait_for([f"bertkit/{name}"])
        return str(self.store.get(f"bertkit/{name}").decode())

    def finish(self) -> None:
        """Let the first process wait until all others are here."""
        if self.store is not None:
            self.store.set(f"bertkit/done/{self.rank}", "")
            if self.rank == 0:
                self._wait_for([f"bertkit/done/{rank}" for rank in range(self.size)])

    def _wait_for(self, keys: list[str]) -> None:
        from datetime import timedelta

        self.store.wait(keys, timedelta(days=365))  # a process that fails ends the whole launch
