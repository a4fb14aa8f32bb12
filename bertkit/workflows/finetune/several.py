"""Fine-tune one encoder on several tasks: batches of one task each, and each task scored and published by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

from bertkit.data.sources import as_recorded
from bertkit.errors import RecipeError
from bertkit.evaluation.scoring import Result, Scored, read_results
from bertkit.evaluation.splits import write_training_rows
from bertkit.hardware.precision import use_matmul_backend
from bertkit.metrics.basic import is_lower_better
from bertkit.modeling.info import Model, info_of, tagger_head
from bertkit.modeling.load import loaded_weight_bytes
from bertkit.progress import log, stage
from bertkit.recipe import WHAT_IS_KEPT, SeveralRecipe, SeveralTasks, write_yaml
from bertkit.recipe.records import MEAN
from bertkit.storage import runs
from bertkit.storage.files import null_for_nan
from bertkit.storage.fingerprints import json_fingerprint
from bertkit.storage.records import take, without_folder
from bertkit.tasks import load_task
from bertkit.training.losses import Terms, gold_terms
from bertkit.training.own import own_collator
from bertkit.training.run import FitResult, Run, RunPlan, finish, finished_record, open_run, write_settings
from bertkit.workflows.finetune.dry_run import DryRun, check_batches, plan_steps
from bertkit.workflows.finetune.inputs import FinetuneInputs, read_inputs
from bertkit.workflows.finetune.publish import publish
from bertkit.workflows.finetune.scorer import StepScorer, load_scorer
from bertkit.workflows.finetune.trainee import load_setup


@dataclass(frozen=True)
class SeveralInputs:
    """All that is known of a run of several tasks before anything heavy is imported."""

    plan: RunPlan
    recipe: SeveralRecipe
    tasks: dict[str, FinetuneInputs]


def finetune_several(several: SeveralTasks, *, output: str | Path | None = None, fresh: bool = False) -> list[Result]:
    """Fine-tune one encoder with a head for each task, or resume the same run, or return the scores of a finished one.

    Each task has a folder in the run's, which is like that of a run of its own.

    Returns:
        the results of each task's validation splits.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    with stage("reading the data", total=1):
        inputs = read_several(several, output, fresh=fresh)
    with open_run(inputs.plan, fresh=fresh) as run:
        if run.is_finished:
            recorded = run.record["task_results"].items()
            results = [one for name, of_task in recorded for one in read_results(of_task, inputs.plan.folder / name)]
        else:
            results = _train_and_publish(inputs, run)
    from bertkit.evaluation.gates import judge_result

    return [judge_result(several.recipes[Path(str(result.folder)).name].gates, result) for result in results]


def dry_run(several: SeveralTasks, *, output: str | Path | None = None, fresh: bool = False) -> DryRun:
    """Check everything that can be checked without training, and return what a run would do."""
    inputs = read_several(several, output, fresh=fresh)
    folder, tasks = inputs.plan.folder, list(inputs.tasks.values())
    runs.foresee_claim(folder, inputs.plan.identity, fresh=fresh)
    for name, task in inputs.tasks.items():
        model = load_setup(task)[1]
        if not _can_share(model):
            raise _cannot_share(name, task)
        check_batches(inputs.plan, model, _count_rows(inputs.tasks))
    rows: dict[str, int | None] = {
        f"{name} {split}": count for name, task in inputs.tasks.items() for split, count in task.rows.items()
    }
    rows_of_all, weights = _count_rows(inputs.tasks)["train"], loaded_weight_bytes(tasks[0].model_folder)
    steps, needed = plan_steps(inputs.plan, rows_of_all, weights, fresh=fresh, models=len(tasks))
    return DryRun(
        recipe=inputs.recipe.name,
        model=inputs.recipe.model,
        folder=str(folder),
        rows=rows,
        labels=[],
        steps=steps,
        disk_bytes=needed,
        resolved=write_yaml(inputs.recipe.model_dump(mode="json", exclude_defaults=True)),
        warnings=[f"{name}: {warning}" for name, task in inputs.tasks.items() for warning in task.warnings],
    )


def read_several(several: SeveralTasks, output: str | Path | None, *, fresh: bool = False) -> SeveralInputs:
    """Read and check the rows of all tasks, and settle the identity of the run and of the run of each task.

    Raises:
        RecipeError: the best metric of a task is better if it is lower, so that a mean says nothing.
    """
    recipe = several.recipe
    folder = runs.run_folder(output, recipe.name)
    # One number chooses the best step of all tasks, so each task must be better where it is higher.
    for name, own in several.recipes.items():
        load_task(own)  # Loading it finds the direction of custom metrics.
        if is_lower_better(own.best_metric):
            what = f"{name}.best_metric {own.best_metric}: the best step has the highest mean of the best metrics"
            raise RecipeError(what, f"--set {name}.best_metric=... names one where higher is better")
    # A resumed run goes on with the rows that each task has held out.
    record = None if fresh else runs.read_record(folder)
    begun = record["identity"].get("tasks", {}) if record else {}
    tasks = {
        name: read_inputs(as_recorded(own, begun.get(name, {})), folder / name, fresh=fresh)
        for name, own in several.recipes.items()
    }
    settings = recipe.model_dump(
        mode="json", include={"name", "sampling", "training"}, exclude={"training": WHAT_IS_KEPT}
    )
    identity = {
        "recipe": {**settings, "best_metric": MEAN},
        "tasks": {name: dict(task.plan.identity) for name, task in tasks.items()},
    }
    together = json_fingerprint(identity)  # no run of one task alone is the same
    tasks = {
        name: replace(task, plan=replace(task.plan, identity={**task.plan.identity, "trained_together": together[:12]}))
        for name, task in tasks.items()
    }
    first = next(iter(tasks.values())).plan
    facts = {"model": recipe.model, "tasks": list(tasks), "rows": _count_rows(tasks)}
    return SeveralInputs(replace(first, recipe=recipe, folder=folder, identity=identity, facts=facts), recipe, tasks)


def _count_rows(tasks: Mapping[str, FinetuneInputs]) -> dict[str, int]:
    """Count the training rows of all tasks, and the rows that choose the best step."""
    return {
        "train": sum(len(task.splits["train"].rows) for task in tasks.values()),
        "validation": sum(len(task.validation.rows) for task in tasks.values()),
    }


def _train_and_publish(inputs: SeveralInputs, run: Run) -> list[Result]:
    from transformers import set_seed

    from bertkit.modeling.depths import prepare_depths
    from bertkit.modeling.heads.several import join_heads

    use_matmul_backend(run.machine)
    with stage(f"loading {inputs.recipe.model}"):
        # new heads are drawn from it, one after the other
        set_seed(inputs.recipe.training.seed)
        # Each task loads its model as if alone; then all heads move onto one encoder.
        scorers = {name: load_scorer(task, run) for name, task in inputs.tasks.items()}
        for name, scorer in scorers.items():
            if not _can_share(scorer.checkpoint.model):
                raise _cannot_share(name, scorer.inputs)
        joined = join_heads({name: scorer.checkpoint.model for name, scorer in scorers.items()})
        if inputs.recipe.training.layer_keys:
            prepare_depths(joined, inputs.recipe.training)
    for name, scorer in scorers.items():
        if scorer.encode():
            raise _cannot_share(name, scorer.inputs)
    fit_result = _fit_tasks(inputs, run, scorers, joined)
    scored = {name: scorer.score_best(fit_result.best_step) for name, scorer in scorers.items()}
    # Each head gets an encoder of its own again, with the shared weights, so that each task is published as a run.
    joined.separate()
    if not runs.is_main_process():
        return []
    results = {name: publish_task(scorer, run, fit_result, scored[name]) for name, scorer in scorers.items()}
    best = {name: results[name][0].scores[task.recipe.best_metric] for name, task in inputs.tasks.items()}
    mean = _mean_of_best(
        scorers, {name: scored[name][task.validation.name].scores for name, task in inputs.tasks.items()}
    )
    publish_run(inputs.recipe, run, fit_result, results, {MEAN: mean, **best})
    return [result for of_task in results.values() for result in of_task]


def _can_share(model: Model) -> bool:
    """Tell whether a model can share an encoder that is trained with others."""
    reads_kept_states, is_encoder = tagger_head(model.config) is not None, getattr(model, "is_saved_as_encoder", False)
    return not (info_of(model).compares_rows or info_of(model).fit_head or reads_kept_states or is_encoder)


def _cannot_share(name: str, inputs: FinetuneInputs) -> RecipeError:
    what = f"tasks.{name}: {inputs.recipe.task} does not train an encoder with a head as other tasks do"
    return RecipeError(what, "train it by itself")


def _fit_tasks(inputs: SeveralInputs, run: Run, scorers: Mapping[str, StepScorer], joined: Model) -> FitResult:
    """Train the encoder and all heads."""
    from bertkit.training.batching import InMemoryBatches
    from bertkit.training.fit import fit
    from bertkit.training.target_scale import scale_targets
    from bertkit.training.task_batches import TaskBatches, join_collators, join_terms
    from bertkit.training.trainer import Judge, Trainee

    training = inputs.recipe.training
    terms = dict[str, Terms]()
    collators = []
    in_memory = dict[str, InMemoryBatches]()
    # Each task keeps its loss, its collator and its features; a batch is of one task, and names it.
    for name, scorer in scorers.items():
        task, named = scorer.inputs, scorer.inputs.recipe.training.collator
        train, gold = task.splits["train"], task.task.COLUMNS.gold
        terms[name] = gold_terms(task.task, task.recipe.training, task.labels, train.rows)
        terms[name] = scale_targets(scorer.checkpoint.model, terms[name], train.column(gold))
        collate = task.task.collator(scorer.checkpoint.setup)
        collators.append(own_collator(named, collate) if named else collate)
        in_memory[name] = InMemoryBatches(scorer.features["train"], task.recipe.training)
    # of several processes, each has gradients of one head only
    training = training.model_copy(update={"extra": {"ddp_find_unused_parameters": True, **training.extra}})
    batches = TaskBatches(in_memory, training, inputs.recipe.sampling)
    counts = ", ".join(f"{name} {steps}" for name, steps in zip(scorers, batches.steps, strict=True))
    log.info(f"batches of an epoch: {counts}")
    tokenizer = next(iter(scorers.values())).checkpoint.setup.tokenizer
    trainee = Trainee(joined, tokenizer, batches, join_collators(collators), join_terms(terms))
    judge = Judge(partial(_score_step, scorers), MEAN, greater_is_better=True)
    return fit(trainee, judge, training, run.machine, inputs.plan.folder)


def _score_step(scorers: Mapping[str, StepScorer], model: Model, step: int) -> dict[str, float]:
    """Score all tasks after a step: each metric as ``task.metric``, the mean of the best metrics, and of the losses."""
    scores = {name: scorer.score_step(scorer.checkpoint.model, step) for name, scorer in scorers.items()}
    mean = _mean_of_best(scorers, scores)
    loss = fmean(of_task["loss"] for of_task in scores.values())
    named = {f"{name}.{metric}": value for name, of_task in scores.items() for metric, value in of_task.items()}
    return {"loss": loss, MEAN: mean, **named}


def _mean_of_best(scorers: Mapping[str, StepScorer], scores: Mapping[str, Mapping[str, float]]) -> float:
    """Return the mean of the best metrics of all tasks; those of a task family in percent count as shares of 1."""
    return fmean(
        scores[name][scorer.inputs.recipe.best_metric] / scorer.inputs.task.HIGHEST for name, scorer in scorers.items()
    )


def publish_task(scorer: StepScorer, run: Run, fit_result: FitResult, scored: Mapping[str, Scored]) -> list[Result]:
    """Publish a task as a run of its own, whose checkpoints are those of the run of all tasks."""
    inputs, plan = scorer.inputs, scorer.inputs.plan
    plan.folder.mkdir(exist_ok=True)
    shared = take(run.record, "started", "command", "machine", "seconds")
    own_run = Run(plan, {**runs.new_record(plan.identity, **plan.facts), **shared}, run.start)
    runs.write_record(plan.folder, own_run.record)
    write_training_rows(plan.folder, inputs.trained)
    # The log of all tasks names scores task.metric; a task's own log has its scores only, under their usual names.
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
    return publish(scorer, own_run, own_result, scored)


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
