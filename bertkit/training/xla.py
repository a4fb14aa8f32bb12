"""Replacements for functions of transformers and Accelerate while a model is trained on XLA.

This is the only module that replaces functions of other packages. XLA compiles a graph for each sequence of operations.
The original functions would add graphs, or wait for other processes although one process uses all devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import transformers
from accelerate import skip_first_batches
from accelerate.state import DistributedType, PartialState
from torch.utils.data import DataLoader


@contextmanager
def xla_patches() -> Iterator[None]:
    """Make the Trainer skip batches, read its loss and save checkpoints on XLA as it does on other devices."""
    trainer = transformers.trainer
    replacements = (
        (trainer, "skip_first_batches", _skip_first_batches),
        # There is one process, so the loss need not be gathered, which would compile a graph.
        (trainer, "nested_gather", lambda loss, *_: loss.cpu()),
        # A rendezvous of processes is a computation, so it would compile a graph as well.
        (trainer.xm, "rendezvous", lambda *_: None),
    )
    with ExitStack() as stack:
        for module, name, replacement in replacements:
            stack.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, replacement)
        yield


def _skip_first_batches(loader: DataLoader[Any], count: int) -> Any:
    """Skip batches of a plain loader; for XLA, Accelerate's function expects Accelerate's own loader class."""
    state = PartialState()._shared_state
    distributed_type, state["distributed_type"] = state["distributed_type"], DistributedType.NO
    try:
        return skip_first_batches(loader, count)
    finally:
        state["distributed_type"] = distributed_type
