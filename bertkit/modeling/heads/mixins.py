"""Mixins for models with a head, whose rows lack choices, are lists of passages, or have several windows.

A batch of windows has ``input_ids`` and the like of shape (rows, windows, tokens). A window that a row lacks is a
single token, as `multi_text_collator` makes it, and is not computed. All windows of a row are in one micro-batch.

The windows of a batch are found by their index: in two rows with two and one, these are 0, 1 and 2 of 0 to 3. If shapes
must be few, as many are computed as the batch has rows: 0, 1, 2, 4, 4 of five rows. The results for 4 are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bertkit.errors import ModelError
from bertkit.hardware.tensors import derive, on_host
from bertkit.modeling.checkpoint import read_json_object
from bertkit.modeling.info import Config, Model
from bertkit.tokens.features import IGNORE_INDEX, Tensors

Loss = Callable[[Tensor, Tensor], Tensor]

# Activations of a reranker's logit, by the names that the CrossEncoder of sentence-transformers writes.
PROBABILITY, LOGIT = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"

# Tokens that are computed at once without gradients; a batch has more only if a single row has.
_TOKENS = 2**14


@cache
def extend_class(model_class: type, mixin: type) -> type:
    """Return a subclass of the same name in which the methods of a mixin come first.

    The name must stay: transformers writes it into config.json, chooses the loss by it, and renames old weights by it.
    ``extended_class`` of the subclass is the class without the mixin.
    """
    names = {"__module__": model_class.__module__, "extended_class": model_class}
    return type(model_class.__name__, (mixin, model_class), names)


def extend_model(model: Model, mixin: type) -> None:
    """Add a mixin to the class of a loaded model, which may be one of transformers or one for inference only."""
    model.__class__ = extend_class(type(model), mixin)  # type: ignore[arg-type]


class MaskedChoices:
    """Mixin that removes the choices that a row lacks from a model's softmax and loss.

    A collator pads such a row with choices of one token. Otherwise, a row would have other probabilities in a batch
    with longer rows than alone.
    """

    reads = "choices"

    def forward(self, **inputs: Tensor) -> Tensors:
        """Compute ``logits`` (rows, choices), the lowest number for a missing choice, and the loss over others."""
        output: Tensors = super().forward(**inputs)  # type: ignore[misc]
        # A choice that a row lacks is a single token, and real ones have special tokens besides their text. The model
        # has computed its loss over both, so it is computed again.
        missing = inputs["attention_mask"].sum(dim=-1) == 1  # (rows, choices)
        logits = output["logits"].float()
        output["logits"] = logits.masked_fill(missing, torch.finfo(logits.dtype).min)
        if output.get("loss") is not None:
            output["loss"] = functional.cross_entropy(output["logits"], inputs["labels"])
        return output


class Passages:
    """Mixin with which a model with one output reads single passages or a list of them per query."""

    reads = "passages"
    score_activation = LOGIT
    """Whether a score is a `PROBABILITY` or a `LOGIT`."""

    def forward(self, labels: Tensor | None = None, **inputs: Tensor) -> Tensors:
        """Score passages, (rows, tokens), or lists of them, (queries, passages, tokens).

        A passage that a list lacks is a single token, as `padding_collator` makes it. Its logit is the lowest number.

        Returns:
            ``logits``, the loss if there are labels, and ``probabilities`` if scores are such.
        """
        run = super().forward  # type: ignore[misc]
        mask = inputs["attention_mask"]
        if mask.dim() == 2:
            output: Tensors = run(**inputs, labels=labels)
            logits = output["logits"] = output["logits"].float()
        else:
            output = run(**{name: values.flatten(0, 1) for name, values in inputs.items()})
            missing = mask.sum(dim=-1) == 1
            logits = output["logits"].float().view(missing.shape).masked_fill(missing, torch.finfo(torch.float32).min)
            output["logits"] = logits
            if labels is not None:
                output["loss"] = list_loss(logits, labels).mean()
        if self.score_activation == PROBABILITY:
            output["probabilities"] = logits.sigmoid()
        return output


class Windows:
    """Mixin that runs a head for single texts on each window of a row.

    The loss is the mean over rows of the mean over a row's windows: a long text weighs no more than a short one.
    """

    accepts_row_mask = True

    def forward(self, labels: Tensor | None = None, row_mask: Tensor | None = None, **inputs: Tensor) -> Tensors:
        """Compute ``logits`` (rows, windows, labels), NaN for missing windows, and the number of ``windows``."""
        run = super().forward  # type: ignore[misc]
        logits = run_windows(lambda **flat: run(**flat)["logits"], inputs, row_mask, torch.nan).float()
        windows = find_windows(inputs["attention_mask"]).sum(dim=1) * (1 if row_mask is None else row_mask)
        outputs = {"logits": logits, "windows": windows}
        if labels is not None:
            loss = text_loss(self.config)  # type: ignore[attr-defined]
            outputs["loss"] = sum_over_windows(loss, logits, labels, windows) / (windows > 0).sum()
        return outputs


def read_passage_lists(model: Model, activation: str) -> None:
    """Make a model with one output read lists too, and return ``probabilities`` if its scores are such."""
    extend_model(model, Passages)
    model.score_activation = activation


def set_activation(config: Config, name: str) -> None:
    """Write into a config how a logit becomes a score, under the names that sentence-transformers and vLLM read."""
    config.sentence_transformers = {"activation_fn": name}
    config.__dict__.pop("sbert_ce_default_activation_function", None)


def find_activation(folder: Path) -> str:
    """Find how a logit becomes a score, as sentence-transformers 6 does: by the sigmoid unless a folder names another.

    Raises:
        ModelError: If the activation is neither the sigmoid nor the identity.
    """
    settings, config = folder / "config_sentence_transformers.json", read_json_object(folder / "config.json")
    name = read_json_object(settings).get("activation_fn") if settings.is_file() else None
    name = name or (config.get("sentence_transformers") or {}).get("activation_fn")
    name = name or config.get("sbert_ce_default_activation_function") or PROBABILITY
    activation = {"Sigmoid": PROBABILITY, "Identity": LOGIT}.get(str(name).rpartition(".")[2])
    if activation is None:
        raise ModelError(f"its scores are made by {name}", "name a reranker with a sigmoid or none", file=folder)
    return activation


def list_loss(logits: Tensor, relevance: Tensor) -> Tensor:
    """Compute the cross entropy of a softmax over each list, shape (queries,); 0 if nothing is relevant.

    The target is each passage's share of the list's relevance. With one relevant passage, this is the localized
    contrastive loss (Gao et al. 2021). Otherwise, it is the loss of ListNet (Cao et al. 2007) with shares
    instead of the softmax of gold values.

    Args:
        logits: Logits of passages (queries, passages), the lowest number for a missing passage.
        relevance: Relevance of passages, at least 0, of the same shape; 0 for a missing passage.

    Examples:
        The first of two passages is relevant, both are, or none is.

        >>> relevance = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
        >>> [round(loss, 3) for loss in list_loss(torch.tensor([[2.0, 0.0]]).expand(3, 2), relevance).abs().tolist()]
        [0.127, 1.127, 0.0]
    """
    shares = relevance / relevance.sum(dim=-1, keepdim=True).clamp(min=1e-9)
    # The logarithm may be minus infinity, and 0 times that is not a number, so `where` drops other passages.
    return -(shares * logits.log_softmax(dim=-1).where(relevance > 0, 0.0)).sum(dim=-1)


def find_windows(attention_mask: Tensor) -> Tensor:
    """Return which windows a batch has, (rows, windows): all windows with more than one token.

    >>> two, one = [[1, 1, 1, 1], [1, 1, 1, 0]], [[1, 1, 1, 0], [1, 0, 0, 0]]  # windows of two texts
    >>> find_windows(torch.tensor([two, one])).tolist()
    [[True, True], [True, False]]
    """
    return attention_mask.sum(dim=-1) > 1


def sum_over_windows(loss: Loss, logits: Tensor, labels: Tensor, windows: Tensor) -> Tensor:
    """Sum over rows the mean of a row's losses, one per window.

    Args:
        loss: Computes the sum of the losses of logits (n, labels) and n labels.
        logits: Logits of windows, (rows, windows, labels).
        labels: Gold labels, (rows,) or (rows, labels).
        windows: Number of windows of each row, (rows,); 0 for a row that only fills the batch.

    Examples:
        The two windows of the first row have squared errors of 1 and 9, and the only window of the second has 1. The
        sum of the means is 5 + 1.

        >>> logits, gold = torch.tensor([[[1.0], [3.0]], [[5.0], [torch.nan]]]), torch.tensor([0.0, 4.0])
        >>> squared = lambda logits, gold: (logits[:, 0] - gold).square().sum()
        >>> sum_over_windows(squared, logits, gold, torch.tensor([2, 1])).item()
        6.0
    """
    # Rows with equally many windows go together: `loss` may be any sum, so weights of rows cannot be put into it.
    max_windows, total = logits.shape[1], logits.new_zeros(())
    repeated = labels.repeat_interleave(max_windows, dim=0)
    index = torch.arange(max_windows, device=logits.device)
    for count in range(1, max_windows + 1):
        is_summed = (windows == count)[:, None] & (index < count)
        total = total + sum_over_rows(loss, logits.flatten(0, 1), repeated, is_summed.flatten()) / count
    return total


def sum_over_rows(loss: Loss, logits: Tensor, labels: Tensor, is_row: Tensor) -> Tensor:
    """Sum a loss, itself a sum that skips labels by their value, over some rows; no gradient reaches the others."""
    is_row = is_row.view(-1, *[1] * (labels.dim() - 1))
    if not labels.is_floating_point():
        return loss(logits, labels.where(is_row, IGNORE_INDEX))
    # All others get the same logits and labels, so each adds the same loss.
    logits, labels = logits.where(is_row.view(-1, *[1] * (logits.dim() - 1)), 0.0), labels.where(is_row, 0.0)
    row_loss = loss(torch.zeros_like(logits[:1]), torch.zeros_like(labels[:1]))
    return loss(logits, labels) - (~is_row).sum() * row_loss


def run_windows(
    run: Callable[..., Any], inputs: Mapping[str, Tensor | None], row_mask: Tensor | None, absent: float
) -> Tensor:
    """Run a model on the windows that rows have, as a batch of texts: (rows, windows, ...).

    The values of a missing window are `absent`.
    """
    mask = inputs["attention_mask"]
    assert mask is not None
    is_window, missing = find_windows(on_host(mask)), 0
    if row_mask is not None:
        is_window &= on_host(row_mask)[:, None]
        missing = max(0, max(is_window.shape) - int(is_window.sum()))
    present = is_window.flatten().nonzero()[:, 0]
    index = torch.cat([present, present.new_full((missing,), is_window.numel())])
    picked = index.clamp(max=is_window.numel() - 1)

    def pick(values: Tensor) -> Tensor:
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
