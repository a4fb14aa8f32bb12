"""Heads over choices, of which rows may have different numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bertkit.modeling.info import Model, info_of
from bertkit.tokens.features import Batch, Tensors

if TYPE_CHECKING:
    import torch


def mask_missing_choices(model: Model) -> None:
    """Take the choices that a row lacks out of a model's softmax and loss.

    A collator pads such a row with choices of one token. A row of another length would otherwise have other
    probabilities in a batch than alone.
    """
    info_of(model).reads = "choices"
    model.register_forward_hook(_mask_missing, with_kwargs=True)


def _mask_missing(model: torch.nn.Module, arguments: object, inputs: Batch, output: Tensors) -> Tensors:
    import torch
    from torch.nn import functional

    # A choice that a row lacks is a single token, and real ones have special tokens besides their text. The model has
    # computed its loss over both kinds, so it is computed anew.
    missing = inputs["attention_mask"].sum(dim=-1) == 1  # (rows, choices), as the logits
    logits = output["logits"].float()
    output["logits"] = logits.masked_fill(missing, torch.finfo(logits.dtype).min)
    if output.get("loss") is not None:
        output["loss"] = functional.cross_entropy(output["logits"], inputs["labels"])
    return output
