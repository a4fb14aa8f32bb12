"""Turn a run of several tasks into a finished folder: a folder for each task like that of a run, and one record."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from bertkit.evaluation.checkpoint import Checkpoint
from bertkit.evaluation.scoring import Result, Scored
from bertkit.recipe import SeveralRecipe
from bertkit.recipe.several import MEAN
from bertkit.storage import runs
from bertkit.storage.files import null_for_nan
from bertkit.storage.records import without_folder
from bertkit.workflows.steps.finetune_inputs import FinetuneInputs
from bertkit.workflows.steps.publish_finetuned import publish
from bertkit.workflows.steps.run import Run, finish, finished_record, write_settings
from bertkit.workflows.steps.training_rows import write_training_rows

if TYPE_CHECKING:
    from bertkit.evaluation.baselines import ScoredBaselines
    from bertkit.training.result import FitResult

log = logging.getLogger("bertkit")


def publish_task(
    inputs: FinetuneInputs,
    run: Run,
    fit_result: FitResult,
    checkpoint: Checkpoint,
    scored: Mapping[str, Scored],
    baselines: ScoredBaselines,
) -> list[Result]:
    """Publish a task as a run of its own, whose checkpoints are those of the run of all tasks."""
    plan = inputs.plan
    plan.folder.mkdir(exist_ok=True)
    shared = {key: run.record[key] for key in ("started", "command", "machine", "seconds")}
    own_run = Run(plan, {**runs.new_record(plan.identity, **plan.facts), **shared}, run.start)
    runs.write_record(plan.folder, own_run.record)
    write_training_rows(plan.folder, inputs.trained)
    prefix = f"eval_{inputs.recipe.name}."
    history = [
        {
            key.replace(prefix, "eval_"): value
            for key, value in entry.items()
            if not key.startswith("eval_") or key.startswith(prefix)
        }
        for entry in fit_result.history
    ]
    own_result = replace(fit_result, history=history, best=None, last=None)
    return publish(inputs, own_run, own_result, checkpoint, scored, baselines)


def publish_run(
    recipe: SeveralRecipe,
    run: Run,
    fit_result: FitResult,
    results: Mapping[str, list[Result]],
    scores: Mapping[str, float | None],
) -> None:
    """Write the record of the whole run, after all tasks are finished; `scores` are the mean and each task's best."""
    log.info(f"best step {fit_result.best_step}: the mean of {', '.join(results)} is {scores[MEAN]:.4f}")
    whole = Result(
        recipe=recipe.name,
        model=recipe.model,
        split="validation",
        scores=null_for_nan(scores),
        rows=sum(of_task[0].rows for of_task in results.values()),
        seconds=run.seconds,
    )
    # the folder may be moved, so the recipes of its tasks are those inside it
    inside = {name: f"{name}/recipe.yaml" for name in results}
    write_settings(run, recipe.model_copy(update={"tasks": inside, "data": {}}), fit_result, private=[])
    record = finished_record(
        run,
        fit_result,
        round(run.seconds, 3),
        results=[without_folder(whole)],
        task_results={name: [without_folder(result) for result in of_task] for name, of_task in results.items()},
    )
    finish(run, record, fit_result, [])
