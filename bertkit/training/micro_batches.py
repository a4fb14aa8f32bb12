"""Batches computed in several passes: on a CPU because this is faster, on a GPU if its memory is too small.

The loss of a micro-batch is its share of the loss of the step, so the optimizer sees the same batch in both cases.
"""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from accelerate.utils import find_executable_batch_size
from torch import nn

from bertkit.errors import RecipeError, ResourceError
from bertkit.hardware.device import get_device
from bertkit.modeling.info import Model
from bertkit.progress import log
from bertkit.recipe.sections import BaseTrainingConfig
from bertkit.tokens.features import Tensor, Tensors

# Maximum size of a micro-batch on a CPU. The backward pass keeps the activations of one micro-batch at a time. With
# fewer tokens, matrix products would be slower.
_MAX_ATTENTION_BYTES, _MAX_TOKENS = 2**25, 2048


def split_batch(batch: Tensors, rows: int) -> list[Tensors]:
    """Split a batch into micro-batches of at most `rows` rows, but at least one row.

    >>> [part["input_ids"].tolist() for part in split_batch({"input_ids": torch.tensor([[1], [2], [3], [4]])}, rows=3)]
    [[[1], [2], [3]], [[4]]]
    """
    starts = range(0, len(batch["input_ids"]), max(1, rows))
    return [{name: values[start : start + max(1, rows)] for name, values in batch.items()} for start in starts]


def choose_rows(batch: Tensors, tokens: int | None, model: Model) -> int:
    """Return the number of rows per micro-batch: as many as `tokens` allow or, without a limit, as is fast.

    A loss that compares rows needs all rows of a batch; its model then limits the tokens per forward pass.
    """
    if getattr(model, "compares_rows", False):
        model.tokens_at_once = tokens
        return len(batch["input_ids"])
    if tokens:
        return tokens // count_row_tokens(batch)
    heads = getattr(model.config, "num_attention_heads", 12)
    return choose_cpu_rows(batch, heads) if model.device.type == "cpu" else len(batch["input_ids"])


def check_shares(model: Model, training: BaseTrainingConfig, processes: int) -> None:
    """Check that batches are not split if the loss compares their rows; log if processes share a batch.

    Raises:
        RecipeError: If the recipe sets `gradient_accumulation` for such a loss.
    """
    if not getattr(model, "compares_rows", False):
        return
    if training.gradient_accumulation > 1:
        message = "training.gradient_accumulation splits batches, but this loss compares all texts of a batch"
        raise RecipeError(message, "leave it out; --set options.mini_batch=32 saves memory and changes nothing")
    if processes > 1:
        log.info(f"each of {processes} processes compares only the texts of its share of a batch")


def choose_cpu_rows(batch: Tensors, heads: int) -> int:
    """Return the number of rows per micro-batch, with at most 2,048 tokens and 32 MB of attention weights per layer.

    On a CPU, larger tensors save no time and cost memory. They even cost time if the system has to allocate them again:
    in micro-batches, 32 rows of 384 tokens take half the time and a quarter of the memory.
    """
    shape, mask = batch["input_ids"].shape, batch["attention_mask"]
    # The attention weights of a row are (heads, tokens, tokens) in fp32, or (choices, heads, tokens, tokens).
    rows = min(max(1, _MAX_ATTENTION_BYTES // (4 * heads * count_row_tokens(batch) * shape[-1])), shape[0])
    # With packed documents, the mask has four axes, so its sum is not the number of tokens.
    tokens = int(mask.sum()) if mask.shape == shape else shape.numel()
    count = max(-(-shape[0] // rows), -(-tokens // _MAX_TOKENS))
    return -(-shape[0] // count)


def count_row_tokens(batch: Tensors) -> int:
    """Return the number of tokens per row, including padding and all choices."""
    return math.prod(batch["input_ids"].shape[1:])


def find_max_tokens(longest: Tensors, step: Callable[[Tensors], None]) -> int:
    """Find and log the maximum number of tokens in a micro-batch, padding included.

    Args:
        longest: Longest batch of the run.
        step: Function that computes a batch forward and backward.

    Raises:
        ResourceError: If a single row does not fit.
    """
    count, length = len(longest["input_ids"]), count_row_tokens(longest)
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
        message = f"a single row of {length} tokens does not fit into the memory of this GPU"
        remedy = "try a smaller --max-length, --set training.gradient_checkpointing=true, or a smaller model"
        raise ResourceError(message, remedy) from None
    if rows == count:
        log.info(f"memory: the longest batch ({count} rows of {length} tokens) fits into this GPU")
    else:
        log.info(
            f"memory: {count} rows of {length} tokens do not fit into this GPU, so micro-batches have at most {rows} "
            "rows; the optimizer sees the same batch, with other dropout masks"
        )
    return rows * length


def probe_memory(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor]) -> None:
    """Run a forward and a backward pass with memory allocated for the optimizer's states, then restore the model."""
    # Free memory again: `find_executable_batch_size` does it too early, when its exception still holds tensors.
    gc.collect()
    get_device(model).empty_cache()
    with preserve_state(model):
        model.train()
        trained_weights = [weights for group in optimizer.param_groups for weights in group["params"]]
        moments = [torch.empty_like(weights) for weights in 2 * trained_weights]
        for _ in range(2):  # The second pass adds its gradients to the first ones.
            loss().backward()  # type: ignore[no-untyped-call]
        del moments


@contextmanager
def preserve_state(model: nn.Module) -> Iterator[None]:
    """Restore a model's gradients and buffers, and all random streams, after the `with` block."""
    device = next(model.parameters()).device
    buffers, was_training = [(buffer, buffer.clone()) for buffer in model.buffers()], model.training
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        model.zero_grad()
        model.train(was_training)
        for buffer, saved_buffer in buffers:
            if not torch.equal(buffer, saved_buffer):
                buffer.copy_(saved_buffer)
