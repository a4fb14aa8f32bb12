"""Scores on held-out text, with the same examples and masks in every evaluation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bertkit.errors import DataError
from bertkit.evaluation.forward import (
    gather_from_all,
    get_rank_and_size,
    limit_shapes,
    needs_extra_batch,
    sorted_batches,
    use_eval_mode,
)
from bertkit.hardware.tensors import to_device
from bertkit.modeling.info import Model
from bertkit.pretraining.objectives import Objective, PretrainContext, Totals
from bertkit.pretraining.tokenized import TokenizedCorpus
from bertkit.progress import stage
from bertkit.tokens.features import ROW_MASK, Collator, Feature, Features


def make_held_out_features(corpus: TokenizedCorpus, objective: Objective, context: PretrainContext) -> list[Feature]:
    """Make the features of held-out text, with the same pairs and masks in every evaluation and for every seed."""
    # Other masks would give other perplexities, so all runs use the same seed.
    context = replace(context, recipe=context.recipe.replace("training", seed=0))
    examples = objective.examples(corpus, context.recipe.training.max_length, context, 0)
    if not len(examples):
        raise DataError("the held-out text yields no example", "hold out more: --set data.validation_fraction=0.05")
    indices = range(min(len(examples), context.recipe.training.eval_blocks))
    return [objective.feature(examples[index], None, np.random.default_rng((index,)), context) for index in indices]


def score_held_out(
    model: Model, features: Features, collate: Collator, objective: Objective, precision: str
) -> dict[str, float]:
    """Score a model on held-out features; several processes divide the work, and all get the scores."""
    process, processes = get_rank_and_size()
    device = next(model.parameters()).device
    totals: Totals = {}
    collate, lengths = limit_shapes(model, features, collate)
    batches = sorted_batches(lengths)
    process_batches = batches[process::processes]
    fillers = batches[:1] if needs_extra_batch(model, len(batches), process, processes) else []
    with stage("evaluation", len(process_batches)) as advance, use_eval_mode(model, precision):
        for position, indices in enumerate([*process_batches, *fillers]):
            batch = collate([features[index] for index in indices])
            # Objectives find padding by the labels and by the attention mask.
            batch.pop(ROW_MASK, None)
            # Sums and counts are divided once, in `score`. The mean of batch means would overweight small batches.
            sums = objective.accumulate(model, {name: to_device(values, device) for name, values in batch.items()})
            # A filler keeps the processes in step; another process adds its sums.
            if position == len(process_batches):
                break
            totals = {name: totals.get(name, 0.0) + value for name, value in sums.items()}
            advance(1)
    all_totals = gather_from_all(totals)
    # With fewer batches than processes, some totals are empty, but the first process always has a batch.
    return objective.score({name: sum(totals.get(name, 0.0) for totals in all_totals) for name in all_totals[0]})
