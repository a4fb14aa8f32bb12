"""Rows that are read in several windows, on each of which a model's head runs.

A batch has ``input_ids`` and the like of shape (rows, windows, tokens). A window that a row lacks is a single token, as
`several_collator` makes it, and is not computed. All windows of a row are in one micro-batch.

The windows that a batch has are found by their index among all: of two rows with two and one, 0, 1 and 2 of 0 to 3.
Where shapes are few, as many are computed as the batch has rows: 0, 1, 2, 4, 4 of five rows, of which 4 is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from bertkit.errors import ModelError
from bertkit.hardware.memory import derive, on_host
from bertkit.modeling.checkpoint import read_config
from bertkit.modeling.info import Config, Model, info_of
from bertkit.tokens.features import IGNORED, Tensors

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

# of the classes of `bertkit.modeling.heads.window_pooling`
CLASS_ENDING = "ForWindowClassification"
# that are computed at once without gradients; a batch has more only if a single row has
_TOKENS = 2**14


def refuse_window_pooling(folder: Path) -> None:
    """Refuse a checkpoint whose trained head reads the vectors of windows, where another one is to be run.

    Raises:
        ModelError: it is one.
    """
    if (read_config(folder).get("architectures") or [""])[0].endswith(CLASS_ENDING):
        raise ModelError("its head reads the windows of a text", "--set options.long_text=hierarchical", file=folder)


def run_on_windows(model: Model) -> None:
    """Let a model with a head for single texts run on each window of a row.

    The loss is the mean over rows of the mean over a row's windows: a long text weighs no more than a short one.
    """
    model.forward = partial(_forward, model.forward, model.config)
    info_of(model).takes_row_mask = True


def _forward(
    forward: Callable[..., Any], config: Config, *, labels: torch.Tensor | None = None, **inputs: torch.Tensor
) -> Tensors:
    """Compute logits (rows, windows, labels), NaN where a row lacks a window, and the number of windows of each row."""
    row_mask = inputs.pop("row_mask", None)
    logits = run_windows(lambda **flat: forward(**flat)["logits"], inputs, row_mask, torch.nan).float()
    windows = find_windows(inputs["attention_mask"]).sum(dim=1) * (1 if row_mask is None else row_mask)
    outputs = {"logits": logits, "windows": windows}
    if labels is not None:
        outputs["loss"] = sum_over_windows(text_loss(config), logits, labels, windows) / (windows > 0).sum()
    return outputs


def find_windows(attention_mask: torch.Tensor) -> torch.Tensor:
    """Tell which windows a batch has, (rows, windows): all but those of a single token.

    >>> two, one = [[1, 1, 1, 1], [1, 1, 1, 0]], [[1, 1, 1, 0], [1, 0, 0, 0]]  # windows of two texts
    >>> find_windows(torch.tensor([two, one])).tolist()
    [[True, True], [True, False]]
    """
    return attention_mask.sum(dim=-1) > 1


def sum_over_windows(loss: Loss, logits: torch.Tensor, labels: torch.Tensor, windows: torch.Tensor) -> torch.Tensor:
    """Sum over rows the mean of a row's losses, one per window.

    Args:
        loss: the sum of the losses of logits (n, labels) and n labels.
        logits: of shape (rows, windows, labels).
        labels: of shape (rows,) or (rows, labels).
        windows: the number of windows of each row, shape (rows,); 0 for one that only fills the batch.
    """
    # rows with equally many windows go together: `loss` may be any sum, so weights of rows cannot be put into it
    most, total = logits.shape[1], logits.new_zeros(())
    repeated = labels.repeat_interleave(most, dim=0)
    number = torch.arange(most, device=logits.device)
    for count in range(1, most + 1):
        is_summed = (windows == count)[:, None] & (number < count)
        total = total + sum_over_rows(loss, logits.flatten(0, 1), repeated, is_summed.flatten()) / count
    return total


def sum_over_rows(loss: Loss, logits: torch.Tensor, labels: torch.Tensor, is_row: torch.Tensor) -> torch.Tensor:
    """Sum a loss, itself a sum that skips labels by their value, over some rows; no gradient reaches the others."""
    is_row = is_row.view(-1, *[1] * (labels.dim() - 1))
    if not labels.is_floating_point():
        return loss(logits, labels.where(is_row, IGNORED))
    # all others get the same logits and labels, so each adds as much as one of these alone
    logits, labels = logits.where(is_row.view(-1, *[1] * (logits.dim() - 1)), 0.0), labels.where(is_row, 0.0)
    of_one = loss(torch.zeros_like(logits[:1]), torch.zeros_like(labels[:1]))
    return loss(logits, labels) - (~is_row).sum() * of_one


def run_windows(
    run: Callable[..., Any], inputs: Mapping[str, torch.Tensor | None], row_mask: torch.Tensor | None, absent: float
) -> torch.Tensor:
    """Run a model on the windows that rows have, as a batch of texts: (rows, windows, ...).

    Where a row lacks a window, all values are `absent`.
    """
    mask = inputs["attention_mask"]
    assert mask is not None
    is_window, lacking = find_windows(on_host(mask)), 0
    if row_mask is not None:
        is_window &= on_host(row_mask)[:, None]
        lacking = max(0, max(is_window.shape) - int(is_window.sum()))
    present = is_window.flatten().nonzero()[:, 0]
    index = torch.cat([present, present.new_full((lacking,), is_window.numel())])
    picked = index.clamp(max=is_window.numel() - 1)

    def pick(values: torch.Tensor) -> torch.Tensor:
        return values.flatten(0, 1)[picked.to(values.device, non_blocking=True)]

    flat = {name: derive(values, pick) for name, values in inputs.items() if values is not None}
    count = len(index) if torch.is_grad_enabled() else max(1, _TOKENS // mask.shape[-1])
    chunks = zip(*(torch.split(values, count) for values in flat.values()), strict=True)
    states = torch.cat([run(**dict(zip(flat, chunk, strict=True))) for chunk in chunks])
    index = index.to(states.device, non_blocking=True)
    outputs = states.new_full((is_window.numel() + 1, *states.shape[1:]), absent).index_put((index,), states)
    return outputs[:-1].view(*is_window.shape, *states.shape[1:])


def text_loss(config: Config) -> Loss:
    """Return the loss of transformers' heads for texts as a sum over rows."""
    if config.problem_type == "regression":
        return lambda logits, labels: functional.mse_loss(logits.squeeze(-1), labels, reduction="sum")
    if config.problem_type == "multi_label_classification":  # a mean over labels
        return lambda logits, labels: (
            functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum") / labels.shape[-1]
        )
    return lambda logits, labels: functional.cross_entropy(logits, labels, reduction="sum")
