"""Masked tokens and sentence order: have the two segments been swapped? (Lan et al. 2020, section 3.1).

Everything but the pairs is shared with next-sentence prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertkit.modeling.info import Model
from bertkit.modeling.masked_head import count_pairs, sum_pair_losses
from bertkit.pretraining.objectives import PretrainContext, Sums, nsp
from bertkit.pretraining.sentence_pairs import Pairs
from bertkit.pretraining.tokenized import TokenizedCorpus
from bertkit.tokens.features import Batch

OPTIONS: Mapping[str, Any] = nsp.OPTIONS
LOSS_TERMS: Mapping[str, float] = {"mlm": 1.0, "sop": 1.0}
BEST_METRIC = nsp.BEST_METRIC

check, load_model, feature, collator = nsp.check, nsp.load_model, nsp.feature, nsp.collator
accumulate, score, baselines = nsp.accumulate, nsp.score, nsp.baselines
encoder, auxiliary_checkpoints = nsp.encoder, nsp.auxiliary_checkpoints


def examples(corpus: TokenizedCorpus, length: int, context: PretrainContext, epoch: int) -> Pairs:
    """Pair the segments of the corpus, differently in each epoch; half of the pairs are swapped."""
    return nsp.pair_segments(corpus, length, context, epoch, "order")


def count(batch: Batch) -> dict[str, int]:
    """Count the masked tokens and the pairs."""
    return dict(zip(LOSS_TERMS, count_pairs(batch), strict=True))


def sum_losses(model: Model, batch: Batch) -> Sums:
    """Sum the cross-entropies of the masked tokens and of the pairs."""
    return dict(zip(LOSS_TERMS, sum_pair_losses(model, batch), strict=True))
