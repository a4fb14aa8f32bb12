"""Processes that divide a command's work: started by a launcher, or as shards by users."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from bertkit.errors import UsageError
from bertkit.hardware.device import is_launched, use_local_device

_shard: str | None = None


def use_shard(shard: str | None) -> None:
    """Limit the work of this process to one shard, such as ``2/4``, the second of four; None: do all work."""
    global _shard
    _shard = shard


def check_not_launched(problem: str, remedy: str) -> None:
    """Check that this process does not divide its work with others.

    Raises:
        UsageError: If it does, with the message `problem`.
    """
    if shares_work():
        raise UsageError(problem, remedy)


def shares_work() -> bool:
    """Return whether other processes do a part of the work: processes of a launcher, or shards."""
    return is_launched() or _shard is not None


@dataclass(frozen=True)
class Launch:
    """Group of processes that divide a command's work, often only one process.

    They exchange data only by files. Shards need not run at the same time.
    """

    rank: int
    size: int
    is_shard: bool = False

    @classmethod
    def join(cls) -> Launch:
        """Return the group of this process, from `--shard` or from the launcher's environment variables.

        Raises:
            UsageError: If the shard is malformed, or given under a launcher.
        """
        if _shard is not None:
            if is_launched():
                raise UsageError("--shard under a launcher", "leave it out: its processes share the work")
            match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", _shard)
            shard, size = map(int, match.groups()) if match else (0, 0)
            if not 1 <= shard <= size:
                raise UsageError(f"--shard {_shard} must be I/N, with I from 1 to N", "e.g. 2/4 for the second of four")
            return cls(shard - 1, size, is_shard=size > 1)
        if not is_launched():
            return cls(0, 1)
        use_local_device()
        return cls(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))

    @property
    def is_first(self) -> bool:
        """Whether this is the first process of a launch, or the only one."""
        return self.rank == 0 and not self.is_shard

    def wait_for_all(self) -> None:
        """Wait until all processes of a launcher have called this; shards and a single process do not wait."""
        if self.size > 1 and not self.is_shard:
            from torch import distributed

            join_process_group()
            distributed.barrier()


def join_process_group() -> None:
    """Join the other processes of a launcher, which then divide each forward pass of the model."""
    from datetime import timedelta

    from torch import distributed

    use_local_device()
    if not distributed.is_initialized():
        # Outputs are exchanged as objects on the CPU, even if a GPU computes them. The timeout is long because a
        # process may wait for hours for another one; if a process fails, the launcher ends all.
        distributed.init_process_group("gloo", timeout=timedelta(days=365))
