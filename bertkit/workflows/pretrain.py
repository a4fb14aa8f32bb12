"""Pretrain an encoder as a recipe says: text -> tokens -> examples -> fit -> scores of held-out text -> run folder."""

from __future__ import annotations

import math
from pathlib import Path

from bertkit.compression.side_by_side import compare_with_teacher
from bertkit.evaluation.held_out import held_out_features, measure
from bertkit.hardware.precision import use_matmul_backend
from bertkit.metrics.baselines import Baselines, find_unbeaten
from bertkit.modeling.info import Model, info_of
from bertkit.pretraining.tokenized import unigram_loss
from bertkit.progress import Progress, log, stage, takes_progress
from bertkit.recipe import Pretraining, PretrainRecipe
from bertkit.storage import runs
from bertkit.training.automatic import MIN_PRETRAINING_BATCH
from bertkit.training.losses import Terms
from bertkit.training.run import Run, open_run
from bertkit.training.stopping import make_budget
from bertkit.workflows.pretrain_data import PretrainData, read_pretrain_data
from bertkit.workflows.pretrain_plan import fit_to_budget
from bertkit.workflows.pretrain_results import Pretrained, save_results

_FEW_TOKENS = 5000  # of which 750 are masked
_COMPARED = ("perplexity", "pair_accuracy", "f1")  # with baselines


@takes_progress
def pretrain(
    recipe: PretrainRecipe, *, output: str | Path | None = None, fresh: bool = False, progress: Progress | None = None
) -> Pretrained:
    """Pretrain, or resume the same run, or return the result of a finished one.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    return pretrain_corpus(read_pretrain_data(recipe, output), fresh=fresh)


def pretrain_corpus(inputs: PretrainData, *, fresh: bool) -> Pretrained:
    """Do what `pretrain` does with inputs that are read already."""
    with open_run(inputs.plan, fresh=fresh) as run:
        if run.is_finished:
            here = str(inputs.plan.folder)  # it may have been moved
            return Pretrained(**{**run.record["result"], "folder": here})
        return _train_and_publish(inputs, run)


def _train_and_publish(inputs: PretrainData, run: Run) -> Pretrained:
    from bertkit.training.fit import fit
    from bertkit.training.pretrain_batches import PretrainBatches
    from bertkit.training.trainer import TrainingJob

    machine = run.machine
    use_matmul_backend(machine)
    # what the first process has timed holds until the end
    if not run.is_resumed and (settings := fit_to_budget(inputs, machine)):
        run.record["budget_settings"] = settings
        if runs.is_main_process():
            runs.write_record(run.plan.folder, run.record)
    inputs = inputs.with_training(run.record.get("budget_settings", {}))
    # The model comes after the budget, which may have changed the batch and the learning rate of the recipe.
    objective, setup, recipe = inputs.objective, inputs.setup, inputs.setup.recipe
    with stage(f"loading {recipe.model or recipe.size}"):
        model = inputs.load_model()
    if (new := info_of(model).new_weights) and not run.is_resumed:
        log.info(f"the checkpoint lacks {len(new)} weights of the heads: these start at random")
    batches = PretrainBatches(inputs.corpus["train"], objective, setup, make_budget(recipe.training))
    held_out = held_out_features(inputs.corpus["validation"], objective, setup)
    collate = objective.collator(setup)

    def evaluate(model: Model, step: int) -> dict[str, float]:
        return measure(model, held_out, collate, objective, machine.precision)

    # The one Trainer: an objective brings the batches, the losses, and the score by which the best step is chosen.
    terms = Terms(objective.TERMS, objective.count, objective.losses)
    job = TrainingJob(model, setup.tokenizer, batches, collate, terms, evaluate, objective.BEST_METRIC)
    training = recipe.training.model_copy(update={"steps": batches.steps})
    fit_result = fit(job, training, machine, inputs.plan.folder)
    scores = evaluate(model, fit_result.best_step)
    # What the weights are compared with, before they are published.
    baselines = {**_baseline(inputs), **objective.baselines(held_out, scores)}
    info_of(model).while_training.close()
    pretrained = Pretrained(
        recipe=recipe.name,
        model=recipe.model or recipe.size,
        objective=recipe.objective,
        scores=scores,
        baselines=baselines,
        parameters=model.num_parameters(),
        steps=fit_result.steps,
        tokens=round(batches.tokens(fit_result.steps)),
        seconds=round(run.seconds, 3),
        corpus={name: dict(split.facts) for name, split in inputs.corpus.items()},
        folder=str(inputs.plan.folder),
        warnings=_find_warnings(
            recipe, inputs.corpus["validation"].facts["tokens"], scores, baselines, fit_result.steps
        ),
        compared_models=compare_with_teacher(model, (str(recipe.model), recipe.name), held_out, collate, machine),
    )
    save_results(inputs, run, fit_result, model, pretrained)
    return pretrained


def _find_warnings(
    recipe: PretrainRecipe, tokens: int, scores: dict[str, float], baselines: Baselines, steps: int
) -> list[str]:
    """Return what a reader of the scores must know."""
    warnings = []
    if "demo" in (recipe.data.source, recipe.model):
        warnings.append("Demo text or model: an artificial grammar. These scores cannot be compared with others.")
    for metric in _COMPARED:
        if unbeaten := find_unbeaten(scores, baselines, metric):
            warnings.append(f"{unbeaten} {_suggest_changes(recipe.training, steps)}")
    if tokens < _FEW_TOKENS:
        warnings.append(
            f"Only {tokens:,} tokens are held out, so scores are rough: --set data.validation_share=0.1 holds out more."
        )
    return warnings


def _suggest_changes(training: Pretraining, steps: int) -> str:
    """Return what may help a model that has learned nothing in so many steps."""
    if training.budget is None:
        return "Try more --steps, another --learning-rate, or more text."
    batch = ""
    if training.batch_size > MIN_PRETRAINING_BATCH:
        batch = f"a smaller --batch-size ({training.budget} made {steps:,} steps of {training.batch_size} blocks), "
    return f"Try {batch}a longer --budget, or another --learning-rate."


def _baseline(inputs: PretrainData) -> dict[str, dict[str, float]]:
    """Compute the scores of token frequencies alone; a loss of several terms has no such baseline."""
    loss = unigram_loss(inputs.corpus["train"], inputs.corpus["validation"], inputs.setup.config.vocab_size)
    scores = {"perplexity": math.exp(loss)}
    return {
        "token frequencies": {"loss": loss, **scores} if set(inputs.objective.TERMS) in ({"mlm"}, {"clm"}) else scores
    }
