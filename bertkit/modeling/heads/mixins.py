"""Mixins for models with a head over rows with several texts: choices, lists of passages, or windows.

A batch of windows has tensors (rows, windows, tokens). `multi_text_collator` pads a row that has fewer windows with
windows of a single token. These are not computed: `run_windows` gathers the real windows as a batch of texts.

With static shapes, `run_windows` computes at least as many windows as the batch has rows. In a batch of 4 rows and 2
windows per row, the first row has windows 0 and 1, the second only window 2, and two filler rows have none. Indices 0,
1, 2 and 8 are computed; the result of index 8, one past the last window, is dropped.
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
from bertkit.modeling.info import Config, Model, ModelAttributes
from bertkit.tokens.features import IGNORE_INDEX, Tensors

Loss = Callable[[Tensor, Tensor], Tensor]

# Activations of a reranker's logit, under the names that the CrossEncoder of sentence-transformers writes.
PROBABILITY, LOGIT = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"

# Tokens per chunk of windows without gradients, unless a single window has more.
_MAX_TOKENS = 2**14


@cache
def extend_class(model_class: type, mixin: type) -> type:
    """Build a subclass with the same name, in which the methods of a mixin come first.

    The name must not change, because transformers writes it into config.json, and uses it to choose the loss and to
    rename old weights. The attribute ``extended_class`` is the class without the mixin.
    """
    names = {"__module__": model_class.__module__, "extended_class": model_class}
    return type(model_class.__name__, (mixin, model_class), names)


def extend_model(model: Model, mixin: type) -> None:
    """Add a mixin to the class of a loaded model of transformers or an `InferenceModel`."""
    model.__class__ = extend_class(type(model), mixin)  # type: ignore[arg-type]


class MaskedChoices(ModelAttributes):
    """Mixin that excludes missing choices from a model's softmax and loss.

    A collator pads rows with choices of one token. Without the mixin, the probabilities of a row would depend on the
    number of choices of the other rows in its batch.
    """

    reads = "choices"

    def forward(self, **inputs: Tensor) -> Tensors:
        """Compute ``logits`` (rows, choices), the lowest number for missing choices, and the loss over the others."""
        output: Tensors = super().forward(**inputs)
        # A missing choice is a single token; real choices have special tokens besides their text. Replace the model's
        # loss, which includes missing choices.
        missing = inputs["attention_mask"].sum(dim=-1) == 1  # (rows, choices)
        logits = output["logits"].float()
        output["logits"] = logits.masked_fill(missing, torch.finfo(logits.dtype).min)
        if output.get("loss") is not None:
            output["loss"] = functional.cross_entropy(output["logits"], inputs["labels"])
        return output


class Passages(ModelAttributes):
    """Mixin with which a model with one output reads single passages, or a list of passages per query."""

    reads = "passages"
    score_activation = LOGIT
    """`PROBABILITY` or `LOGIT`, the kind of scores."""

    def forward(self, labels: Tensor | None = None, **inputs: Tensor) -> Tensors:
        """Score passages (rows, tokens), or lists of passages (queries, passages, tokens).

        `padding_collator` pads lists with passages of a single token. Their logit is the lowest number.

        Returns:
            ``logits``, the loss if there are labels, and ``probabilities`` if the activation is `PROBABILITY`.
        """
        run = super().forward
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


class Windows(ModelAttributes):
    """Mixin that runs a head for single texts on each window of a row.

    The loss is the mean over rows of the mean over a row's windows, so a long text weighs no more than a short one.
    """

    accepts_row_mask = True

    def forward(self, labels: Tensor | None = None, row_mask: Tensor | None = None, **inputs: Tensor) -> Tensors:
        """Compute ``logits`` (rows, windows, labels), NaN for missing windows, and the number of ``windows``."""
        run = super().forward
        logits = run_windows(lambda **flat: run(**flat)["logits"], inputs, row_mask, torch.nan).float()
        windows = find_windows(inputs["attention_mask"]).sum(dim=1) * (1 if row_mask is None else row_mask)
        outputs = {"logits": logits, "windows": windows}
        if labels is not None:
            loss = text_loss(self.config)
            outputs["loss"] = sum_over_windows(loss, logits, labels, windows) / (windows > 0).sum()
        return outputs


def enable_passage_lists(model: Model, activation: str) -> None:
    """Make a model with one output read lists of passages too, with `PROBABILITY` or `LOGIT` as scores."""
    extend_model(model, Passages)
    model.score_activation = activation


def set_activation(config: Config, name: str) -> None:
    """Write the activation of a reranker into its config, in the format of sentence-transformers and vLLM."""
    config.sentence_transformers = {"activation_fn": name}
    config.__dict__.pop("sbert_ce_default_activation_function", None)


def find_activation(folder: Path) -> str:
    """Return the activation of a reranker as sentence-transformers 6 does; the default is the sigmoid.

    Raises:
        ModelError: If the activation is neither the sigmoid nor the identity.
    """
    settings, config = folder / "config_sentence_transformers.json", read_json_object(folder / "config.json")
    name = read_json_object(settings).get("activation_fn") if settings.is_file() else None
    name = name or (config.get("sentence_transformers") or {}).get("activation_fn")
    name = name or config.get("sbert_ce_default_activation_function") or PROBABILITY
    activation = {"Sigmoid": PROBABILITY, "Identity": LOGIT}.get(str(name).rpartition(".")[2])
    if activation is None:
        problem = f"the activation {name} of its scores is not supported"
        raise ModelError(problem, "name a reranker with a sigmoid or without an activation", file=folder)
    return activation


def list_loss(logits: Tensor, relevance: Tensor) -> Tensor:
    """Compute the cross-entropy of a softmax over each list; 0 if no passage is relevant.

    The target probability of a passage is its fraction of the list's total relevance. With one relevant passage, this
    is the localized contrastive loss (Gao et al. 2021). Otherwise, it is the loss of ListNet (Cao et al. 2007), except
    that ListNet's targets are a softmax of the gold values.

    Args:
        logits: Logits of passages, the lowest number for missing passages. Shape: (queries, passages).
        relevance: Relevance of passages, at least 0, and 0 for missing passages. Shape: (queries, passages).

    Returns:
        the losses. Shape: (queries,).

    Examples:
        Relevant are: the first of two passages, both passages, no passage.

        >>> relevance = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
        >>> [round(loss, 3) for loss in list_loss(torch.tensor([[2.0, 0.0]]).expand(3, 2), relevance).abs().tolist()]
        [0.127, 1.127, 0.0]
    """
    targets = relevance / relevance.sum(dim=-1, keepdim=True).clamp(min=1e-9)
    # The log-probability of a missing passage can be -inf, and 0 * -inf is NaN, so replace it by 0.
    return -(targets * logits.log_softmax(dim=-1).where(relevance > 0, 0.0)).sum(dim=-1)


def find_windows(attention_mask: Tensor) -> Tensor:
    """Return which windows are real, i.e. have more than one token. Shape: (rows, windows).

    >>> two, one = [[1, 1, 1, 1], [1, 1, 1, 0]], [[1, 1, 1, 0], [1, 0, 0, 0]]  # windows of two texts
    >>> find_windows(torch.tensor([two, one])).tolist()
    [[True, True], [True, False]]
    """
    return attention_mask.sum(dim=-1) > 1


def sum_over_windows(loss: Loss, logits: Tensor, labels: Tensor, windows: Tensor) -> Tensor:
    """Sum the mean losses of the rows, each a mean over the row's windows.

    Args:
        loss: Function that sums the losses of logits (n, labels) and n gold labels.
        logits: Logits of windows. Shape: (rows, windows, labels).
        labels: Gold labels. Shape: (rows,) or (rows, labels).
        windows: Number of windows per row, 0 for filler rows. Shape: (rows,).

    Examples:
        The two windows of the first row have squared errors of 1 and 9, and the only window of the second has 1. The
        sum of the means is 5 + 1.

        >>> logits, gold = torch.tensor([[[1.0], [3.0]], [[5.0], [torch.nan]]]), torch.tensor([0.0, 4.0])
        >>> squared = lambda logits, gold: (logits[:, 0] - gold).square().sum()
        >>> sum_over_windows(squared, logits, gold, torch.tensor([2, 1])).item()
        6.0
    """
    # `loss` takes no weights, so sum over the rows with the same number of windows, and divide by this number.
    max_windows, total = logits.shape[1], logits.new_zeros(())
    repeated_labels = labels.repeat_interleave(max_windows, dim=0)
    index = torch.arange(max_windows, device=logits.device)
    for count in range(1, max_windows + 1):
        is_summed = (windows == count)[:, None] & (index < count)
        total = total + sum_over_rows(loss, logits.flatten(0, 1), repeated_labels, is_summed.flatten()) / count
    return total


def sum_over_rows(loss: Loss, logits: Tensor, labels: Tensor, is_row: Tensor) -> Tensor:
    """Sum the losses of the rows for which `is_row` is true; other rows get no gradient.

    Args:
        loss: Function that sums the losses of logits and labels, and skips labels of the value `IGNORE_INDEX`.
        logits: Shape: (rows, labels).
        labels: Gold labels. Shape: (rows,) or (rows, labels).
        is_row: Shape: (rows,).
    """
    is_row = is_row.view(-1, *[1] * (labels.dim() - 1))
    if not labels.is_floating_point():
        return loss(logits, labels.where(is_row, IGNORE_INDEX))
    # Give all other rows the logits and labels 0, and subtract the loss that they add.
    logits, labels = logits.where(is_row.view(-1, *[1] * (logits.dim() - 1)), 0.0), labels.where(is_row, 0.0)
    row_loss = loss(torch.zeros_like(logits[:1]), torch.zeros_like(labels[:1]))
    return loss(logits, labels) - (~is_row).sum() * row_loss


def run_windows(
    run: Callable[..., Any], inputs: Mapping[str, Tensor | None], row_mask: Tensor | None, absent: float
) -> Tensor:
    """Run a model on the real windows of a batch of rows, as a batch of texts.

    Here, the model returns the first token of each of three windows in two rows:

    >>> ids = torch.tensor([[[1, 2, 3, 4], [1, 5, 6, 0]], [[1, 7, 0, 0], [0, 0, 0, 0]]])
    >>> mask = torch.tensor([[[1, 1, 1, 1], [1, 1, 1, 0]], [[1, 1, 0, 0], [1, 0, 0, 0]]])
    >>> run = lambda input_ids, attention_mask: input_ids[:, 1]
    >>> run_windows(run, {"input_ids": ids, "attention_mask": mask}, None, absent=-1).tolist()
    [[2, 5], [7, -1]]

    Args:
        run: Function from tensors (texts, tokens) to outputs (texts, ...).
        inputs: Tensors of the batch by name. Shape: (rows, windows, tokens).
        row_mask: False for filler rows of a batch with static shapes, or None. Shape: (rows,).
        absent: Value of the outputs of missing windows.

    Returns:
        the outputs. Shape: (rows, windows, ...).
    """
    # 1. Find the indices of the real windows among rows * windows.
    mask = inputs["attention_mask"]
    assert mask is not None
    is_window, num_fillers = find_windows(on_host(mask)), 0
    if row_mask is not None:
        is_window &= on_host(row_mask)[:, None]
        num_fillers = max(0, max(is_window.shape) - int(is_window.sum()))
    size = is_window.numel()
    real = is_window.flatten().nonzero()[:, 0]
    indices = torch.cat([real, real.new_full((num_fillers,), size)])
    sources = indices.clamp(max=size - 1)

    # 2. Gather them, and run the model on chunks.
    def gather(values: Tensor) -> Tensor:
        return values.flatten(0, 1)[sources.to(values.device, non_blocking=True)]

    texts = {name: derive(values, gather) for name, values in inputs.items() if values is not None}
    chunk_size = len(indices) if torch.is_grad_enabled() else max(1, _MAX_TOKENS // mask.shape[-1])
    chunks = zip(*(torch.split(values, chunk_size) for values in texts.values()), strict=True)
    states = torch.cat([run(**dict(zip(texts, chunk, strict=True))) for chunk in chunks])

    # 3. Scatter the outputs to (rows, windows, ...). The last slot takes the outputs of fillers.
    indices = indices.to(states.device, non_blocking=True)
    outputs = states.new_full((size + 1, *states.shape[1:]), absent).index_put((indices,), states)
    return outputs[:-1].view(*is_window.shape, *states.shape[1:])


def text_loss(config: Config) -> Loss:
    """Return the loss of transformers' heads for texts, as a sum over rows instead of a mean."""
    if config.problem_type == "regression":
        return lambda logits, labels: functional.mse_loss(logits.squeeze(-1), labels, reduction="sum")
    # The loss of a row is a mean over labels.
    if config.problem_type == "multi_label_classification":
        return lambda logits, labels: (
            functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum") / labels.shape[-1]
        )
    return lambda logits, labels: functional.cross_entropy(logits, labels, reduction="sum")
