"""Models on batches of few shapes (`bertkit.tokens.static_shapes`), whose loss ignores the rows that fill them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional

from bertkit.modeling.heads.mixins import Loss, list_loss, sum_over_rows, text_loss
from bertkit.modeling.info import Model, unwrap
from bertkit.tokens.feature_cache import get_lengths, get_max_lengths
from bertkit.tokens.features import PADDING_STEPS, ROW_MASK, Batch, Features, Tensors
from bertkit.tokens.static_shapes import Texts


@dataclass
class StaticShapes:
    """Shapes of the batches of a model on a device that compiles one graph per shape.

    Training and evaluations share them, so that an evaluation compiles few more graphs.
    """

    widths: tuple[int, ...] = ()
    """Widths of batches, in order; empty before the first batch."""
    texts: int = 1
    """Number of texts per row, if rows have several."""


_shapes: WeakKeyDictionary[Model, StaticShapes] = WeakKeyDictionary()


def get_static_shapes(model: Model) -> StaticShapes:
    """Return the shapes of the batches of a model so far."""
    return _shapes.setdefault(unwrap(model), StaticShapes())


@contextmanager
def always_mask() -> Iterator[None]:
    """Mask attention in every batch inside the `with` block, for a device that compiles one graph per shape.

    Otherwise, transformers reads the mask and leaves it out if the batch has no padding. That would wait for the
    device, and compile two graphs per shape.
    """
    # This import takes long, and predictions on a CPU do not need it.
    from transformers import AttentionMaskInterface

    make_mask = AttentionMaskInterface()["sdpa"]

    def mask(*arguments: object, **named: object) -> Any:
        named |= {"allow_is_bidirectional_skip": False, "allow_is_causal_skip": False}
        return make_mask(*arguments, **named)

    AttentionMaskInterface.register("sdpa", mask)
    try:
        yield
    finally:
        AttentionMaskInterface.register("sdpa", make_mask)


def get_texts_per_row(model: Model, features: Features) -> Texts:
    """Return the number of texts per row in batches of few shapes; it never decreases from batch to batch."""
    shapes, count = get_static_shapes(model), int((get_lengths(features) // get_max_lengths(features)).max())
    if count > 1:
        shapes.texts = count = max(count, shapes.texts)
    return Texts(count, are_windows=getattr(model, "reads", "text") in ("text", "windows"))


def drop_fillers(model: Model, batch: Batch) -> Batch:
    """Remove the rows that fill a batch, unless the loss of the model can ignore them.

    bertkit does not know the loss of float labels in a custom task family.
    """
    labels = batch.get("labels")
    # Integer labels have a value that a loss skips.
    is_skipped = labels is None or not labels.is_floating_point()
    if ROW_MASK not in batch or is_skipped or _takes_row_mask(model) or _loss_of_numbers(model) is not None:
        return batch
    is_row = batch[ROW_MASK]
    return {name: values[is_row] for name, values in batch.items() if name != ROW_MASK}


def run_static_batch(model: Model, batch: Batch) -> Tensors:
    """Run a model on a batch; the loss is the mean over the rows, or labels, without the rows that fill the batch."""
    inputs = {name: values for name, values in batch.items() if name != ROW_MASK}
    is_row = batch.get(ROW_MASK)
    takes_mask = is_row is not None and _takes_row_mask(model)
    outputs: Tensors = model(**inputs, **({"row_mask": is_row} if takes_mask else {}))
    if is_row is None or takes_mask:
        return outputs
    labels = inputs.get("labels")
    if "start_positions" in inputs:
        outputs["loss"] = _answer_loss(outputs, inputs)
    if labels is not None and labels.is_floating_point():
        loss = _loss_of_numbers(model)
        assert loss is not None  # checked by `drop_fillers`
        outputs["loss"] = sum_over_rows(loss, outputs["logits"].float(), labels, is_row) / is_row.sum()
    return outputs


def _answer_loss(outputs: Tensors, inputs: Batch) -> Tensor:
    """Compute the loss of transformers' heads for answers, a softmax over tokens and padding.

    It depends on the width of the batch. So padding is left out that a batch of variable width would not have.
    """
    mask = inputs["attention_mask"]
    longest = mask.sum(dim=1).max()
    widths = [-(-longest // step) * step for _, step in PADDING_STEPS]
    width = longest
    for (above, _), rounded in reversed(list(zip(PADDING_STEPS, widths, strict=True))):
        width = rounded.where(longest > above, width)
    is_wider = torch.arange(mask.shape[1], device=mask.device) >= width
    losses = [
        functional.cross_entropy(
            outputs[f"{end}_logits"].masked_fill(is_wider, torch.finfo(outputs[f"{end}_logits"].dtype).min),
            inputs[f"{end}_positions"].clamp(max=mask.shape[1]),
            ignore_index=mask.shape[1],
        )
        for end in ("start", "end")
    ]
    return torch.stack(losses).mean()


def _takes_row_mask(model: Model) -> bool:
    """Return whether a head takes a ``row_mask``, and ignores the rows that fill a batch in its loss."""
    return bool(getattr(unwrap(model), "accepts_row_mask", False))


def _loss_of_numbers(model: Model) -> Loss | None:
    """Return the loss of a head for float labels, as a sum over rows, or None if it is unknown."""
    model = unwrap(model)
    if model.config.problem_type in ("regression", "multi_label_classification"):
        return text_loss(model.config)
    reads_lists = getattr(model, "reads", "text") == "passages"
    return (lambda logits, labels: list_loss(logits, labels).sum()) if reads_lists else None
