"""Forward passes over batches with static shapes (`bertkit.tokens.static_shapes`); the loss ignores filler rows."""

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
    """Shapes of a model's batches on a device that compiles one graph per shape.

    Training and evaluations share this object, so evaluations compile few additional graphs.
    """

    widths: tuple[int, ...] = ()
    """Widths of batches in ascending order, or empty before the first batch."""
    texts: int = 1
    """Number of texts per row."""


_shapes: WeakKeyDictionary[Model, StaticShapes] = WeakKeyDictionary()


def get_static_shapes(model: Model) -> StaticShapes:
    """Return the shapes of a model's batches so far."""
    return _shapes.setdefault(unwrap(model), StaticShapes())


@contextmanager
def always_mask() -> Iterator[None]:
    """Pass the attention mask to every forward pass inside the `with` block.

    Otherwise, transformers reads the mask, and drops it if the batch has no padding. Reading would wait for the device,
    and XLA would compile two graphs per shape.
    """
    # A slow import, which predictions on a CPU do not need.
    from transformers import AttentionMaskInterface

    make_mask = AttentionMaskInterface()["sdpa"]

    def mask(*args: object, **kwargs: object) -> Any:
        kwargs |= {"allow_is_bidirectional_skip": False, "allow_is_causal_skip": False}
        return make_mask(*args, **kwargs)

    AttentionMaskInterface.register("sdpa", mask)
    try:
        yield
    finally:
        AttentionMaskInterface.register("sdpa", make_mask)


def get_texts_per_row(model: Model, features: Features) -> Texts:
    """Return the number of texts per row in batches with static shapes; it never decreases from batch to batch."""
    shapes, count = get_static_shapes(model), int((get_lengths(features) // get_max_lengths(features)).max())
    if count > 1:
        shapes.texts = count = max(count, shapes.texts)
    return Texts(count, are_windows=getattr(model, "reads", "text") in ("text", "windows"))


def drop_fillers(model: Model, batch: Batch) -> Batch:
    """Remove the filler rows of a batch, unless the loss can ignore them.

    It cannot if labels are floats and a custom task family computes the loss, which bertkit does not know.
    """
    labels = batch.get("labels")
    # Integer labels of filler rows are `IGNORE_INDEX`.
    is_skipped = labels is None or not labels.is_floating_point()
    if ROW_MASK not in batch or is_skipped or _takes_row_mask(model) or _get_float_loss(model) is not None:
        return batch
    return {name: values[batch[ROW_MASK]] for name, values in batch.items() if name != ROW_MASK}


def run_static_batch(model: Model, batch: Batch) -> Tensors:
    """Run a model on a batch; the loss is the mean over its rows or labels without filler rows."""
    inputs = {name: values for name, values in batch.items() if name != ROW_MASK}
    is_row = batch.get(ROW_MASK)
    takes_mask = is_row is not None and _takes_row_mask(model)
    outputs: Tensors = model(**inputs, **({"row_mask": is_row} if takes_mask else {}))
    if is_row is None or takes_mask:
        return outputs
    labels = inputs.get("labels")
    if "start_positions" in inputs:
        outputs["loss"] = _compute_answer_loss(outputs, inputs)
    if labels is not None and labels.is_floating_point():
        loss = _get_float_loss(model)
        assert loss is not None  # checked by `drop_fillers`
        outputs["loss"] = sum_over_rows(loss, outputs["logits"].float(), labels, is_row) / is_row.sum()
    return outputs


def _compute_answer_loss(outputs: Tensors, inputs: Batch) -> Tensor:
    """Compute the loss of transformers' heads for answers, a softmax over tokens and padding.

    The loss depends on the width of the batch, so exclude the tokens that a batch of variable width would not have.
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
    """Return whether a head takes a ``row_mask``, with which its loss ignores filler rows."""
    return bool(getattr(unwrap(model), "accepts_row_mask", False))


def _get_float_loss(model: Model) -> Loss | None:
    """Return a head's loss for float labels, as a sum over rows, or None if it is unknown."""
    model = unwrap(model)
    if model.config.problem_type in ("regression", "multi_label_classification"):
        return text_loss(model.config)
    reads_lists = getattr(model, "reads", "text") == "passages"
    return (lambda logits, labels: list_loss(logits, labels).sum()) if reads_lists else None
