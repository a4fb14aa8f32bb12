"""Held-out text: the same examples and masks for every evaluation, scored by the objective."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bertkit.errors import DataError
from bertkit.evaluation.forward import (
    evaluating,
    few_shapes,
    gather_from_all,
    lacks_a_batch,
    rank_and_size,
    sorted_batches,
)
from bertkit.hardware.tensors import to_device
from bertkit.modeling.info import Model
from bertkit.pretraining.objectives import Objective, PretrainContext, Totals
from bertkit.pretraining.tokenized import TokenizedCorpus
from bertkit.progress import stage
from bertkit.tokens.features import ROW_MASK, Collator, Feature, Features


def held_out_features(corpus: TokenizedCorpus, objective: Objective, context: PretrainContext) -> list[Feature]:
    """Make the features of held-out text, with the same pairs and masks in every evaluation and for every seed."""
    # Use one seed for all runs, because other masks would give other perplexities.
    context = replace(context, recipe=context.recipe.replace("training", seed=0))
    examples = objective.examples(corpus, context.recipe.training.max_length, context, 0)
    if not len(examples):
        raise DataError("the held-out text yields no example", "hold out more: --set data.validation_fraction=0.05")
    indices = range(min(len(examples), context.recipe.training.eval_blocks))
    return [objective.feature(examples[index], None, np.random.default_rng((index,)), context) for index in indices]


def measure(
    model: Model, features: Features, collate: Collator, objective: Objective, precision: str
) -> dict[str, float]:
    """Score a model on held-out features; several processes share the work and all get the scores."""
    process, processes = rank_and_size()
    device = next(model.parameters()).device
    totals: Totals = {}
    collate, lengths = few_shapes(model, features, collate)
    batches = sorted_batches(lengths)
    share = batches[process::processes]
    fillers = batches[:1] if lacks_a_batch(model, len(batches), process, processes) else []
    with stage("evaluation", len(share)) as advance, evaluating(model, precision):
        for position, indices in enumerate([*share, *fillers]):
            batch = collate([features[index] for index in indices])
            # Objectives find padding by the labels and by the attention mask.
            batch.pop(ROW_MASK, None)
            # Add up sums and counts, and divide once in `score`: a mean of the batches' means would
            # weigh the items of small batches more.
            sums = objective.accumulate(model, {name: to_device(values, device) for name, values in batch.items()})
            # A filler keeps the processes in step; its sums count in another process.
            if position == len(share):
                break
            totals = {name: totals.get(name, 0.0) + value for name, value in sums.items()}
            advance(1)
    shares = gather_from_all(totals)
    # With fewer batches than processes some processes have no sums, but the first one always has a batch.
    return objective.score({name: sum(share.get(name, 0.0) for share in shares) for name in shares[0]})
