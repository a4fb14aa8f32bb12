"""The head of a masked language model, computed at masked positions only.

One token in seven is masked, and a head over a vocabulary of 30,000 costs more than all layers of a small encoder. A
second head may be over pairs of segments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from bertkit.hardware.tensors import where
from bertkit.modeling.info import Model, Output, unwrap
from bertkit.tokens.features import IGNORED, STATIC_WIDTHS, Batch, Tensor, Tensors, static_width

LABEL_POSITIONS = "label_positions"
"""Name in a batch of few shapes: (rows, most labels), positions of labeled tokens; the width where a row has fewer."""

_MASKED = 16  # the number of masked tokens is rounded up to a multiple of this
_MAX_EXPONENT = 700.0  # exp of more is no float
_PAIR_LOGITS = ("seq_relationship_logits", "sop_logits")  # in the outputs of BERT, of ALBERT


def run_at_masked(model: Model, batch: Batch, *, rounded: bool = False) -> tuple[Output, Tensor]:
    """Run a model whose head computes each token by itself, with the head at the labeled tokens only.

    Args:
        model: one of transformers' models with a head over tokens.
        batch: its arguments, and ``labels`` of shape (rows, tokens), `IGNORED` where there is nothing to predict.
        rounded: whether the number of masked tokens is rounded up, by some whose label is `IGNORED`. oneDNN compiles
            the products of a head anew for each number, and keeps 15 MB of it.

    Returns:
        the model's outputs with logits of shape (1, masked, vocabulary), and the labels of shape (masked,).
    """
    from torch.nn import functional

    labels = labels_of(batch)
    more = -len(labels) % _MASKED if rounded else 0

    # A hook between encoder and head turns (rows, tokens, width) into (1, masked, width), a batch of one long row. So
    # the head of any architecture is computed at masked positions only, and needs no code of its own here.
    def gather(module: object, inputs: object, outputs: Output) -> Output:
        states = at_labels(outputs["last_hidden_state"], batch)[None]
        outputs["last_hidden_state"] = functional.pad(states, (0, 0, 0, more)) if more else states
        return outputs

    with unwrap(model).base_model.register_forward_hook(gather):
        outputs = model(**{name: values for name, values in batch.items() if name not in ("labels", LABEL_POSITIONS)})
    return outputs, functional.pad(labels, (0, more), value=IGNORED) if more else labels


def add_label_positions(batch: Tensors) -> Tensors:
    """Add `LABEL_POSITIONS` to a batch of few shapes: where they are known, gathering tokens makes no other shape."""
    if not STATIC_WIDTHS.get():
        return batch
    is_labeled = batch["labels"] != IGNORED
    width = is_labeled.shape[1]
    # mostly a quarter of the width, so that one width has one size
    most = static_width(int(is_labeled.sum(dim=1).max()), (-(-width // 4), -(-width // 2), width))
    # a stable sort puts the labeled positions first, in their order
    order = (~is_labeled).int().argsort(dim=1, stable=True)[:, :most]
    return {**batch, LABEL_POSITIONS: order.where(is_labeled.gather(1, order), width)}


def at_labels(values: Tensor, batch: Batch) -> Tensor:
    """Gather the values of the labeled tokens: (rows, tokens, ...) to (masked, ...).

    By `LABEL_POSITIONS` these are equally many of each row, and some of no label.
    """
    if LABEL_POSITIONS not in batch:
        return values[where(batch["labels"], lambda labels: labels != IGNORED)]
    index = batch[LABEL_POSITIONS].clamp(max=values.shape[1] - 1)
    index = index.view(*index.shape, *[1] * (values.dim() - 2)).expand(-1, -1, *values.shape[2:])
    return values.gather(1, index).flatten(0, 1)


def put_at_labels(values: Tensor, batch: Batch, into: Tensor) -> Tensor:
    """Return a tensor (rows, tokens) with the values (masked,) at the labeled tokens, as `at_labels` gathers them."""
    if LABEL_POSITIONS not in batch:
        return into.masked_scatter(batch["labels"] != IGNORED, values)
    positions = batch[LABEL_POSITIONS]
    wider = into.new_zeros(len(into), into.shape[1] + 1)
    wider[:, :-1] = into  # where a row has fewer labels, the values go behind its end
    return wider.scatter(1, positions, values.view(positions.shape))[:, : into.shape[1]]


def labels_of(batch: Batch) -> Tensor:
    """Return the labels of the tokens that `at_labels` gathers, (masked,)."""
    labels = at_labels(batch["labels"], batch)
    if LABEL_POSITIONS not in batch:
        return labels
    return labels.where(batch[LABEL_POSITIONS].flatten() < batch["labels"].shape[1], IGNORED)


def sum_of_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the sum of the cross-entropies in nats; 0 where there are no labels.

    >>> import torch
    >>> logits = torch.tensor([[1, 0.5, 4, 2, 0, 1.5]])  # the cat sat on mat dog
    >>> round(sum_of_losses(logits, torch.tensor([2])).item(), 4)
    0.2744
    """
    from torch.nn import functional

    return functional.cross_entropy(logits.float().flatten(0, -2), labels.flatten(), reduction="sum")


def masked_totals(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Sum up the losses (``mlm``), the masked tokens (``masked``) and those predicted correctly (``found``)."""
    return read_numbers(masked_sums(logits, labels))


def masked_sums(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return what `masked_totals` does, on the device still."""
    found = (logits.flatten(0, -2).argmax(-1) == labels).sum()
    return {"mlm": sum_of_losses(logits, labels), "masked": (labels != IGNORED).sum(), "found": found}


def read_numbers(numbers: Mapping[str, Tensor]) -> dict[str, float]:
    """Return numbers of a device, which is waited for once."""
    import torch

    return dict(zip(numbers, torch.stack([number.float() for number in numbers.values()]).tolist(), strict=True))


def masked_scores(totals: Mapping[str, float]) -> dict[str, float]:
    """Compute the perplexity of masked tokens, and the share of them that is predicted correctly."""
    mean = totals["mlm"] / totals["masked"]
    return {"perplexity": math.exp(min(mean, _MAX_EXPONENT)), "masked_accuracy": totals["found"] / totals["masked"]}


def count_pairs(batch: Batch) -> tuple[int, int]:
    """Count the masked tokens and the pairs of a batch."""
    return int((batch["labels"] != IGNORED).sum()), int((batch["pair_labels"] != IGNORED).sum())


def sum_pair_losses(model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
    """Sum the cross-entropies of a batch's masked tokens, and those of its pairs."""
    logits, labels, pair_logits = _run_both(model, batch)
    return sum_of_losses(logits, labels), sum_of_losses(pair_logits, batch["pair_labels"])


def accumulate_pairs(model: Model, batch: Batch) -> dict[str, float]:
    """Sum up what `score_pairs` needs: losses, counts and correct predictions."""
    logits, labels, pair_logits = _run_both(model, batch)
    gold = batch["pair_labels"]
    pairs = {
        "pair": sum_of_losses(pair_logits, gold),
        "pairs": (gold != IGNORED).sum(),
        "pairs_found": (pair_logits.argmax(-1) == gold).sum(),
    }
    return read_numbers({**masked_sums(logits, labels), **pairs})


def score_pairs(totals: Mapping[str, float]) -> dict[str, float]:
    """Compute the loss, the scores of masked tokens, and the accuracy over pairs."""
    loss = totals["mlm"] / totals["masked"] + totals["pair"] / totals["pairs"]
    return {"loss": loss, **masked_scores(totals), "pair_accuracy": totals["pairs_found"] / totals["pairs"]}


def _run_both(model: Model, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits (masked, vocabulary) and labels (masked,) of masked tokens, and logits (rows, 2) of pairs."""
    inputs = {name: values for name, values in batch.items() if name != "pair_labels"}
    outputs, labels = run_at_masked(model, inputs, rounded=True)
    pair_logits = next(outputs[name] for name in _PAIR_LOGITS if name in outputs)
    return outputs["prediction_logits"][0], labels, pair_logits
