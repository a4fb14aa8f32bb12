"""Take a text and a recipe through every stage of a pretraining on a few documents, to see what would fail."""

from __future__ import annotations

from typing import Any

from bertkit.errors import BertkitError
from bertkit.recipe import PretrainRecipe
from bertkit.workflows.finetune.smoke import STEPS, SmokeResult, try_stages
from bertkit.workflows.pretrain import run_inputs
from bertkit.workflows.pretrain.inputs import read_inputs

_DOCUMENTS = 200  # of which a few are held out


def smoke_pretrain(recipe: PretrainRecipe) -> tuple[SmokeResult, BertkitError | None]:
    """Prepare a few documents, train for two steps, stop and resume between them, and score.

    Returns:
        as `smoke_finetune`.
    """
    result = SmokeResult(recipe.name, recipe.model or recipe.size)
    with try_stages(result) as stages:
        with stages.one("prepare the text"):
            inputs = read_inputs(with_few_documents(recipe), stages.folder / "run")
            result.rows = {name: int(split.facts["documents"]) for name, split in inputs.corpus.items()}
        stages.train(lambda: run_inputs(inputs, fresh=False))
    return result, stages.error


def with_few_documents(recipe: PretrainRecipe) -> PretrainRecipe:
    """Return a recipe that trains for two steps, on a few documents."""
    changes: dict[str, Any] = {
        "steps": STEPS,
        "budget": None,
        "evaluate_every": 1,
        "batch_size": 2,
        "short_length": None,
        "report_to": [],
    }
    few = recipe.changed("training", **changes)
    return few.changed("data", limit=min(recipe.data.limit or _DOCUMENTS, _DOCUMENTS))
