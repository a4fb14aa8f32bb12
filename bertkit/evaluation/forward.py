"""Forward passes without gradients: rows are sorted by length, and outputs return in the order of the rows."""

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
Computed = tuple[Output, float, int]
"""The outputs of a batch as arrays, the sum of its loss, and over how many items that is."""
Advance = Callable[[int], None]


def forward(
    model: nn.Module | ExportedModel,
    features: Features,
    collate: Collator,
    *,
    precision: str,
    advance: Advance = lambda rows: None,
) -> tuple[Sequence[Output], float | None]:
    """Run the model over features; several processes divide the work, and each gets the outputs of all.

    Each process runs an exported model over all features.

    Returns:
        Outputs of each feature as float32 arrays (without the batch dimension), and the mean loss, or None if
        features have no labels.
    """
    from bertkit.runtime.forward import forward_exported
    from bertkit.runtime.model import ExportedModel

    if isinstance(model, ExportedModel):
        return forward_exported(model, features, get_lengths(features).tolist(), collate, advance), None
    process, processes = rank_and_size()
    losses: list[Sequence[Any]] = []  # (sum of losses, number of items) per process
    collate, lengths = few_shapes(model, features, collate)
    # All processes must make the same batches, even if their machines differ.
    tokens = gather_from_all(tokens_at_once())[0] if processes > 1 else None

    def run(start: int) -> list[Output]:
        outputs: dict[int, Output] = {}
        total, count = 0.0, 0
        # Every n-th batch belongs to a process. Batches are sorted by length, so all processes get long and short ones.
        batches = sorted_batches(lengths[start : start + IN_MEMORY], tokens)
        process_batches = [[start + index for index in batched] for batched in batches[process::processes]]
        computed = _run_batches(model, features, collate, process_batches, precision)
        for indices, (arrays, loss, items) in zip(process_batches, computed, strict=True):
            total, count = total + loss, count + items
            # Outputs are views of the batch's arrays, with the padding of its longest row. A task's `decode` knows
            # which tokens of a row are real.
            for position, index in enumerate(indices):
                outputs[index] = {name: array[position] for name, array in arrays.items()}
            advance(len(indices))
        if lacks_a_batch(model, len(batches), process, processes):
            _run_batch(model, collate([features[start + index] for index in batches[0]]))
        # Outputs have the index of their feature, so the outputs of all processes merge in any order.
        for process_outputs, *process_losses in gather_from_all((outputs, total, count)):
            outputs |= process_outputs
            losses.append(process_losses)
        return [outputs[index] for index in sorted(outputs)]

    with evaluating(model, precision):
        outputs = offload_to_disk(chain.from_iterable(map(run, range(0, len(features), IN_MEMORY))))
    items = sum(count for _, count in losses)
    return outputs, sum(total for total, _ in losses) / items if items else None


def _run_batches(
    model: nn.Module, features: Features, collate: Collator, batches: list[list[int]], precision: str
) -> Iterator[Computed]:
    """Run batches of features in order, several at a time where the model allows it."""

    def run(batch: list[int]) -> Computed:
        return _run_batch(model, collate([features[index] for index in batch]))

    def run_in_thread(batch: list[int]) -> Computed:
        # Each thread has separate modes of torch, so set them again.
        with evaluating(model, precision):
            return run(batch)

    # A single batch already uses all threads for its products.
    in_threads = len(batches) > 1 and _runs_in_threads(model)
    return map_in_threads(run_in_thread, batches) if in_threads else map(run, batches)


def _runs_in_threads(model: nn.Module) -> bool:
    return getattr(getattr(model, "encoder", None), "is_reentrant", False) and get_device(model).is_cpu


def _run_batch(model: nn.Module, batch: Tensors) -> Computed:
    """Run the model over a batch."""
    import torch

    from bertkit.modeling.static_shapes import run_filled, without_fillers

    device = next(model.parameters()).device
    real = without_fillers(model, batch)
    fields = dict(run_filled(model, {name: to_device(value, device) for name, value in real.items()}))
    Device(device.type).end_graph()
    # The model's loss is a mean over the batch; weighted by its items, it adds up to the mean over all rows.
    loss, items = fields.pop("loss", None), count_items(real)
    arrays = {name: value.float().cpu().numpy() for name, value in fields.items() if torch.is_tensor(value)}
    return arrays, *((float(loss) * items, items) if loss is not None and items else (0.0, 0))


@contextmanager
def evaluating(model: nn.Module, precision: str) -> Iterator[None]:
    """Run a torch model without gradients and dropout, in the given precision, inside the `with` block."""
    import torch

    from bertkit.modeling.static_shapes import always_masked

    device = get_device(model)
    was_training = model.training
    if was_training:  # each change of the mode goes through all modules, which a single text would notice
        model.eval()
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
    # Weights that are gathered in inference mode could not be trained afterwards.
    mode = torch.no_grad() if is_sharded(model) else device.inference_mode()
    with mode, autocast, nullcontext() if device.shapes_may_change else always_masked():
        yield
    if was_training:
        model.train()


def lacks_a_batch(model: nn.Module, batches: int, process: int, processes: int) -> bool:
    """Return whether a process must run an extra batch: processes that share sharded weights run equally many."""
    # With 5 batches, process 0 of 2 runs three and process 1 two. Each pass gathers weights from all processes, so the
    # third pass would wait forever for process 1.
    return is_sharded(model) and process >= batches % processes > 0


def rank_and_size() -> tuple[int, int]:
    """Return the rank of this process among the processes that evaluate together, and their number."""
    from torch import distributed

    is_distributed = distributed.is_available() and distributed.is_initialized()
    return (distributed.get_rank(), distributed.get_world_size()) if is_distributed else (0, 1)


def gather_from_all(share: Item) -> list[Item]:
    """Return the values of all processes, in the order of their ranks; all processes call it together."""
    from torch import distributed

    _, processes = rank_and_size()
    shares = [share] * processes
    if processes > 1:
        distributed.all_gather_object(shares, share)
    return shares


def few_shapes(model: nn.Module, features: Features, collate: Collator) -> tuple[Collator, list[int]]:
    """Return a collator, and the lengths by which features are sorted into batches, both as they are on most devices.

    If a graph is compiled per shape, batches reuse the widths of the model's earlier ones, plus another if a text
    is longer. All batches of one width are filled to the same number of rows.
    """
    from bertkit.modeling.static_shapes import get_static_shapes, texts_of_rows

    lengths = get_lengths(features)
    device = get_device(model)
    if device.shapes_may_change or not len(lengths):
        return collate, lengths.tolist()
    shapes, longest = get_static_shapes(model), get_max_lengths(features)
    shapes.widths = shapes.widths or choose_widths(longest)
    if longest.max() > shapes.widths[-1]:
        shapes.widths += (round_size(int(longest.max())),)
    texts = texts_of_rows(model, features)
    widths = [static_width(length, shapes.widths) for length in longest.tolist()]
    # The cost of a row is its number of texts times their width, which a batch is filled by. Windows are computed
    # alone, so a row costs only its own windows; choices are padded to the most of any row.
    counts = (lengths // longest).tolist() if texts.are_windows else [texts.max_count] * len(widths)
    costs = [count * width for count, width in zip(counts, widths, strict=True)]
    order = evaluation_rows(TOKENS_AT_ONCE, texts, device.count)
    return static_collator(collate, order, shapes.widths, texts), costs


def sorted_batches(lengths: Sequence[int], tokens: int | None = None) -> list[list[int]]:
    """Split rows, longest first, into batches of at most `tokens` padded tokens (or one row).

    Without `tokens`, a batch has as many tokens as keep this machine busy: 4,096, or on a CPU 1,024 per thread if that
    is less.
    """
    # With one text there is nothing to batch, so skip the query of the machine.
    if len(lengths) < 2:
        return [[row] for row in range(len(lengths))]
    return split_by_length(lengths, tokens or tokens_at_once())


def tokens_at_once() -> int:
    """Return the number of padded tokens per batch that keeps this machine busy."""
    torch = sys.modules.get("torch")  # Exported models run without torch.
    if torch is None:
        return get_max_batch_tokens(available_threads().number)
    return get_max_batch_tokens(torch.get_num_threads()) if find_device().is_cpu else TOKENS_AT_ONCE
