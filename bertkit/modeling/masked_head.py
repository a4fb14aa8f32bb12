"""Head of a masked language model, computed at masked positions only.

One token in seven is masked, and the head over a vocabulary of 30,000 tokens costs more than all layers of a small
encoder. BERT and ALBERT have a second head, which classifies pairs of segments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from bertkit.hardware.tensors import find_indices
from bertkit.modeling.info import Model, Output, unwrap
from bertkit.tokens.features import IGNORE_INDEX, STATIC_WIDTHS, Batch, Tensor, Tensors, static_width

LABEL_POSITIONS = "label_positions"
"""Key of a batch with static shapes: positions (rows, maximum) of labeled tokens, padded with the batch's width."""

# `rounded` rounds the number of masked tokens up to a multiple of this number.
_MASKED_STEP = 16
# exp overflows above about 709.
_MAX_EXPONENT = 700.0
# Outputs of BERT and of ALBERT.
_PAIR_LOGITS = ("seq_relationship_logits", "sop_logits")


def run_at_masked(model: Model, batch: Batch, *, rounded: bool = False) -> tuple[Output, Tensor]:
    """Run a masked language model, with its head at the labeled tokens only.

    Args:
        model: Model of transformers with a head over tokens.
        batch: Arguments of the model, and ``labels`` (rows, tokens), `IGNORE_INDEX` for tokens that are not predicted.
        rounded: Whether to round up the number of masked tokens; the labels of added tokens are `IGNORE_INDEX`. oneDNN
            compiles the products of the head for each number of tokens, and keeps 15 MB for each.

    Returns:
        the model's outputs with logits of shape (1, masked, vocabulary), and the labels of shape (masked,).
    """
    from torch.nn import functional

    labels = gather_labels(batch)
    padding = -len(labels) % _MASKED_STEP if rounded else 0

    # A hook between encoder and head turns (rows, tokens, width) into one long row, (1, masked, width). This works for
    # the head of any architecture that computes each token separately.
    def gather(module: object, inputs: object, outputs: Output) -> Output:
        states = gather_labeled(outputs["last_hidden_state"], batch)[None]
        outputs["last_hidden_state"] = functional.pad(states, (0, 0, 0, padding)) if padding else states
        return outputs

    with unwrap(model).base_model.register_forward_hook(gather):
        outputs = model(**{name: values for name, values in batch.items() if name not in ("labels", LABEL_POSITIONS)})
    return outputs, functional.pad(labels, (0, padding), value=IGNORE_INDEX) if padding else labels


def add_label_positions(batch: Tensors) -> Tensors:
    """Add `LABEL_POSITIONS` to a batch with static shapes, so that gathering tokens creates no new shape.

    For two rows of four tokens, labeled at positions 1 and 3 and at position 2, they are ``[[1, 3], [2, 4]]``. The
    second row is padded with 4, which is not a position.
    """
    if not STATIC_WIDTHS.get():
        return batch
    is_labeled = batch["labels"] != IGNORE_INDEX
    width = is_labeled.shape[1]
    # Usually a quarter of the width suffices, so most batches of one width have one shape.
    size = static_width(int(is_labeled.sum(dim=1).max()), (-(-width // 4), -(-width // 2), width))
    # A stable sort puts the labeled positions first and keeps their order.
    order = (~is_labeled).int().argsort(dim=1, stable=True)[:, :size]
    return {**batch, LABEL_POSITIONS: order.where(is_labeled.gather(1, order), width)}


def gather_labeled(values: Tensor, batch: Batch) -> Tensor:
    """Gather the values of the labeled tokens: (rows, tokens, ...) to (masked, ...).

    With `LABEL_POSITIONS`, gather the same number of tokens per row; some of them have no label.

    >>> import torch
    >>> labels = torch.tensor([[IGNORE_INDEX, 7, IGNORE_INDEX, 8], [IGNORE_INDEX, IGNORE_INDEX, 9, IGNORE_INDEX]])
    >>> values = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    >>> gather_labeled(values, {"labels": labels}).tolist()
    [2, 4, 7]
    >>> static = {"labels": labels, LABEL_POSITIONS: torch.tensor([[1, 3], [2, 4]])}
    >>> gather_labeled(values, static).tolist(), gather_labels(static).tolist()
    ([2, 4, 7, 8], [7, 8, 9, -100])
    """
    if LABEL_POSITIONS not in batch:
        return values[find_indices(batch["labels"], lambda labels: labels != IGNORE_INDEX)]
    index = batch[LABEL_POSITIONS].clamp(max=values.shape[1] - 1)
    index = index.view(*index.shape, *[1] * (values.dim() - 2)).expand(-1, -1, *values.shape[2:])
    return values.gather(1, index).flatten(0, 1)


def scatter_labeled(values: Tensor, batch: Batch, into: Tensor) -> Tensor:
    """Return `into` (rows, tokens) with values (masked,) at the labeled tokens, the inverse of `gather_labeled`."""
    if LABEL_POSITIONS not in batch:
        return into.masked_scatter(batch["labels"] != IGNORE_INDEX, values)
    positions = batch[LABEL_POSITIONS]
    wider = into.new_zeros(len(into), into.shape[1] + 1)
    wider[:, :-1] = into
    # The padding of `LABEL_POSITIONS` points to the last column, which is dropped.
    return wider.scatter(1, positions, values.view(positions.shape))[:, : into.shape[1]]


def gather_labels(batch: Batch) -> Tensor:
    """Return the labels of the tokens that `gather_labeled` gathers. Shape: (masked,)."""
    labels = gather_labeled(batch["labels"], batch)
    if LABEL_POSITIONS not in batch:
        return labels
    return labels.where(batch[LABEL_POSITIONS].flatten() < batch["labels"].shape[1], IGNORE_INDEX)


def sum_cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the sum of the cross-entropies in nats, or 0 if there are no labels.

    >>> import torch
    >>> logits = torch.tensor([[1, 0.5, 4, 2, 0, 1.5]])  # the cat sat on mat dog
    >>> round(sum_cross_entropies(logits, torch.tensor([2])).item(), 4)
    0.2744
    """
    from torch.nn import functional

    return functional.cross_entropy(logits.float().flatten(0, -2), labels.flatten(), reduction="sum")


def sum_masked_losses(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Sum the losses (``mlm``), masked tokens (``masked``) and correct predictions (``found``) on the device."""
    correct = (logits.flatten(0, -2).argmax(-1) == labels).sum()
    return {"mlm": sum_cross_entropies(logits, labels), "masked": (labels != IGNORE_INDEX).sum(), "found": correct}


def read_scalars(scalars: Mapping[str, Tensor]) -> dict[str, float]:
    """Copy scalars from a device in one transfer, because each transfer waits for the device."""
    import torch

    return dict(zip(scalars, torch.stack([scalar.float() for scalar in scalars.values()]).tolist(), strict=True))


def compute_masked_scores(totals: Mapping[str, float]) -> dict[str, float]:
    """Compute the perplexity of masked tokens, and the fraction of correct predictions."""
    perplexity = math.exp(min(totals["mlm"] / totals["masked"], _MAX_EXPONENT))
    return {"perplexity": perplexity, "masked_accuracy": totals["found"] / totals["masked"]}


def count_pairs(batch: Batch) -> tuple[int, int]:
    """Count the masked tokens and the pairs of segments of a batch."""
    return int((batch["labels"] != IGNORE_INDEX).sum()), int((batch["pair_labels"] != IGNORE_INDEX).sum())


def sum_pair_losses(model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the sum of the losses of a batch's masked tokens, and the sum of the losses of its pairs."""
    logits, labels, pair_logits = _run_heads(model, batch)
    return sum_cross_entropies(logits, labels), sum_cross_entropies(pair_logits, batch["pair_labels"])


def sum_pair_scores(model: Model, batch: Batch) -> dict[str, float]:
    """Sum the losses, counts and correct predictions that `score_pairs` needs."""
    logits, labels, pair_logits = _run_heads(model, batch)
    gold = batch["pair_labels"]
    pairs = {
        "pair": sum_cross_entropies(pair_logits, gold),
        "pairs": (gold != IGNORE_INDEX).sum(),
        "pairs_found": (pair_logits.argmax(-1) == gold).sum(),
    }
    return read_scalars({**sum_masked_losses(logits, labels), **pairs})


def score_pairs(totals: Mapping[str, float]) -> dict[str, float]:
    """Compute the loss, the scores of masked tokens, and the accuracy over pairs."""
    loss = totals["mlm"] / totals["masked"] + totals["pair"] / totals["pairs"]
    return {"loss": loss, **compute_masked_scores(totals), "pair_accuracy": totals["pairs_found"] / totals["pairs"]}


def _run_heads(model: Model, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits (masked, vocabulary) and labels (masked,) of masked tokens, and logits (rows, 2) of pairs."""
    inputs = {name: values for name, values in batch.items() if name != "pair_labels"}
    outputs, labels = run_at_masked(model, inputs, rounded=True)
    pair_logits = next(outputs[name] for name in _PAIR_LOGITS if name in outputs)
    return outputs["prediction_logits"][0], labels, pair_logits
