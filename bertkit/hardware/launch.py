"""Processes that share work without computing together: those of a launcher, or shards that are started one by one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from bertkit.errors import UsageError
from bertkit.hardware.device import is_launched, use_local_device

_asked: str | None = None


def use_shard(shard: str | None) -> None:
    """Let commands do one share of their work from now on: ``2/4`` is the second of four; None is all of it."""
    global _asked
    _asked = shard


def refuse_launch(what: str, remedy: str) -> None:
    """Check that this process is none of several that share a command's work.

    Raises:
        UsageError: it is, and the command is for one; `what` says so.
    """
    if is_one_of_several():
        raise UsageError(what, remedy)


def is_one_of_several() -> bool:
    """Tell whether this process shares its work with others: those of a launcher, or shards."""
    return is_launched() or _asked is not None


@dataclass(frozen=True)
class Launch:
    """The processes that torchrun or accelerate has started, or the shards that users start; mostly one.

    They are no process group, in which each forward pass would be shared by all. Those of a launcher wait for each
    other. Shards need not run at the same time: each leaves its share on disk.
    """

    rank: int
    size: int
    store: Any = None
    """Where processes of a launcher leave values for each other."""

    @classmethod
    def join(cls) -> Launch:
        """Find the processes by the shard that is asked for, or by what the launcher has set in the environment.

        Raises:
            UsageError: the shard is none, or shards are asked for under a launcher.
        """
        if _asked is not None:
            if is_launched():
                raise UsageError("--shard under a launcher", "leave it out: its processes share the work")
            return cls._read_shard(_asked)
        if not is_launched():
            return cls(0, 1)
        from torch.distributed.rendezvous import rendezvous

        use_local_device()
        store, rank, size = next(rendezvous("env://"))
        return cls(rank, size, store)

    @classmethod
    def _read_shard(cls, shard: str) -> Launch:
        numbers = re.fullmatch(r"(\d{1,6})/(\d{1,6})", shard)
        number, size = map(int, numbers.groups()) if numbers else (0, 0)
        if not 1 <= number <= size:
            raise UsageError(f"--shard {shard}", "give the number of a shard and how many there are, e.g. 2/4")
        return cls(number - 1, size)

    @property
    def is_shard(self) -> bool:
        """Whether the other processes may run at any time, so that nobody can wait for them."""
        return self.size > 1 and self.store is None

    def owns(self, number: int) -> bool:
        """Tell whether a part of the work is this process's: parts are dealt out by number, so nobody need ask."""
        return number % self.size == self.rank

    def publish(self, name: str, value: str) -> None:
        """Leave a value for the other processes."""
        if self.store is not None:
            self.store.set(f"bertkit/{name}", value)

    def wait_for(self, name: str) -> str:
        """Wait until another process has published this, and return it."""
        self._wait_for([f"bertkit/{name}"])
        return str(self.store.get(f"bertkit/{name}").decode())

    def form_group(self) -> None:
        """Form a process group, so that the processes of a launcher divide each forward pass of the model."""
        if self.store is None:
            return
        from torch import distributed

        # Outputs are exchanged as objects on the CPU, even if a GPU computes them.
        if not distributed.is_initialized():
            distributed.init_process_group("gloo", store=self.store, rank=self.rank, world_size=self.size)

    def finish(self) -> None:
        """Let the first process wait until all others are here."""
        if self.store is not None:
            self.store.set(f"bertkit/done/{self.rank}", "")
            if self.rank == 0:
                self._wait_for([f"bertkit/done/{rank}" for rank in range(self.size)])

    def _wait_for(self, keys: list[str]) -> None:
        from datetime import timedelta

        # a process that fails ends the whole launch
        self.store.wait(keys, timedelta(days=365))
