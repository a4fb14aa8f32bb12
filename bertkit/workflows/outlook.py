"""Tell what a pretraining run would take, by some of its steps that are timed."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertkit.progress import SILENT, Progress
from bertkit.recipe import PretrainRecipe
from bertkit.workflows.pretrain import new_model, read_inputs

log = logging.getLogger("bertkit")

_MOST_STEPS = 10**6


@dataclass(frozen=True)
class Outlook:
    """What a pretraining run would do, by some steps that were timed."""

    recipe: str
    parameters: int
    examples: int
    steps: int | None
    """None where the run ends by the clock."""
    tokens: int
    seconds: float
    tokens_per_second: float
    memory_mb: float | None
    peak_share: float | None
    """Of the operations that this machine's fastest matrix products reach."""
    corpus: dict[str, dict[str, Any]]


def outlook(recipe: PretrainRecipe, *, steps: int = 10, progress: Progress = SILENT) -> Outlook:
    """Prepare the corpus, time some steps, and tell what the whole run would take; nothing else is kept."""
    from tempfile import TemporaryDirectory

    from bertkit.precision import look_at_machine, multiply_as
    from bertkit.speed import fastest_products, layer_sizes, peak_memory, restart_peak_memory, training_operations
    from bertkit.training.losses import Terms
    from bertkit.training.pretraining import PretrainBatches
    from bertkit.training.timing import time_steps

    inputs = read_inputs(recipe, None, progress)
    objective, setup, training = inputs.objective, inputs.setup, recipe.training
    here = training.model_copy(update={"workers": 0, "budget": None, "steps": _MOST_STEPS})
    machine = look_at_machine(training.precision, model_type=setup.config.model_type)
    log.info(machine.reason)
    multiply_as(machine)
    model = new_model(inputs)
    batches = PretrainBatches(inputs.corpus["train"], objective, setup)
    timed_setup = replace(setup, recipe=recipe.model_copy(update={"training": here}))
    restart_peak_memory(machine.device)
    with TemporaryDirectory(prefix="bertkit-outlook-") as folder:
        timed = time_steps(
            model,
            setup.tokenizer,
            lambda _: PretrainBatches(inputs.corpus["train"], objective, timed_setup),
            batches.sizes[training.max_length],
            objective.collator(setup),
            here,
            machine,
            Path(folder),
            terms=Terms(objective.TERMS, objective.count, objective.losses),
            steps=steps,
            progress=progress,
        )
    memory = peak_memory(machine.device)
    seconds, pieces = sum(step.seconds for step in timed), sum(sum(step.lengths) for step in timed)
    rate = pieces / seconds
    tokens = rate * training.budget_seconds if training.budget_seconds else batches.tokens(batches.steps)
    sizes = None if hasattr(model, "bertkit_teaching") else layer_sizes(setup.config)  # a teacher's are not counted
    share = None
    if sizes:
        operations = training_operations(sizes, [length for step in timed for length in step.lengths])
        share = operations / seconds / fastest_products(machine.device, machine.precision, *sizes[1:])
    return Outlook(
        recipe=recipe.name,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        examples=batches.sizes[training.max_length],
        steps=None if training.budget else batches.steps,
        tokens=round(tokens),
        seconds=tokens / rate,
        tokens_per_second=rate,
        memory_mb=None if memory is None else memory / 1e6,
        peak_share=share,
        corpus={name: dict(split.facts) for name, split in inputs.corpus.items()},
    )
