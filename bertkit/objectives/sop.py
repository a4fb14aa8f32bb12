"""Masked tokens and the order of sentences: have the two segments been swapped? (Lan et al. 2020, section 3.1).

All but the pairs is that of next-sentence prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bertkit.corpus.sentence_pairs import Pairs
from bertkit.corpus.tokenized import TokenizedCorpus
from bertkit.modeling.pair_head import count_pairs, sum_pair_losses
from bertkit.objectives import PretrainSetup, nsp

if TYPE_CHECKING:
    import torch

OPTIONS: Mapping[str, Any] = nsp.OPTIONS
TERMS: Mapping[str, float] = {"mlm": 1.0, "sop": 1.0}
BEST_METRIC = nsp.BEST_METRIC

check, load_model, feature, collator = nsp.check, nsp.load_model, nsp.feature, nsp.collator
accumulate, score, encoder, auxiliary_checkpoints = nsp.accumulate, nsp.score, nsp.encoder, nsp.auxiliary_checkpoints


def examples(corpus: TokenizedCorpus, length: int, setup: PretrainSetup, epoch: int) -> Pairs:
    """Pair the segments of the corpus, anew in each epoch; half of the pairs are swapped."""
    return nsp.pairs_of_epoch(corpus, length, setup, epoch, "order")


def count(batch: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Count the hidden tokens and the pairs."""
    return dict(zip(TERMS, count_pairs(batch), strict=True))


def losses(model: Any, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Give the sums of the cross-entropies of the hidden tokens and of the pairs."""
    return dict(zip(TERMS, sum_pair_losses(model, batch), strict=True))
