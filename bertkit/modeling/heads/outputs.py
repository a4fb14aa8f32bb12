"""Changes to the head of a model: its precision, and choices that a row lacks."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from bertkit.modeling.info import Model, Output, info_of
from bertkit.tokens.features import Batch

if TYPE_CHECKING:
    import torch


def compute_head_in_fp32(model: Model) -> None:
    """Compute the linear layers of the head, and of the pooler before it, in float32 under autocast too.

    They cost next to nothing. In bf16, two logits that differ by less than a hundredth would be equal, and the pooler
    alone would make the scores of MiniLM on STS-B 2.6 times as inexact as the encoder makes them.
    """
    import torch

    def in_fp32(layer: torch.nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast(inputs.device.type, enabled=False):
            return torch.nn.functional.linear(inputs.float(), layer.weight, layer.bias)

    modules = [module for name, module in model.named_children() if name != model.base_model_prefix]
    modules += [module for name, module in model.base_model.named_children() if name == "pooler"]
    for module in modules:
        for layer in module.modules():
            if type(layer) is torch.nn.Linear:
                layer.forward = functools.partial(in_fp32, layer)  # type: ignore[method-assign]


def mask_missing_choices(model: Model) -> None:
    """Take the choices that a row lacks out of a model's softmax and loss.

    A collator pads such a row with choices of one token. A row of another length would otherwise have other
    probabilities in a batch than alone.
    """
    info_of(model).reads = "choices"
    model.register_forward_hook(_mask_missing, with_kwargs=True)


def _mask_missing(model: torch.nn.Module, arguments: object, inputs: Batch, output: Output) -> Output:
    import torch
    from torch.nn import functional

    # A choice that a row lacks is a single token, and real ones have special tokens besides their text. The model has
    # computed its loss over both kinds, so it is computed anew.
    missing = inputs["attention_mask"].sum(dim=-1) == 1  # (rows, choices), as the logits
    logits = output.logits.float()
    output.logits = logits.masked_fill(missing, torch.finfo(logits.dtype).min)
    if output.loss is not None:
        output.loss = functional.cross_entropy(output.logits, inputs["labels"])
    return output
