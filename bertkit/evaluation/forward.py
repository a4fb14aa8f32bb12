"""Forward passes without gradients: rows are sorted by length, and outputs have the order of the rows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Any

from bertkit.hardware.device import Device, find_device, get_device
from bertkit.hardware.process import available_threads, map_in_threads
from bertkit.hardware.tensors import to_device
from bertkit.modeling.info import is_sharded
from bertkit.storage.disk import IN_MEMORY, offload_to_disk
from bertkit.tokens.feature_cache import get_lengths, get_max_lengths
from bertkit.tokens.features import (
    TOKENS_AT_ONCE,
    Collator,
    Features,
    Item,
    Tensors,
    count_items,
    get_max_batch_tokens,
    round_size,
    split_by_length,
    static_width,
)
from bertkit.tokens.static_shapes import choose_widths, evaluation_rows, static_collator

if TYPE_CHECKING:
    from torch import nn

    from bertkit.runtime.model import ExportedModel

Output = dict[str, Any]
BatchOutput = tuple[Output, float, int]
"""Outputs of a batch as arrays, its summed loss, and the number of items in the sum."""
Advance = Callable[[int], None]


def forward(
    model: nn.Module | ExportedModel,
    features: Features,
    collate: Collator,
    *,
    precision: str,
    advance: Advance = lambda rows: None,
) -> tuple[Sequence[Output], float | None]:
    """Run the model over features; several processes divide the work, and each gets the outputs of all features.

    An exported model is not divided: each process runs it over all features.

    Returns:
        Outputs of each feature as float32 arrays (without the batch dimension), and the mean loss, or None if
        features have no labels.
    """
    from bertkit.runtime.forward import forward_exported
    from bertkit.runtime.model import ExportedModel

    if isinstance(model, ExportedModel):
        return forward_exported(model, features, get_lengths(features).tolist(), collate, advance), None
    process, processes = get_rank_and_size()
    losses: list[Sequence[Any]] = []  # (sum of losses, number of items) per process
    collate, lengths = limit_shapes(model, features, collate)
    # All processes must make the same batches, even on different machines, so the first process decides.
    max_tokens = gather_from_all(choose_batch_tokens())[0] if processes > 1 else None

    def run(start: int) -> list[Output]:
        outputs: dict[int, Output] = {}
        total_loss, num_items = 0.0, 0
        # Batches are sorted by length. A process runs every n-th batch, so all processes get long and short batches.
        batches = sorted_batches(lengths[start : start + IN_MEMORY], max_tokens)
        process_batches = [[start + index for index in batch] for batch in batches[process::processes]]
        computed = _run_batches(model, features, collate, process_batches, precision)
        for indices, (arrays, loss, items) in zip(process_batches, computed, strict=True):
            total_loss, num_items = total_loss + loss, num_items + items
            # Outputs are views of the batch's arrays, including padding, which `Task.decode` ignores.
            for position, index in enumerate(indices):
                outputs[index] = {name: array[position] for name, array in arrays.items()}
            advance(len(indices))
        if needs_extra_batch(model, len(batches), process, processes):
            _run_batch(model, collate([features[start + index] for index in batches[0]]))
        for process_outputs, *process_losses in gather_from_all((outputs, total_loss, num_items)):
            outputs |= process_outputs
            losses.append(process_losses)
        return [outputs[index] for index in sorted(outputs)]

    with use_eval_mode(model, precision):
        outputs = offload_to_disk(chain.from_iterable(map(run, range(0, len(features), IN_MEMORY))))
    items = sum(num_items for _, num_items in losses)
    return outputs, sum(total_loss for total_loss, _ in losses) / items if items else None


def _run_batches(
    model: nn.Module, features: Features, collate: Collator, batches: list[list[int]], precision: str
) -> Iterator[BatchOutput]:
    """Run batches of features in order, in several threads if the model supports it."""

    def run(batch: list[int]) -> BatchOutput:
        return _run_batch(model, collate([features[index] for index in batch]))

    def run_in_thread(batch: list[int]) -> BatchOutput:
        # torch's modes are set per thread.
        with use_eval_mode(model, precision):
            return run(batch)

    # A single batch already uses all threads for its matrix products.
    in_threads = len(batches) > 1 and _runs_in_threads(model)
    return map_in_threads(run_in_thread, batches) if in_threads else map(run, batches)


def _runs_in_threads(model: nn.Module) -> bool:
    return getattr(getattr(model, "encoder", None), "is_reentrant", False) and get_device(model).is_cpu


def _run_batch(model: nn.Module, batch: Tensors) -> BatchOutput:
    """Return the float32 outputs of a batch, its summed loss and the number of items; without labels, 0 and 0."""
    import torch

    from bertkit.modeling.static_shapes import drop_fillers, run_static_batch

    device = next(model.parameters()).device
    rows = drop_fillers(model, batch)
    fields = dict(run_static_batch(model, {name: to_device(value, device) for name, value in rows.items()}))
    Device(device.type).end_graph()
    # The model's loss is a mean over the items of the batch; as a sum, it can be added to other batches'.
    loss, items = fields.pop("loss", None), count_items(rows)
    arrays = {name: value.float().cpu().numpy() for name, value in fields.items() if torch.is_tensor(value)}
    return arrays, *((float(loss) * items, items) if loss is not None and items else (0.0, 0))


@contextmanager
def use_eval_mode(model: nn.Module, precision: str) -> Iterator[None]:
    """Run a torch model without gradients and dropout, in the given precision, inside the `with` block."""
    import torch

    from bertkit.modeling.static_shapes import always_mask

    device = get_device(model)
    was_training = model.training
    # Changing the mode visits all modules, which takes a noticeable part of the time for a single text.
    if was_training:
        model.eval()
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
    # FSDP could not train weights that it has gathered in inference mode.
    mode = torch.no_grad() if is_sharded(model) else device.inference_mode()
    with mode, autocast, nullcontext() if device.shapes_may_change else always_mask():
        yield
    if was_training:
        model.train()


def needs_extra_batch(model: nn.Module, batches: int, process: int, processes: int) -> bool:
    """Return whether a process must run an extra batch, so that all processes run the same number of batches.

    With 5 batches, process 0 of 2 runs three batches and process 1 two. If weights are sharded, each pass gathers them
    from all processes, so the third pass would wait forever for process 1.
    """
    return is_sharded(model) and process >= batches % processes > 0


def get_rank_and_size() -> tuple[int, int]:
    """Return the rank of this process, and the number of processes."""
    from torch import distributed

    is_distributed = distributed.is_available() and distributed.is_initialized()
    return (distributed.get_rank(), distributed.get_world_size()) if is_distributed else (0, 1)


def gather_from_all(value: Item) -> list[Item]:
    """Return the values of all processes, in the order of their ranks; all processes must call this function."""
    from torch import distributed

    _, processes = get_rank_and_size()
    values = [value] * processes
    if processes > 1:
        distributed.all_gather_object(values, value)
    return values


def limit_shapes(model: nn.Module, features: Features, collate: Collator) -> tuple[Collator, list[int]]:
    """Return a collator that makes few shapes of batches, and the lengths to sort features by.

    Most devices need the collator and the lengths of the features unchanged. On a device that compiles a graph per
    shape, batches reuse the widths of earlier batches, and a new width is added only for a longer text. All batches of
    one width are filled to the same number of rows.
    """
    from bertkit.modeling.static_shapes import get_static_shapes, get_texts_per_row

    lengths = get_lengths(features)
    device = get_device(model)
    if device.shapes_may_change or not len(lengths):
        return collate, lengths.tolist()
    shapes, longest = get_static_shapes(model), get_max_lengths(features)
    shapes.widths = shapes.widths or choose_widths(longest)
    if longest.max() > shapes.widths[-1]:
        shapes.widths += (round_size(int(longest.max())),)
    texts = get_texts_per_row(model, features)
    widths = [static_width(length, shapes.widths) for length in longest.tolist()]
    # The cost of a row is its number of texts times their width. A row of windows costs only its own windows; a row of
    # choices is padded to the maximum number of choices.
    counts = (lengths // longest).tolist() if texts.are_windows else [texts.max_count] * len(widths)
    costs = [count * width for count, width in zip(counts, widths, strict=True)]
    order = evaluation_rows(TOKENS_AT_ONCE, texts, device.count)
    return static_collator(collate, order, shapes.widths, texts), costs


def sorted_batches(lengths: Sequence[int], max_tokens: int | None = None) -> list[list[int]]:
    """Split rows, longest first, into batches of at most `max_tokens` padded tokens (or one row).

    By default, `max_tokens` depends on the device: 4,096, or on a CPU 1,024 per thread if that is less.
    """
    # A single row does not need the query of the device.
    if len(lengths) < 2:
        return [[row] for row in range(len(lengths))]
    return split_by_length(lengths, max_tokens or choose_batch_tokens())


def choose_batch_tokens() -> int:
    """Return the number of padded tokens per batch that keeps the device busy."""
    torch = sys.modules.get("torch")  # exported models run without torch
    if torch is None:
        return get_max_batch_tokens(available_threads().number)
    return get_max_batch_tokens(torch.get_num_threads()) if find_device().is_cpu else TOKENS_AT_ONCE
