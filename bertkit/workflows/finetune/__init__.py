"""Fine-tune an encoder as a recipe says: rows -> features -> fit -> predictions -> scores -> run folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertkit.errors import shorten
from bertkit.evaluation.checkpoint import Checkpoint
from bertkit.evaluation.scoring import Result, Scored, read_results
from bertkit.evaluation.splits import write_training_rows
from bertkit.hardware.precision import use_matmul_backend
from bertkit.metrics.basic import is_lower_better
from bertkit.modeling.info import Model, loading_info_of
from bertkit.progress import log, stage
from bertkit.recipe import Recipe
from bertkit.storage.runs import is_main_process
from bertkit.training.run import FitResult, Run, open_run, untrained
from bertkit.workflows.finetune.inputs import FinetuneInputs, read_inputs
from bertkit.workflows.finetune.scorer import StepScorer, load_scorer
from bertkit.workflows.finetune.trainee import make_trainee

Compare = Callable[[Checkpoint, Scored, Path | None], list[dict[str, Any]]]
"""The trained model, its scores and the folder of its weights -> a record of each model that is compared."""


def finetune(
    recipe: Recipe, *, output: str | Path | None = None, fresh: bool = False, pinned: str | Path | None = None
) -> list[Result]:
    """Fine-tune, or resume the same run, or return the scores of a finished one.

    With `pinned`, the folder of another run, model, tokenizer, rows and versions must be those of that run.

    Returns:
        the results of the validation splits; the first chose the best checkpoint.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    with stage("reading the data", total=1):
        inputs = read_inputs(recipe, output, fresh=fresh, pinned=pinned)
    return run_inputs(inputs, fresh=fresh)


def run_inputs(inputs: FinetuneInputs, *, fresh: bool, compare: Compare | None = None) -> list[Result]:
    """Do what `finetune` does with inputs that are read already; `compare` sets other models beside the trained one."""
    with open_run(inputs.plan, fresh=fresh) as run:
        if run.is_finished:
            results = read_results(run.record["results"], inputs.plan.folder)
        else:
            write_training_rows(inputs.plan.folder, inputs.trained)
            results = _train_and_publish(_with_recorded_batching(inputs, run.record), run, compare)
    # gates are no part of a run: a finished one has today's
    from bertkit.evaluation.gates import judge_result

    return [judge_result(inputs.recipe.gates, result) for result in results]


def _with_recorded_batching(inputs: FinetuneInputs, record: Mapping[str, Any]) -> FinetuneInputs:
    """Return the inputs with the batches that a run began with: its recipe may have named what is ``auto`` now."""
    batching = record["identity"]["recipe"]["training"]["batching"]
    return replace(inputs, recipe=inputs.recipe.changed("training", batching=batching))


def _train_and_publish(inputs: FinetuneInputs, run: Run, compare: Compare | None) -> list[Result]:
    from transformers import set_seed

    from bertkit.modeling.depths import merge_adapters, prepare_depths

    recipe = inputs.recipe
    use_matmul_backend(run.machine)
    with stage(f"loading {recipe.model_name}"):
        set_seed(recipe.training.seed)  # a new head is drawn from it
        scorer = load_scorer(inputs, run)
        model = scorer.checkpoint.model
        if recipe.training.layer_keys:
            prepare_depths(model, recipe.training)
    is_complete = scorer.encode()
    if not is_complete and not run.is_resumed:
        _report_head(model, recipe, inputs.labels)
    # What needs no training is complete once its rows are encoded. Training ends with the weights of the best step.
    fit_result = untrained() if is_complete else _fit_model(inputs, scorer)
    scored = scorer.score_best(fit_result.best_step)
    # adapters become a part of the weights before these are published, and compared with those of teachers
    if recipe.training.lora:
        merge_adapters(model, inputs.plan.folder if is_main_process() else None, recipe.model_name)
    chosen = scored[inputs.validation.name]
    compared = compare(replace(scorer.checkpoint, setup=chosen.setup), chosen, fit_result.best) if compare else []
    from bertkit.workflows.finetune.publish import publish  # pages and cards, which no step needs

    return publish(scorer, run, fit_result, scored, compared)


def _fit_model(inputs: FinetuneInputs, scorer: StepScorer) -> FitResult:
    """Train the model."""
    from bertkit.training.fit import fit
    from bertkit.training.trainer import Judge

    recipe, checkpoint = inputs.recipe, scorer.checkpoint
    judge = Judge(scorer.score_step, recipe.best_metric, not is_lower_better(recipe.best_metric))
    with make_trainee(inputs, checkpoint, scorer.features["train"]) as trainee:
        return fit(trainee, judge, recipe.training, checkpoint.machine, inputs.plan.folder)


def _report_head(model: Model, recipe: Recipe, labels: Sequence[str]) -> None:
    """Say whether the head of a checkpoint is kept, or starts anew and why."""
    info = loading_info_of(model)
    if info.head == "kept":
        log.info(f"the trained head of {recipe.model_name} is kept{': it has the same labels' if labels else ''}")
    elif info.head == "new":
        others, own = (shorten(", ".join(names)) for names in (info.other_labels, labels))
        why = f", because that of {recipe.model_name} is for the labels {others}, not {own}" if others else ""
        log.info(f"the head is new: it starts from random weights{why}")
