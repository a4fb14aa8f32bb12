"""Pairs of segments as features and batches, and what a model with two heads says of them: of pieces and of pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.blocks import Text
from bertkit.features import Collator, Feature, Frame
from bertkit.masked_head import IGNORED, masked_scores, masked_tally, run_at_masked, sum_of_losses
from bertkit.pairs import Pair

if TYPE_CHECKING:
    import torch

_PAIR_LOGITS = ("seq_relationship_logits", "sop_logits")  # BERT's name, ALBERT's name


def frame_pair(pair: Pair, frame: Frame) -> Text:
    """Put the special pieces around a pair: [CLS] first [SEP] second [SEP]; `parts` of the text are its segments."""
    before, between, after = (np.array(each, dtype=np.int64) for each in (frame.before, frame.between, frame.after))
    pieces = [before, pair.first, between, pair.second, after]
    special = [np.ones(len(each), dtype=bool) for each in (before, between, after)]
    starts = [special[0], pair.first_word_starts, special[1], pair.second_word_starts, special[2]]
    sizes = [len(each) for each in pieces]
    return Text(
        np.concatenate(pieces),
        np.repeat([False, True, False, True, False], sizes),
        np.concatenate(starts),
        np.repeat([0, 0, 0, 1, 1], sizes),
    )


def pair_collator(tokenizer: Any) -> Collator:
    """Make the collator of features with ``input_ids``, ``labels``, ``token_type_ids`` and ``pair_labels``.

    It pads on the right: tensors of shape (rows, pieces), ``attention_mask`` among them, and ``pair_labels`` of shape
    (rows,).
    """
    import torch

    padding = {"input_ids": tokenizer.pad_token_id, "labels": IGNORED, "token_type_ids": 0, "attention_mask": 0}

    def collate(features: Sequence[Feature]) -> dict[str, torch.Tensor]:
        shape = len(features), max(len(feature["input_ids"]) for feature in features)
        batch = {name: np.full(shape, value) for name, value in padding.items()}
        for row, feature in enumerate(features):
            size = len(feature["input_ids"])
            batch["attention_mask"][row, :size] = 1
            for name in ("input_ids", "labels", "token_type_ids"):
                batch[name][row, :size] = feature[name]
        batch["pair_labels"] = np.array([feature["pair_labels"] for feature in features])
        return {name: torch.from_numpy(values) for name, values in batch.items()}

    return collate


def count_pairs(batch: Mapping[str, torch.Tensor]) -> tuple[int, int]:
    """Count the hidden pieces and the pairs of a batch."""
    return int((batch["labels"] != IGNORED).sum()), len(batch["pair_labels"])


def sum_pair_losses(model: Any, batch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum the cross-entropies of the hidden pieces of a batch, and those of its pairs."""
    logits, labels, pair_logits = _run(model, batch)
    return sum_of_losses(logits, labels), sum_of_losses(pair_logits, batch["pair_labels"])


def tally_pairs(model: Any, batch: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Sum up what `score_pairs` needs: losses, items and right answers."""
    logits, labels, pair_logits = _run(model, batch)
    gold = batch["pair_labels"]
    pairs = {
        "pair": float(sum_of_losses(pair_logits, gold)),
        "pairs": float(len(gold)),
        "pairs_found": float((pair_logits.argmax(-1) == gold).sum()),
    }
    return {**masked_tally(logits, labels), **pairs}


def score_pairs(totals: Mapping[str, float]) -> dict[str, float]:
    """Give the loss, the scores of hidden pieces, and the share of pairs that are told rightly."""
    loss = totals["mlm"] / totals["masked"] + totals["pair"] / totals["pairs"]
    return {"loss": loss, **masked_scores(totals), "pair_accuracy": totals["pairs_found"] / totals["pairs"]}


def _run(model: Any, batch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Give logits (masked, vocabulary) and labels (masked,) of hidden pieces, and logits (rows, 2) of pairs."""
    outputs, labels = run_at_masked(model, {name: values for name, values in batch.items() if name != "pair_labels"})
    pair_logits = next(outputs[name] for name in _PAIR_LOGITS if name in outputs)
    return outputs["prediction_logits"][0], labels, pair_logits
