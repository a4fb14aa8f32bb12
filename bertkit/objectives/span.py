"""Masked spans, and their tokens told from what stands around them (SpanBERT: Joshi et al. 2020, section 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bertkit.corpus.masking import choose_spans, corrupt
from bertkit.corpus.packing import Block, join_block
from bertkit.modeling.info import info_of
from bertkit.modeling.masked_head import masked_scores, masked_totals, run_at_masked, sum_of_losses
from bertkit.objectives import PretrainSetup, Totals, masking_rate, mlm
from bertkit.recipe.options import read_option
from bertkit.tokens.features import IGNORED, Collator, Feature

if TYPE_CHECKING:
    import numpy as np
    import torch

OPTIONS: Mapping[str, Any] = {
    "mask_rate": mlm.OPTIONS["mask_rate"],
    "last_mask_rate": mlm.OPTIONS["last_mask_rate"],
    "boundary": True,
}
TERMS: Mapping[str, float] = {"mlm": 1.0, "sbo": 1.0}
BEST_METRIC = mlm.BEST_METRIC

check = mlm.check
auxiliary_checkpoints = mlm.auxiliary_checkpoints

_EDGES = ("span_starts", "span_ends")

examples = mlm.examples


def load_model(setup: PretrainSetup) -> Any:
    """Load the checkpoint, or make a new model, with a head that answers with tokens, and one over boundaries."""
    model = mlm.load_model(setup)
    if read_option(OPTIONS, setup.recipe, "boundary"):
        from bertkit.modeling.span_boundary import add_span_boundary

        add_span_boundary(model)
        if setup.model_folder is not None:
            info_of(model).new_weights.append("span_boundary")
    return model


def feature(example: Block, progress: float | None, random: np.random.Generator, setup: PretrainSetup) -> Feature:
    """Hide spans of a block; with boundaries, tell for each hidden token where its span begins and ends."""
    import numpy as np

    text = join_block(example, setup.frame)
    rate = masking_rate(OPTIONS, setup, progress)
    chosen, spans = choose_spans(text.maskable, text.word_starts, rate, random)
    hidden: Feature = {
        "input_ids": corrupt(text.tokens, chosen, random, setup.tokenizer.mask_token_id, setup.ordinary, spans),
        "labels": np.where(chosen, text.tokens, IGNORED),
        "parts": text.parts,
    }
    if read_option(OPTIONS, setup.recipe, "boundary"):
        for name, edge in zip(_EDGES, spans.T, strict=True):
            hidden[name] = np.zeros(len(chosen), dtype=np.int64)
            hidden[name][chosen] = np.repeat(edge, spans[:, 1] - spans[:, 0])
    return hidden


def collator(setup: PretrainSetup) -> Collator:
    """Make the collator of blocks; with boundaries, of the edges of spans: (rows, tokens)."""
    import torch

    collate_blocks = mlm.collator(setup)

    def collate(features: Sequence[Feature]) -> dict[str, torch.Tensor]:
        batch = collate_blocks(features)
        for name in _EDGES if _EDGES[0] in features[0] else ():
            batch[name] = torch.zeros_like(batch["labels"])
            for line, each in zip(batch[name], features, strict=True):
                line[: len(each[name])] = torch.from_numpy(each[name])
        return batch

    return collate


def count(batch: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Count the hidden tokens; with boundaries, they are told twice."""
    tokens = mlm.count(batch)["mlm"]
    return {"mlm": tokens, "sbo": tokens} if _EDGES[0] in batch else {"mlm": tokens}


def losses(model: Any, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Give the sum of the cross-entropies of the hidden tokens; with boundaries, also as these tell them."""
    logits, labels, told = _run(model, batch)
    summed = {"mlm": sum_of_losses(logits, labels)}
    return summed if told is None else {**summed, "sbo": sum_of_losses(told, labels)}


def accumulate(model: Any, batch: Mapping[str, torch.Tensor]) -> Totals:
    """Sum up losses and right answers."""
    logits, labels, told = _run(model, batch)
    totals = masked_totals(logits, labels)
    return totals if told is None else {**totals, "sbo": float(sum_of_losses(told, labels))}


def score(totals: Totals) -> dict[str, float]:
    """Give loss, perplexity and the share of hidden tokens that are found."""
    return {"loss": (totals["mlm"] + totals.get("sbo", 0.0)) / totals["masked"], **masked_scores(totals)}


def encoder(model: Any, setup: PretrainSetup) -> Any:
    """Give the model without the head over boundaries: a plain checkpoint for masked language modeling."""
    from copy import copy

    plain = copy(model)
    plain._modules = {name: part for name, part in model._modules.items() if name != "span_boundary"}
    return plain


def _run(model: Any, batch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Give logits of hidden tokens, their labels, and logits as the boundaries tell them, None without.

    The head over boundaries runs inside the model's forward pass, like any other part: there autocast is on, and
    gradients of several processes are added up.
    """
    inputs = {name: values for name, values in batch.items() if name not in _EDGES}
    if _EDGES[0] not in batch:
        outputs, labels = run_at_masked(model, inputs)
        return outputs.logits, labels, None
    told = []
    whole = getattr(model, "module", model)

    def tell(module: Any, arguments: Any, outputs: Any) -> None:
        states, hidden = outputs["last_hidden_state"], batch["labels"] != IGNORED
        words = whole.get_input_embeddings().weight
        told.append(whole.span_boundary(states, hidden, batch["span_starts"], batch["span_ends"], words))

    hook = whole.base_model.register_forward_hook(tell)  # comes before the one that gathers hidden tokens
    try:
        outputs, labels = run_at_masked(model, inputs)
    finally:
        hook.remove()
    return outputs.logits, labels, told[0]
