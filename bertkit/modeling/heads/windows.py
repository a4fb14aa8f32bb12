"""Rows that are read in several windows, on each of which a model's head runs.

A batch has ``input_ids`` and the like of shape (rows, windows, tokens). A window that a row lacks is a single token, as
`several_collator` makes it, and is not computed. All windows of a row are in one micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch.nn import functional
from transformers.utils import ModelOutput

from bertkit.errors import ModelError
from bertkit.hardware.memory import derive, on_host, where
from bertkit.modeling.info import Config, Model
from bertkit.modeling.load import read_config

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

CLASS_ENDING = "ForWindowClassification"  # of the classes of `bertkit.modeling.heads.window_pooling`
_TOKENS = 2**14  # that are computed at once without gradients; a batch has more only if a single row has


@dataclass
class WindowLogits(ModelOutput):  # type: ignore[misc]
    """Outputs of a model that runs on each window."""

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    """Logits of shape (rows, windows, labels); NaN where a row lacks a window."""
    windows: torch.Tensor | None = None
    """The number of windows of each row, shape (rows,)."""


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


def _forward(
    forward: Callable[..., ModelOutput], config: Config, *, labels: torch.Tensor | None = None, **inputs: torch.Tensor
) -> WindowLogits:
    mask = inputs["attention_mask"]
    found = run_windows(lambda **flat: forward(**flat).logits, inputs).float()
    logits = found.new_full((*mask.shape[:2], found.shape[-1]), torch.nan).index_put(where(mask, find_windows), found)
    windows = derive(mask, lambda mask: find_windows(mask).sum(dim=1))
    loss = None
    if labels is not None:
        loss = sum_over_windows(text_loss(config), logits, labels, windows) / len(logits)
    return WindowLogits(loss=loss, logits=logits, windows=windows)


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
        windows: the number of windows of each row, shape (rows,).
    """
    # rows with equally many windows go together: `loss` may be any sum, so weights of rows cannot be put into it
    total = logits.new_zeros(())
    for count in torch.unique(on_host(windows)).tolist():
        (rows,) = where(windows, partial(torch.eq, other=count))
        repeated = labels[rows].repeat_interleave(count, dim=0)
        total = total + loss(logits[rows, :count].flatten(0, 1), repeated) / count
    return total


def run_windows(run: Callable[..., torch.Tensor], inputs: Mapping[str, torch.Tensor | None]) -> torch.Tensor:
    """Run a model on the windows that rows have, as a batch of texts: (windows of all rows, ...)."""
    mask = inputs["attention_mask"]
    assert mask is not None
    present = where(mask, find_windows)
    flat = {name: values[present] for name, values in inputs.items() if values is not None}
    count = len(flat["input_ids"]) if torch.is_grad_enabled() else max(1, _TOKENS // mask.shape[-1])
    chunks = zip(*(torch.split(values, count) for values in flat.values()), strict=True)
    return torch.cat([run(**dict(zip(flat, chunk, strict=True))) for chunk in chunks])


def text_loss(config: Config) -> Loss:
    """Return the loss of transformers' heads for texts as a sum over rows."""
    if config.problem_type == "regression":
        return lambda logits, labels: functional.mse_loss(logits.squeeze(-1), labels, reduction="sum")
    if config.problem_type == "multi_label_classification":  # a mean over labels
        return lambda logits, labels: (
            functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum") / labels.shape[-1]
        )
    return lambda logits, labels: functional.cross_entropy(logits, labels, reduction="sum")
