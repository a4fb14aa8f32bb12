"""Pretrain an encoder with a recipe: prepare the text, build, train and score the model, and write the run folder."""

from __future__ import annotations

import math
from pathlib import Path

from bertkit.compression.compare_teacher import compare_with_teacher
from bertkit.evaluation.held_out import make_held_out_features, score_held_out
from bertkit.hardware.precision import use_matmul_backend
from bertkit.metrics.baselines import Baselines, find_baseline_warning
from bertkit.modeling.info import Model, get_loading_info
from bertkit.pretraining.tokenized import compute_unigram_loss
from bertkit.progress import Progress, log, stage, with_progress
from bertkit.recipe.records import PretrainRecipe
from bertkit.recipe.sections import PretrainingConfig
from bertkit.storage import runs
from bertkit.training.auto_settings import MIN_PRETRAINING_BATCH
from bertkit.training.losses import LossTerms
from bertkit.training.run import Run, open_run
from bertkit.training.stopping import make_budget
from bertkit.workflows.pretrain_data import PretrainData, read_pretrain_data
from bertkit.workflows.pretrain_plan import fit_to_budget
from bertkit.workflows.pretrain_results import PretrainResult, save_results

# Held-out tokens; at a rate of 15%, 750 of them are masked and scored.
_MIN_TOKENS = 5000
# Scores that are compared with baselines.
_COMPARED_METRICS = ("perplexity", "pair_accuracy", "f1")


@with_progress
def pretrain(
    recipe: PretrainRecipe, *, output: str | Path | None = None, restart: bool = False, progress: Progress | None = None
) -> PretrainResult:
    """Pretrain, or resume an interrupted run, or return the result of a finished one.

    Args:
        recipe: Recipe to pretrain with.
        output: Run folder; by default ``runs/`` and the name of the recipe.
        restart: Start over; an earlier run in the folder is moved aside.
        progress: Progress display of long steps.

    Raises:
        BertkitError: If the recipe, the text, the model or the machine does not allow the run; see `bertkit.errors`.
    """
    return pretrain_corpus(read_pretrain_data(recipe, output), restart=restart)


def pretrain_corpus(data: PretrainData, *, restart: bool) -> PretrainResult:
    """Pretrain on a prepared corpus."""
    with open_run(data.plan, restart=restart) as run:
        # The record has the folder of the training, but the run may have been moved since.
        if run.is_finished:
            return PretrainResult(**{**run.record["result"], "folder": str(data.plan.folder)})
        return _train_and_save(data, run)


def _train_and_save(data: PretrainData, run: Run) -> PretrainResult:
    from bertkit.training.fit import fit
    from bertkit.training.pretrain_batches import PretrainBatches
    from bertkit.training.trainer import TrainingJob

    machine, objective = run.machine, data.objective
    use_matmul_backend(machine)

    # 1. Fit the batch and the learning rate to a budget such as `--budget 2h`, from a few timed steps. A resumed run
    #    keeps its settings.
    if not run.is_resumed and (settings := fit_to_budget(data, machine)):
        run.record["budget_settings"] = settings
        if runs.is_main_process():
            runs.write_record(run.plan.folder, run.record)
    data = data.with_training(run.record.get("budget_settings", {}))
    context, recipe = data.context, data.context.recipe

    # 2. Load the model; its new weights are drawn from the seed.
    with stage(f"loading {recipe.model or recipe.size}"):
        model = data.load_model()
    if (new_weights := get_loading_info(model).new_weights) and not run.is_resumed:
        log.info(f"the checkpoint lacks {len(new_weights)} weights of the heads, which start with random values")

    # 3. Train with the Trainer of fine-tuning. The objective defines the batches, the loss and the score that selects
    #    the best step.
    batches = PretrainBatches(data.corpus["train"], objective, context, make_budget(recipe.training))
    features = make_held_out_features(data.corpus["validation"], objective, context)
    collate = objective.collator(context)

    def compute_metrics(model: Model, step: int) -> dict[str, float]:
        return score_held_out(model, features, collate, objective, machine.precision)

    job = TrainingJob(
        model=model,
        processing_class=context.tokenizer,
        train_batches=batches,
        data_collator=collate,
        loss_terms=LossTerms(objective.LOSS_TERMS, objective.count, objective.sum_losses),
        compute_metrics=compute_metrics,
        metric_for_best_model=objective.BEST_METRIC,
    )
    training = recipe.training.model_copy(update={"steps": batches.steps})
    fit_result = fit(job, training, machine, data.plan.folder)

    # 4. Score the best step, and baselines that need no model, on held-out text.
    scores = compute_metrics(model, fit_result.best_step)
    baselines = {**_score_token_frequencies(data), **objective.baselines(features, scores)}
    if teacher := getattr(model, "teacher", None):
        teacher.hooks.close()
    held_out_tokens = data.corpus["validation"].counts["tokens"]
    result = PretrainResult(
        recipe=recipe.name,
        model=recipe.model or recipe.size,
        objective=recipe.objective,
        scores=scores,
        baselines=baselines,
        parameters=model.num_parameters(),
        steps=fit_result.steps,
        tokens=round(batches.count_tokens(fit_result.steps)),
        seconds=round(run.seconds, 3),
        corpus={name: dict(split.counts) for name, split in data.corpus.items()},
        folder=str(data.plan.folder),
        warnings=_find_warnings(recipe, held_out_tokens, scores, baselines, fit_result.steps),
        compared_models=compare_with_teacher(model, (str(recipe.model), recipe.name), features, collate, machine),
    )

    # 5. Write the run folder: checkpoint, scores, report and card.
    save_results(data, run, fit_result, model, result)
    return result


def _find_warnings(
    recipe: PretrainRecipe, tokens: int, scores: dict[str, float], baselines: Baselines, steps: int
) -> list[str]:
    """Return warnings about the scores, such as a score that is no better than a baseline."""
    warnings = []
    if "demo" in (recipe.data.source, recipe.model):
        warnings.append("Demo text or model: an artificial grammar. These scores cannot be compared with others.")
    for metric in _COMPARED_METRICS:
        if message := find_baseline_warning(scores, baselines, metric):
            warnings.append(f"{message} {_suggest_changes(recipe.training, steps)}")
    if tokens < _MIN_TOKENS:
        remedy = "--set data.validation_fraction=0.1 holds out more."
        warnings.append(f"Only {tokens:,} tokens are held out, so scores are not precise: {remedy}")
    return warnings


def _suggest_changes(training: PretrainingConfig, steps: int) -> str:
    """Return a remedy for a model that is no better than a baseline after `steps` steps."""
    if training.budget is None:
        return "Try more --steps, another --learning-rate, or more text."
    batch = ""
    if training.batch_size > MIN_PRETRAINING_BATCH:
        batch = f"a smaller --batch-size ({training.budget} made {steps:,} steps of {training.batch_size} blocks), "
    return f"Try {batch}a longer --budget, or another --learning-rate."


def _score_token_frequencies(data: PretrainData) -> dict[str, dict[str, float]]:
    """Compute the scores of a model that only knows the frequency of each token.

    The loss is left out if the objective has other loss terms than masked or next tokens, such as sentence pairs,
    because token frequencies cannot predict them.
    """
    loss = compute_unigram_loss(data.corpus["train"], data.corpus["validation"], data.context.config.vocab_size)
    scores = {"perplexity": math.exp(loss)}
    has_one_term = set(data.objective.LOSS_TERMS) in ({"mlm"}, {"clm"})
    return {"token frequencies": {"loss": loss, **scores} if has_one_term else scores}
