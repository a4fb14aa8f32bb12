"""Fine-tune an encoder with a recipe: read the rows, load the model, train it, score it, write the run folder.

Read `finetune`, `finetune_rows` and `_train_and_save` in this order. The modules `seeds`, `sweep`, `glue` and
`trial_run` call these functions. Distillation enters in `load_model`, in `training_job` and by the argument `compare`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.data.sources import is_validation
from bertkit.errors import shorten
from bertkit.evaluation.baselines import ScoredBaselines, fit_and_score
from bertkit.evaluation.checkpoint import Checkpoint
from bertkit.evaluation.scoring import EvalOutput, EvalResult, read_results, run_part, score_split
from bertkit.evaluation.splits import write_training_rows
from bertkit.hardware.precision import use_matmul_backend
from bertkit.metrics.registry import check_best_metric, is_lower_better, rank_step
from bertkit.modeling.info import Model, get_loading_info
from bertkit.modeling.tokenizer import load_tokenizer, warn_about_tokens
from bertkit.progress import log, stage
from bertkit.recipe.plugins import load_custom
from bertkit.recipe.records import Recipe
from bertkit.storage.cache import log_once
from bertkit.storage.runs import is_main_process
from bertkit.tokens.features import Features, TaskContext, max_tokens
from bertkit.tokens.truncation import reads_windows
from bertkit.training.run import FitResult, Run, open_run
from bertkit.workflows.finetune_data import FinetuneData, read_finetune_data

if TYPE_CHECKING:
    from bertkit.training.trainer import TrainingJob

Compare = Callable[[Checkpoint, EvalOutput, Path | None], list[dict[str, Any]]]
"""Function that compares a trained student with its teachers on the same validation rows.

Arguments: the student, its scores, and the folder of its best checkpoint (None if nothing was trained). It returns one
record per model.
"""

_UNTRAINED_BASELINE = "encoder before training"


def finetune(
    recipe: Recipe, *, output: str | Path | None = None, restart: bool = False, expect_run: str | Path | None = None
) -> list[EvalResult]:
    """Fine-tune, or resume an interrupted run, or return the scores of a finished one.

    Args:
        recipe: Recipe to train with.
        output: Run folder; by default ``runs/`` and the name of the recipe.
        restart: Start over; an earlier run in the folder is moved aside.
        expect_run: Folder of another run, which must have the same model, tokenizer, rows and package versions.

    Returns:
        Results of the validation splits. The first split chose the best checkpoint.

    Raises:
        BertkitError: If the recipe, the rows, the model or the machine do not allow the run; see `bertkit.errors`.
    """
    with stage("reading the data", total=1):
        data = read_finetune_data(recipe, output, restart=restart, expect_run=expect_run)
    return finetune_rows(data, restart=restart)


def finetune_rows(data: FinetuneData, *, restart: bool, compare: Compare | None = None) -> list[EvalResult]:
    """Fine-tune on rows that have been read. `compare` compares the trained model with other models."""
    # `open_run` locks the run folder, and checks whether the folder already holds this run, interrupted or finished.
    with open_run(data.plan, restart=restart) as run:
        if run.is_finished:
            results = read_results(run.record["results"], data.plan.folder)
        else:
            write_training_rows(data.plan.folder, data.training_digests)
            results = _train_and_save(_with_recorded_batching(data, run.record), run, compare)
    # Gates are not part of a run's identity, so the gates of the current recipe also judge a finished run.
    from bertkit.evaluation.gates import judge_result

    return [judge_result(data.recipe.gates, result) for result in results]


def _with_recorded_batching(data: FinetuneData, record: Mapping[str, Any]) -> FinetuneData:
    """Return the data with the batching in the run's record, where `open_run` resolved `auto`."""
    batching = record["identity"]["recipe"]["training"]["batching"]
    return replace(data, recipe=data.recipe.replace("training", batching=batching))


def _train_and_save(data: FinetuneData, run: Run, compare: Compare | None) -> list[EvalResult]:
    from transformers import set_seed

    from bertkit.modeling.depths import configure_layers, merge_adapters
    from bertkit.training.fit import fit

    recipe, task = data.recipe, data.task
    use_matmul_backend(run.machine)

    # 1. Load the model. `set_seed` comes directly before it, because the weights of a new head are random: any other
    #    draw in between would change them.
    with stage(f"loading {recipe.model_name}"):
        set_seed(recipe.training.seed)
        context = load_context(data)
        checkpoint = Checkpoint(load_model(data, context), task, context, run.machine)
        baselines = score_baselines(data, context)
        if recipe.training.layer_keys:
            configure_layers(checkpoint.model, recipe.training)

    # 2. Tokenize the rows. Models of vectors can be scored without training, so the encoder before training is another
    #    baseline.
    features = encode_splits(data, context)
    truncation = report_truncation(data, context, features)
    evaluator = Evaluator(data, checkpoint, features)
    if getattr(checkpoint.model, "reads", "text") in ("texts", "sparse"):
        for name in baselines.scores:
            output = evaluator.score(name, checkpoint)
            baselines.row_scores[name][_UNTRAINED_BASELINE] = output.row_scores
            baselines.scores[name][_UNTRAINED_BASELINE] = output.scores

    # 3. Train. After `fit`, the model has the weights of the best step. Tasks with a frozen encoder compute its vectors
    #    once (`precompute`); if the head is fitted to these vectors, there are no training steps.
    trains_nothing = task.precompute(checkpoint.model, features, context, partial(run_part, checkpoint))
    if trains_nothing:
        fit_result = FitResult.without_training()
    else:
        if not run.is_resumed:
            _report_head(checkpoint.model, recipe, data.labels)
        with training_job(data, checkpoint, features["train"], evaluator.compute_metrics) as job:
            fit_result = fit(job, recipe.training, run.machine, data.plan.folder)

    # 4. Score the best step on every validation split. Then merge LoRA adapters into the weights, because the merged
    #    model is published and compared with teachers.
    outputs = evaluator.score_splits(list(baselines.scores), fit_result.best_step)
    if recipe.training.lora:
        merge_adapters(checkpoint.model, data.plan.folder if is_main_process() else None, recipe.model_name)
    output = outputs[data.validation.name]
    compared_models = (
        compare(replace(checkpoint, context=output.context), output, fit_result.best_checkpoint) if compare else []
    )

    # 5. Write the run folder: checkpoint, predictions, scores, report and card.
    from bertkit.workflows.finetune_results import save_results

    return save_results(data, run, fit_result, checkpoint, outputs, baselines, truncation, compared_models)


def load_context(data: FinetuneData) -> TaskContext:
    """Load the tokenizer, and log if the recipe requests more tokens than the model can read."""
    context = TaskContext(data.recipe, load_tokenizer(data.model_folder), data.labels)
    max_length, limit = data.recipe.training.max_length, max_tokens(context)
    if limit < max_length:
        log_once(f"the model reads {limit:,} tokens, so training.max_length is {limit:,}, not {max_length:,}")
    return context


def load_model(data: FinetuneData, context: TaskContext) -> Model:
    """Load the encoder with a head for the task. A student can be initialized from its first teacher."""
    if distillation := data.recipe.distillation:
        from bertkit.compression.students import load_student

        return load_student(data.task, data.model_folder, context, distillation)
    return data.task.load_model(data.model_folder, context, new_head=True)


def score_baselines(data: FinetuneData, context: TaskContext) -> ScoredBaselines:
    """Fit baselines (most frequent label, linear model over words, ...) to the training rows, and score them."""
    validation = {name: split.rows for name, split in data.splits.items() if is_validation(name)}
    baselines = fit_and_score(data.task, data.splits["train"].rows, validation, context)
    # The score names of custom metrics are unknown until rows are scored, so check them with the baselines' scores.
    for scores in baselines.scores[data.validation.name].values():
        check_best_metric(data.recipe, scores)
    return baselines


def encode_splits(data: FinetuneData, context: TaskContext) -> dict[str, Features]:
    """Tokenize the rows of each split, or read them from the cache of features."""
    from bertkit.tokens.feature_cache import encode_split

    with stage("tokenizing"):
        features = {name: encode_split(split, context, data.task.encode) for name, split in data.splits.items()}
    warn_about_tokens(context.tokenizer, features["train"])
    return features


def report_truncation(data: FinetuneData, context: TaskContext, features: Mapping[str, Features]) -> dict[str, int]:
    """Log how many training rows are truncated or read in windows, and return the counts for the run's record."""
    from bertkit.tokens.feature_cache import get_lengths, get_max_lengths

    limit, num_rows = max_tokens(context), data.rows["train"]
    train, validation = features["train"], features[data.validation.name]
    find_truncated_answers = data.task.find_truncated_answers
    lost_gold = find_truncated_answers(validation, data.validation.rows, context) if find_truncated_answers else ()
    counts = {"max_tokens": limit, "lost_gold": len(lost_gold), "training_rows": 0}
    # A feature can hold several windows of one text, padded to the longest. So its number of windows is its length
    # divided by the length of the longest window; both are arrays over features.
    has_choice = "long_text" in data.task.OPTIONS
    is_windowed = has_choice and reads_windows(context.recipe)
    num_windows = int((get_lengths(train) // get_max_lengths(train)).sum()) if is_windowed else len(train)
    if num_windows > num_rows:
        kind = "sequences" if "questions" in data.task.COLUMNS.optional else "overlapping windows"
        log.info(f"training: {num_rows:,} rows in {num_windows:,} {kind} of up to {limit} tokens")
        return counts
    # Count rows of exactly the maximum too, because features do not show whether they were longer.
    if num_truncated := int((get_max_lengths(train) >= limit).sum()):
        tokenizer_limit = int(context.tokenizer.model_max_length)
        remedies = [f"--max-length {tokenizer_limit}"] if tokenizer_limit > limit else []
        remedies += ["--set options.long_text=windows_mean"] if has_choice else []
        remedy = f" (to read more: {' or '.join(remedies)})" if remedies else ""
        count = f"{num_truncated:,} ({num_truncated / len(train):.1%})"
        log.info(f"training rows that reach {limit} tokens: {count}; longer ones are truncated{remedy}")
    return {**counts, "training_rows": num_truncated}


@dataclass
class Evaluator:
    """Evaluator of the model during training, which keeps the predictions of the best step."""

    data: FinetuneData
    checkpoint: Checkpoint
    features: Mapping[str, Features]
    best_step: int | None = field(default=None, init=False)
    best_output: EvalOutput | None = field(default=None, init=False)
    """Scores and predictions of the best step on the first validation split."""

    def compute_metrics(self, model: Model, step: int) -> dict[str, float]:
        """Score the model of a step on the first validation split, which determines the best checkpoint."""
        checkpoint = replace(self.checkpoint, model=model)
        # Some tasks fit their head instead of training it, so fit the head to the encoder of this step.
        if fit_head := self.data.task.fit_head:
            fit_head(model, self.features["train"], checkpoint.context, partial(run_part, checkpoint))
        output = self.score(self.data.validation.name, checkpoint, tune=True)
        if self.best_output is None or self._get_sort_key(output) > self._get_sort_key(self.best_output):
            self.best_step, self.best_output = step, output
        return {"loss": output.loss if output.loss is not None else math.nan, **output.scores}

    def score_splits(self, names: Sequence[str], step: int) -> dict[str, EvalOutput]:
        """Score the weights of the best step on some splits; thresholds are tuned on the first validation split.

        Predictions of the best step are used again; after a resume, they are recomputed.
        """
        first_name = self.data.validation.name
        output = self.best_output if self.best_step == step else None
        output = output or self.score(first_name, self.checkpoint, tune=True)
        tuned_checkpoint = replace(self.checkpoint, context=output.context)
        return {first_name: output} | {name: self.score(name, tuned_checkpoint) for name in names if name != first_name}

    def score(self, name: str, checkpoint: Checkpoint, *, tune: bool = False) -> EvalOutput:
        """Score a model on a split from its encoded features."""
        return score_split(checkpoint, self.data.splits[name], features=self.features[name], tune=tune)

    def _get_sort_key(self, output: EvalOutput) -> tuple[bool, float]:
        metric = self.data.recipe.best_metric
        return rank_step(output.scores[metric], output.loss, greater_is_better=not is_lower_better(metric))


@contextmanager
def training_job(
    data: FinetuneData,
    checkpoint: Checkpoint,
    features: Features,
    compute_metrics: Callable[[Model, int], dict[str, float]],
) -> Iterator[TrainingJob]:
    """Yield the arguments of the Trainer: model, batches, collator, loss terms and metrics.

    Args:
        data: Rows and recipe of the run.
        checkpoint: Model to train.
        features: Features of the training rows.
        compute_metrics: Scores the model of a step: metric -> value.
    """
    from bertkit.training.batching import InMemoryBatches
    from bertkit.training.losses import gold_terms, scale_targets
    from bertkit.training.trainer import TrainingJob

    recipe, context, train = data.recipe, checkpoint.context, data.splits["train"]
    # Gold labels determine only the class weights.
    loss_terms = gold_terms(data.task, recipe.training, data.labels, train.rows)
    data_collator = data.task.collator(context)
    with ExitStack() as hooks:
        if recipe.distillation:
            from bertkit.compression.students import prepare_distillation

            # The hooks on the teacher's layers are removed when training ends.
            teacher_hooks = prepare_distillation(
                data.teachers, recipe.distillation, checkpoint, train, features, loss_terms
            )
            loss_terms, data_collator = hooks.enter_context(teacher_hooks)
        if recipe.training.collator:
            data_collator = partial(load_custom("collator", recipe.training.collator), collate=data_collator)
        yield TrainingJob(
            model=checkpoint.model,
            processing_class=context.tokenizer,
            train_batches=InMemoryBatches(features, recipe.training),
            data_collator=data_collator,
            loss_terms=scale_targets(checkpoint.model, loss_terms, train.column(data.task.COLUMNS.gold)),
            compute_metrics=compute_metrics,
            metric_for_best_model=recipe.best_metric,
            greater_is_better=not is_lower_better(recipe.best_metric),
        )


def _report_head(model: Model, recipe: Recipe, labels: Sequence[str]) -> None:
    """Log whether the head of the checkpoint is kept, or why a new head replaces it."""
    loading = get_loading_info(model)
    if loading.head == "kept":
        log.info(f"the trained head of {recipe.model_name} is kept{': it has the same labels' if labels else ''}")
    elif loading.head == "new":
        reason = ""
        if loading.other_labels:
            old_labels, new_labels = (shorten(", ".join(names)) for names in (loading.other_labels, labels))
            reason = f", because the head of {recipe.model_name} is for the labels {old_labels}, not {new_labels}"
        log.info(f"new head: randomly initialized{reason}")
