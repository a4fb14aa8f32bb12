"""Functions of transformers and Accelerate that are replaced while a model is trained on XLA.

This is the only module that replaces functions of other packages. XLA compiles a graph for each sequence of operations,
and these functions would add graphs or wait for other processes, although one process uses all devices.
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
        # Processes would meet by computing something together, which would compile a graph as well.
        (trainer.xm, "rendezvous", lambda *_: None),
    )
    with ExitStack() as restored:
        for module, name, replacement in replacements:
            restored.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, replacement)
        yield


def _skip_first_batches(loader: DataLoader[Any], count: int) -> Any:
    """Skip batches of a plain loader; on XLA, Accelerate expects its own, whose thread moves batches to the device."""
    state = PartialState()._shared_state
    before, state["distributed_type"] = state["distributed_type"], DistributedType.NO
    try:
        return skip_first_batches(loader, count)
    finally:
        state["distributed_type"] = before
