"""Batches that are computed in several passes: on a CPU since that is faster, on a GPU where its memory is too small.

The loss of a micro-batch is a share of its step's, so the optimizer sees the same batch either way.
"""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from accelerate.utils import find_executable_batch_size
from torch import nn

from bertkit.errors import RecipeError, ResourceError
from bertkit.hardware.device import Device, device_of
from bertkit.modeling.info import Model
from bertkit.progress import log
from bertkit.recipe.sections import CommonTraining

if TYPE_CHECKING:
    from transformers import TrainingArguments


Batch = dict[str, torch.Tensor]
"""Tensors whose first axis is rows; ``input_ids`` of shape (rows, tokens) or (rows, choices, tokens)."""

# Of one micro-batch: what the backward pass needs is kept for one at a time. With fewer tokens than these, products
# would be slower.
_ATTENTION_BYTES, TOKENS = 2**25, 2048


def split_batch(batch: Batch, rows: int) -> list[Batch]:
    """Split a batch into micro-batches of at most so many rows, and of one at least.

    >>> [part["input_ids"].tolist() for part in split_batch({"input_ids": torch.tensor([[1], [2], [3], [4]])}, rows=3)]
    [[[1], [2], [3]], [[4]]]
    """
    starts = range(0, len(batch["input_ids"]), max(1, rows))
    return [{name: values[start : start + max(1, rows)] for name, values in batch.items()} for start in starts]


def rows_at_once(batch: Batch, tokens: int | None, model: Model) -> int:
    """Return how many rows of a batch are computed at once: those of so many tokens, or what suits the device.

    All, where the loss compares them with one another; the model then reads as many tokens at once itself.
    """
    if getattr(model, "compares_rows", False):
        model.tokens_at_once = tokens
        return len(batch["input_ids"])
    if tokens:
        return tokens // tokens_of(batch)
    heads = getattr(model.config, "num_attention_heads", 12)
    return fastest_rows(batch, heads) if model.device.type == "cpu" else len(batch["input_ids"])


def check_shares(model: Model, training: CommonTraining, processes: int) -> None:
    """Check that nothing splits the batches of a loss that compares their rows; say so where processes share them.

    Raises:
        RecipeError: the recipe splits them.
    """
    if not getattr(model, "compares_rows", False):
        return
    if training.gradient_accumulation > 1:
        what = "training.gradient_accumulation splits batches, and this loss compares all texts of one"
        raise RecipeError(what, "leave it out; --set options.mini_batch=32 saves memory and changes nothing")
    if processes > 1:
        log.info(f"each of {processes} processes compares the texts of its own share of a batch")


def fastest_rows(batch: Batch, heads: int) -> int:
    """Return the rows of micro-batches of at most 2,048 tokens and 32 MB of attention weights per layer.

    On a CPU, larger tensors save no time and cost memory. They even cost time where they have to be got from the system
    anew: a batch of 32 rows of 384 tokens takes half the time in micro-batches, and a quarter of the memory.
    """
    shape, mask = batch["input_ids"].shape, batch["attention_mask"]
    # bytes of the attention weights of a row in fp32: (choices, heads, tokens, tokens), of which choices may be absent
    rows = min(max(1, _ATTENTION_BYTES // (4 * heads * tokens_of(batch) * shape[-1])), shape[0])
    # packed documents have a mask of four axes
    tokens = int(mask.sum()) if mask.shape == shape else shape.numel()
    count = max(-(-shape[0] // rows), -(-tokens // TOKENS))
    return -(-shape[0] // count)


def tokens_of(batch: Batch) -> int:
    """Return the tokens of a row, padding and all choices included."""
    return math.prod(batch["input_ids"].shape[1:])


def has_own_memory(device: torch.device) -> bool:
    """Tell whether a device may run out of memory long before the system does."""
    return Device(device.type).memory is not None


def tokens_that_fit(longest: Batch, step: Callable[[Batch], None]) -> int:
    """Find how many tokens, with padding, a micro-batch may have, and log them.

    Args:
        longest: Longest batch of the run.
        step: Computes a batch forward and backward.

    Raises:
        ResourceError: If not even a single row fits.
    """
    count, length = len(longest["input_ids"]), tokens_of(longest)
    rows = count

    def halve() -> int:
        nonlocal rows
        rows = (rows + 1) // 2 if rows > 1 else 0
        return rows

    search = find_executable_batch_size(
        lambda rows: step(split_batch(longest, rows)[0]), starting_batch_size=count, reduce_batch_size_fn=halve
    )
    try:
        search()
    except RuntimeError:
        if rows:
            raise
        what = f"a single row of {length} tokens does not fit into the memory of this GPU"
        remedy = "try a smaller --max-length, --set training.gradient_checkpointing=true, or a smaller model"
        raise ResourceError(what, remedy) from None
    if rows == count:
        log.info(f"memory: the longest batch, {count} rows of {length} tokens, fits into that of this GPU")
    else:
        log.info(
            f"memory: {count} rows of {length} tokens do not fit into that of this GPU, so micro-batches have at most "
            f"{rows} of them; the optimizer sees the same batch, with other dropout masks"
        )
    return rows * length


def least_of(tokens: int, arguments: TrainingArguments) -> int:
    """Return the least of the numbers that the processes of a run have found."""
    if arguments.world_size == 1:
        return tokens
    least = torch.tensor(tokens, device=arguments.device)
    torch.distributed.all_reduce(least, torch.distributed.ReduceOp.MIN)
    return int(least)


def try_step(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[], torch.Tensor]) -> None:
    """Compute a loss forward and backward beside what the optimizer will keep; nothing of it remains."""
    # `find_executable_batch_size` frees memory while its exception still holds the tensors of the failed trial.
    gc.collect()
    device_of(model).empty_cache()
    with without_trace(model):
        model.train()
        trained = [weights for group in optimizer.param_groups for weights in group["params"]]
        moments = [torch.empty_like(weights) for weights in 2 * trained]
        for _ in range(2):  # a micro-batch adds its gradients to those of the one before
            loss().backward()  # type: ignore[no-untyped-call]
        del moments


@contextmanager
def without_trace(model: nn.Module) -> Iterator[None]:
    """Let a model be run forward and backward; its gradients, buffers and all random streams are then as before."""
    device = next(model.parameters()).device
    buffers, was_training = [(buffer, buffer.clone()) for buffer in model.buffers()], model.training
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        model.zero_grad()
        model.train(was_training)
        for buffer, before in buffers:
            if not torch.equal(buffer, before):
                buffer.copy_(before)
